"""The ground floor: shapes and algorithms that every other app stands on (upper-floors.md §2)."""
