"""SQLite as Django knows it, but whoever waits for its one writer looks again after a fraction of a millisecond.

SQLite itself looks after 1, 2, 5, 10 ms and so on, up to every 100 ms. Two sessions that each write for a few
milliseconds slept through each other's pauses for a quarter of their time.
"""

from __future__ import annotations

import sqlite3
import time

from django.db.backends.sqlite3 import base

FIRST_S = 0.000_25
LONGEST_S = 0.002
EAGER_S = 0.1  # after that it is SQLite's to wait: many that look this often would be in each other's way


class DatabaseWrapper(base.DatabaseWrapper):
    """Found by Django under this name."""

    transaction_mode: str | None

    def _start_transaction_under_autocommit(self) -> None:
        # Where statements are counted or looked at, Django's own way shows them.
        plain = self.queries_logged or self.execute_wrappers or self.transaction_mode != "IMMEDIATE"
        if plain or not self._begun():
            super()._start_transaction_under_autocommit()  # type: ignore[misc]

    def _begun(self) -> bool:
        """Whether the transaction has begun before the eager time was up."""
        waits_ms = round(self.settings_dict["OPTIONS"].get("timeout", 5) * 1000)
        pause = FIRST_S
        give_up = time.monotonic() + EAGER_S
        self.connection.execute("PRAGMA busy_timeout = 0")
        try:
            while True:
                try:
                    self.connection.execute("BEGIN IMMEDIATE")
                    return True
                except sqlite3.OperationalError:
                    if time.monotonic() >= give_up:
                        return False
                time.sleep(pause)
                pause = min(LONGEST_S, pause * 1.5)
        finally:
            self.connection.execute(f"PRAGMA busy_timeout = {waits_ms}")
