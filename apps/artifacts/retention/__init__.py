"""Retention: which logs go, by which rule, in an order that survives a crash (secrets-and-artifacts.md §7)."""
