"""`up`: every process of one machine as one supervised tree (architecture.md §2, "Processes")."""
