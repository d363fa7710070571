"""One bounded sweep over the logs whose time is over, and the checkpoint between two (§7.2, §7.6, §7.7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

from django.db import DatabaseError, IntegrityError

from apps.artifacts import facts, store
from apps.artifacts.errors import RetentionCursorInvalid
from apps.artifacts.facts import UnsafeTarget
from apps.artifacts.models import SCOPE, ArtifactMaintenanceCursor, Removal
from apps.artifacts.retention import candidates, files, records, rules
from apps.artifacts.retention.candidates import Candidate, Position
from apps.artifacts.retention.files import Retired
from apps.artifacts.retention.rules import Rules
from apps.core import clock, db
from apps.core.db import write_transaction, yielding_transaction
from apps.core.errors import DomainError
from apps.core.pace import Pace, spent

Outcome = Literal["deleted", "already_absent", "file_failed", "record_failed"]
Status = Literal["complete", "page_complete", "deletion_budget_exhausted"]
Action = Literal["unchanged", "advanced", "cleared", "fenced"]

# Candidates whose tasks and runs are held still together while their files are deleted; fewer where that takes long.
LOCKED = 8


@dataclass(frozen=True)
class Options:
    """Sizes of one sweep: a page of 1–64, at most `most` of it removed, pressure below so many free bytes."""

    page: int
    most: int
    minimum_free: int

    def __post_init__(self) -> None:
        if not (
            1 <= self.page <= candidates.MAX_PAGE and 1 <= self.most <= self.page and self.minimum_free >= 0
        ):
            raise ValueError("the sizes of a sweep are out of bounds")

    @classmethod
    def of_instance(cls) -> Options:
        """As the profile has them."""
        base = rules.instance()
        return cls(base.page, base.most, store.minimum_free())


@dataclass(frozen=True)
class Entry:
    """What came of one candidate."""

    attempt_id: UUID
    artifact_id: str
    outcome: Outcome
    bytes: int


@dataclass(frozen=True)
class Swept:
    """What one sweep did; `resume` is where the next one begins, None = at the start."""

    status: Status
    pressure: bool
    observed_at: datetime
    available: int
    total: int
    scanned: int
    entries: list[Entry] = field(default_factory=list)
    resume: Position | None = None

    @property
    def attempted(self) -> int:
        return len(self.entries)

    @property
    def failed(self) -> int:
        return sum(entry.outcome in ("file_failed", "record_failed") for entry in self.entries)

    @property
    def bytes(self) -> int:
        """Reclaimed by what was recorded."""
        return sum(entry.bytes for entry in self.entries if entry.outcome == "deleted")


def sweep(after: Position | None = None, options: Options | None = None, pace: Pace | None = None) -> Swept:
    """Looks at one page and removes what may go; an error with one log goes on with the next.

    Raises CapacityUnavailable, and RetentionPageInvalid before anything is touched.
    """
    options = options or Options.of_instance()
    now, capacity = clock.now(), store.capacity()
    pressure = capacity.available < options.minimum_free
    found = rules.load(pressure=pressure)
    page = candidates.page(found, now, after, options.page)
    candidates.verify(page, after, options.page)
    chosen = page.candidates[: options.most]
    entries = remove(chosen, found, Removal.PRESSURE if pressure else Removal.AGE, now, pace)
    status: Status = "page_complete" if page.truncated else "complete"
    resume = page.next
    if len(chosen) < len(page.candidates):
        status, resume = "deletion_budget_exhausted", chosen[-1].position
    return Swept(
        status, pressure, now, capacity.available, capacity.total, len(page.candidates), entries, resume
    )


def remove(
    chosen: Sequence[Candidate], found: Rules, rule: str, now: datetime, pace: Pace | None = None
) -> list[Entry]:
    """Deletes the files of each, makes that last, and only then records it; one entry per candidate, in order.

    None for one that somebody began to need since it was chosen, and for one that another sweeper has recorded.
    """
    pace = pace or Pace()
    outcomes: dict[UUID, tuple[Outcome, int]] = {}
    made: list[records.Record] = []
    shards: set[str] = set()
    for one, gone in _delete_all(chosen, found, pace):
        if gone is None:
            outcomes[one.attempt_id] = ("file_failed", 0)
            continue
        if gone.shard is not None:
            shards.add(gone.shard)
        outcomes[one.attempt_id] = (gone.disposition, gone.bytes)
        made.append(
            records.Record(
                one.attempt_id, one.artifact_id, one.finished_at, min(one.eligible_at, now), gone.disposition,
                gone.bytes, now, one.project_id, rule, gone.files,
            )
        )  # fmt: skip
    for shard in sorted(shards):
        facts.sync_directory(shard)
    while made:
        size = pace.size("record", len(made))
        batch, made = made[:size], made[size:]
        outcomes.update((failed, ("record_failed", 0)) for failed in _record(batch))
        pace.after("record", len(batch))
    return [
        Entry(one.attempt_id, one.artifact_id, *outcomes[one.attempt_id])
        for one in chosen
        if one.attempt_id in outcomes
    ]


def _delete_all(
    chosen: Sequence[Candidate], found: Rules, pace: Pace
) -> Iterator[tuple[Candidate, Retired | None]]:
    """Deletes group by group, and gives what came of each that went or could not."""
    left = list(chosen)
    while left:
        size = pace.size("delete", LOCKED)
        group = left[:size]
        for one in group:
            # What has to be fetched from the disk is fetched before anybody has to wait for it.
            _look(one)
        reached, gone = _delete(group, found)
        pace.after("delete", len(gone))
        left = left[reached:]
        yield from gone


@yielding_transaction
def _delete(group: Sequence[Candidate], found: Rules) -> tuple[int, list[tuple[Candidate, Retired | None]]]:
    """Deletes what may still go while nobody can begin to need it: a pin comes before, or finds it gone.

    Names go, nothing is synced and nothing written to the database: the locks are held for a moment, and given back
    early where a disk is slow. Files come last, so that no statement behind them has the whole tried again. Says how
    far it came.
    """
    still = candidates.hold(group, found)
    db.take_writer()
    gone: list[tuple[Candidate, Retired | None]] = []
    for reached, one in enumerate(group):
        if gone and spent():
            return reached, gone
        if one.attempt_id in still:
            gone.append((one, _retire(one)))
    return len(group), gone


def _look(one: Candidate) -> None:
    with suppress(OSError, UnsafeTarget):
        files.look(one.artifact_id)


def _retire(one: Candidate) -> Retired | None:
    try:
        return files.retire(one.artifact_id, sync=False)
    except (OSError, UnsafeTarget):
        return None


def _record(made: Sequence[records.Record]) -> Iterable[UUID]:
    """Records all at once, or one by one where that fails; the attempts that could not be recorded."""
    if not made:
        return []
    try:
        records.record(made)
    except (DatabaseError, DomainError):
        if len(made) == 1:
            return [made[0].attempt_id]
        return [attempt_id for one in made for attempt_id in _record([one])]
    return []


@dataclass(frozen=True)
class Checkpoint:
    """How far the sweep has come; version 0 = it never has."""

    version: int = 0
    position: Position | None = None


def load() -> Checkpoint:
    """The stored checkpoint; raises RetentionCursorInvalid for one that breaks its rules."""
    row = ArtifactMaintenanceCursor.objects.filter(scope=SCOPE).first()
    if row is None:
        return Checkpoint()
    if row.version < 1 or (row.cursor_finished_at is None) != (row.cursor_attempt_id is None):
        raise RetentionCursorInvalid
    if row.cursor_finished_at is None or row.cursor_attempt_id is None:
        return Checkpoint(row.version)
    return Checkpoint(row.version, (row.cursor_finished_at, row.cursor_attempt_id))


@write_transaction
def compare_and_set(version: int, position: Position | None, at: datetime) -> bool:
    """Moves the checkpoint that was read at `version`; False where another runner moved it meanwhile."""
    if not 0 <= version <= 2**53 - 2:
        raise ValueError("no version of a checkpoint")
    finished_at, attempt_id = position or (None, None)
    values = {"cursor_finished_at": finished_at, "cursor_attempt_id": attempt_id, "updated_at": at}
    if version:
        rows = ArtifactMaintenanceCursor.objects.filter(scope=SCOPE, version=version)
        return rows.update(version=version + 1, **values) == 1
    try:
        with db.savepoint():
            ArtifactMaintenanceCursor.objects.create(scope=SCOPE, version=1, **values)
    except IntegrityError as error:
        if not db.is_unique_violation(error):
            raise
        return False
    return True


@dataclass(frozen=True)
class Cycle:
    """A sweep and what became of the checkpoint."""

    swept: Swept
    action: Action


def cycle(
    options: Options | None = None, checkpoint: Checkpoint | None = None, pace: Pace | None = None
) -> Cycle:
    """One sweep from the checkpoint on; an idle one writes nothing.

    A complete sweep begins at the start next time, so that what failed is tried again.
    """
    before = checkpoint or load()
    swept = sweep(before.position, options, pace)
    after = None if swept.status == "complete" else swept.resume
    if after == before.position:
        return Cycle(swept, "unchanged")
    if not compare_and_set(before.version, after, swept.observed_at):
        return Cycle(swept, "fenced")
    return Cycle(swept, "cleared" if after is None else "advanced")
