"""Room for a log before a start, and reading it in an order that is a rule (secrets-and-artifacts.md §6.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar
from uuid import UUID

from apps.artifacts import facts, places, queries, reader, search, store, tallies
from apps.artifacts.errors import EvidenceConflict, LogMissing, LogRetained, UnsafeReadTarget
from apps.artifacts.queries import LogMetadata
from apps.core.errors import NotFound
from apps.projects.policy import Grant

PERMISSION = "artifact.read"
# Of one range: they travel in a header.
MASKED_MOST = 200
Truncated = bool | Literal["unknown"]
T = TypeVar("T")


@dataclass(frozen=True)
class Log:
    """A log before its bytes: its `size` when it was looked at, and whether its quota cut it.

    `complete` = no more will come. `maximum_bytes` and `observed_at_ms` are known only with the fact.
    """

    name: str
    size: int
    complete: bool
    truncated: Truncated = "unknown"
    maximum_bytes: int | None = None
    observed_at_ms: int | None = None


@dataclass(frozen=True)
class LogPart:
    """A range of a log; a follower goes on at `end`. `masked` = where in the log a mark for a secret stands in it."""

    log: Log
    content: bytes = field(default=b"", repr=False)
    start: int = 0
    masked: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The offset behind the last byte."""
        return self.start + len(self.content)


@dataclass(frozen=True)
class LogStream:
    """A whole log for a download; no content = nothing was written yet."""

    log: Log
    content: reader.Stream | None


def prepare(run_id: UUID, attempt_id: UUID, maximum_bytes: int) -> str:
    """The artifact id of an attempt, once there is room for its log; the shim makes the file.

    Raises CapacityUnavailable and facts.UnsafeTarget.
    """
    store.reserve(maximum_bytes)
    return facts.artifact_id(str(run_id), str(attempt_id))


def read_log(
    grant: Grant,
    run_id: UUID,
    *,
    attempt: int | None = None,
    offset: int = 0,
    length: int = reader.MAX_LENGTH,
) -> LogPart:
    """1 to 262,144 bytes of a log; a negative offset counts from the end.

    The grant is the decision: no file is touched without it, nor before the database knows the log. Raises
    NotFound (also for a grant of another right), LogRetained, LogMissing, UnsafeReadTarget, MetadataCorrupt
    and EvidenceConflict.
    """
    metadata = _find(grant, run_id, attempt)
    found = _on_disk(metadata, lambda name: _present(reader.read(name, offset, length)))
    if found is None:
        return LogPart(_log(metadata, 0))
    return LogPart(_log(metadata, found.total_bytes), found.content, found.start, _masked(metadata, found))


def describe_log(grant: Grant, run_id: UUID, *, attempt: int | None = None) -> Log:
    """A log without its bytes; raises as `read_log`."""
    metadata = _find(grant, run_id, attempt)
    return _log(metadata, _on_disk(metadata, reader.size) or 0)


def stream_log(grant: Grant, run_id: UUID, *, attempt: int | None = None) -> LogStream:
    """A whole log, to be closed by the caller; raises as `read_log`."""
    metadata = _find(grant, run_id, attempt)
    found = _on_disk(metadata, lambda name: _present(reader.stream(name)))
    return LogStream(_log(metadata, found.total_bytes if found else 0), found)


def search_log(
    grant: Grant,
    run_id: UUID,
    wanted: str,
    *,
    attempt: int | None = None,
    offset: int = 0,
    most: int = search.MAX_HITS,
) -> search.Found:
    """Lines of a log that hold a text (`search.search`); raises as `read_log`."""
    metadata = _find(grant, run_id, attempt)
    found = _on_disk(metadata, lambda name: _present(search.search(name, wanted, offset, most)))
    return found or search.Found([], None, 0)


def _present(found: T | reader.Missing) -> T | None:
    return None if isinstance(found, reader.Missing) else found


def _find(grant: Grant, run_id: UUID, attempt: int | None) -> LogMetadata:
    metadata = queries.find(grant.project_id, run_id, attempt)
    if metadata is None or grant.permission != PERMISSION:
        raise NotFound
    if metadata.retention is not None:
        raise LogRetained
    return metadata


def _on_disk(metadata: LogMetadata, take: Callable[[str], T | None]) -> T | None:
    """What `take` finds in the file, None where nothing was written yet; raises LogMissing or LogRetained."""
    if metadata.artifact_id is None:
        return None
    found = take(metadata.artifact_id)
    if found is not None:
        return found
    again = queries.find(metadata.project_id, metadata.run_id, metadata.attempt)
    if again is None or (again.attempt_id, again.artifact_id) != (metadata.attempt_id, metadata.artifact_id):
        raise EvidenceConflict
    if again.retention is not None:
        raise LogRetained
    if not (again.complete and again.started):
        return None
    if metadata.complete:
        tallies.missing_read()
        raise LogMissing
    # The script began and ended in between: its file may have come after the look at the disk.
    return _on_disk(again, take)


def _masked(metadata: LogMetadata, found: reader.Available) -> tuple[int, ...]:
    """From what the shim noted, where the text agrees; at most MASKED_MOST."""
    noted = places.read(store.root(), metadata.artifact_id) if metadata.artifact_id is not None else None
    if noted is None:
        return ()
    last = found.end_exclusive - len(places.MARK)
    marks = [
        at
        for at in noted.between(found.start, last + 1)
        if found.content.startswith(places.MARK, at - found.start)
    ]
    return tuple(marks[:MASKED_MOST])


def _log(metadata: LogMetadata, size: int) -> Log:
    if metadata.artifact_id is None:
        return Log("log", size, metadata.complete, truncated=False)
    try:
        fact = facts.read_fact(store.root(), metadata.artifact_id)
    except facts.UnsafeTarget:
        raise UnsafeReadTarget from None
    except facts.InvalidFact:
        raise EvidenceConflict from None
    if fact is None:
        return Log(metadata.artifact_id, size, metadata.complete)
    if (fact.run_id, fact.attempt_id) != (str(metadata.run_id), str(metadata.attempt_id)):
        raise EvidenceConflict
    return Log(
        metadata.artifact_id,
        size,
        metadata.complete,
        fact.quota_reached,
        fact.maximum_bytes,
        fact.observed_at_ms,
    )
