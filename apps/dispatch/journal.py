"""The node's journal: what it accepted and how far each attempt came, so that "launched or not?" has an answer
after any crash (runs.md §14).

An entry is the attempt's receipt reservation, a file that is there anyway: the shim writes the state into it and the
receipt takes its place. One file per live attempt, 0600, and it never leaves the node. Who holds the launcher's lock
owns the journal, since only its shims write. Entries hold no secret. A process that dies leaves what it wrote; a
machine that dies may not, so an entry of an earlier boot proves nothing. Standard library only.
"""
# Why not pathlib: the shim loads this too, and stays small without it.
# ruff: noqa: PTH208

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from apps.artifacts.facts import SAFE_INTEGER_MAX, is_uuid7

CAPACITY = 1024
ENTRY_BYTES_MAX = 4096
# In the order in which an attempt goes through them. Nothing of it is started before it is `launching`.
ACCEPTED, LAUNCHING, STARTED = STATES = ("accepted", "launching", "started")

_NUMBERS = ("pid", "start_ticks", "at_ms")
_KEYS = frozenset({"schema_version", "run_id", "attempt_id", "state", "boot_id", *_NUMBERS})


@dataclass(frozen=True, slots=True)
class Entry:
    """How far an attempt came, and the shim that says so; `at_ms` is the epoch millisecond of its last step."""

    run_id: str
    attempt_id: str
    state: str
    pid: int
    start_ticks: int
    boot_id: str
    at_ms: int

    def encode(self) -> bytes:
        """One line; whatever stood behind it in the file does not count."""
        # Checked values need no escapes, and every script would have to load what looks for them.
        return (
            f'{{"schema_version":1,"run_id":"{self.run_id}","attempt_id":"{self.attempt_id}",'
            f'"state":"{self.state}","pid":{self.pid},"start_ticks":{self.start_ticks},'
            f'"boot_id":"{self.boot_id}","at_ms":{self.at_ms}}}\n'
        ).encode()


def decode(data: bytes) -> Entry | None:
    """The entry of a file, None for anything that is none: strict, since other processes can write there."""
    line, newline, _rest = data[:ENTRY_BYTES_MAX].partition(b"\n")
    try:
        value = json.loads(line) if newline else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.keys() != _KEYS or value.pop("schema_version") != 1:
        return None
    numbers = [value[name] for name in _NUMBERS]
    good = (
        is_uuid7(value["run_id"])
        and is_uuid7(value["attempt_id"])
        and value["state"] in STATES
        and isinstance(value["boot_id"], str)
        and len(value["boot_id"]) <= 64
        and all(type(number) is int and 0 <= number <= SAFE_INTEGER_MAX for number in numbers)
    )
    return Entry(**value) if good else None


def entries(receipts_root: str, attempt_id: str) -> list[Entry | None]:
    """What shims noted of one attempt; None for an entry that cannot be read. OSError from the system.

    Usually one, or none once its receipt is published. A shim that was killed leaves its own beside a later one's.
    """
    shard = f"{receipts_root}/{shard_of(attempt_id)}"
    try:
        names = os.listdir(shard)
    except FileNotFoundError:
        return []
    found = [name for name in names if name.startswith(f".{attempt_id}.") and name.endswith(".tmp")]
    return [_read(f"{shard}/{name}", attempt_id) for name in found]


def never_launched(found: list[Entry | None], boot_id: str) -> bool:
    """Whether entries, one at least, all say that nothing was started, in this boot."""
    return bool(found) and all(
        one is not None and one.state == ACCEPTED and one.boot_id == boot_id for one in found
    )


def launched(found: list[Entry | None]) -> Entry | None:
    """The entry that says that the attempt was let go."""
    return next((one for one in found if one is not None and one.state != ACCEPTED), None)


def shard_of(attempt_id: str) -> str:
    """The folder of an attempt: its last two characters, since the first ones of UUIDv7 stay the same for years."""
    return attempt_id[-2:]


def _read(path: str, attempt_id: str) -> Entry | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = decode(os.read(descriptor, ENTRY_BYTES_MAX))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return found if found is not None and found.attempt_id == attempt_id else None
