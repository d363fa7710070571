"""What of a node can be seen from outside: folders, locks, rows read past the product."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
from pathlib import Path
from typing import Any

from tests.e2e.person import House


class Node:
    """The node of a house."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.home = house.up.home
        self.attempts = self.home / "node" / "attempts"
        self.receipts = self.home / "node" / "receipts"
        self.ran = self.home / "homes" / "default" / "ran"

    def folders(self) -> list[Path]:
        # Without the spare folders of warm shims, which come and go beside the shards.
        return [path for path in self.attempts.glob("[0-9a-f][0-9a-f]/*") if path.is_dir()]

    def prepared(self) -> bool:
        """A shim waits for `go`."""
        return any(self._mode(path) == 0o1700 for path in self.folders())

    def going(self) -> bool:
        """A shim got its `go`."""
        return any(self._mode(path) == 0o700 for path in self.folders())

    def ended(self) -> list[str]:
        """Attempts that have published their receipts."""
        return [path.stem for path in self.receipts.glob("*/*.json") if not path.name.startswith(".")]

    def settled(self) -> bool:
        """An end is on record while its receipt still lies there."""
        names = self.ended()
        return any(self.query(f"SELECT 1 FROM run_attempts WHERE id = '{self._id(n)}' AND finished_at IS NOT NULL")
                   for n in names)  # fmt: skip

    def claimed(self) -> bool:
        return bool(self.query("SELECT 1 FROM run_dispatch_leases WHERE status = 'leased' LIMIT 1"))

    def starting(self) -> bool:
        return bool(self.query("SELECT 1 FROM run_attempts WHERE status = 'starting' LIMIT 1"))

    def query(self, sql: str) -> list[Any]:
        url = self.house.extra.get("DATABASE_URL")
        if url:
            import psycopg

            with psycopg.connect(url, autocommit=True) as connection:
                return connection.execute(sql).fetchall()
        path = f"file:{self.home / 'db.sqlite3'}?mode=ro"
        with contextlib.closing(sqlite3.connect(path, uri=True, timeout=10)) as connection:
            return connection.execute(sql).fetchall()

    def sessions(self) -> list[int]:
        """Pids of living sessions, by the locks of their places; the death of an idle worker is another test's."""
        places = (self.home / "node" / "workers").glob("*.lock")
        wanted = {path.stat().st_ino for path in places}
        held = []
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and int(fields[5].rpartition(":")[2]) in wanted and fields[3] == "WRITE":
                held.append(int(fields[4]))
        return held

    def shims(self) -> list[int]:
        """Pids of living shims, warm ones too: they look like their launcher, which is left out."""
        found, node, launcher = [], str(self.home / "node").encode(), self.house.up.launcher()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != launcher:
                with contextlib.suppress(OSError):
                    command = (folder / "cmdline").read_bytes().split(b"\0")
                    if node in command and b"--node-dir" in command:
                        found.append(int(folder.name))
        return found

    def _id(self, name: str) -> str:
        return name if self.house.extra.get("DATABASE_URL") else name.replace("-", "")

    @staticmethod
    def _mode(path: Path) -> int:
        with contextlib.suppress(OSError):
            return stat.S_IMODE(path.stat().st_mode)
        return 0
