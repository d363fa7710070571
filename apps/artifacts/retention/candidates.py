"""Which logs may go now (secrets-and-artifacts.md §7.3, and the rules of projects and tasks)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import OuterRef, Q, QuerySet, Subquery, UUIDField

from apps.artifacts import facts
from apps.artifacts.errors import RetentionPageInvalid
from apps.artifacts.models import ArtifactRetention, StoredLog
from apps.artifacts.retention.rules import Rules, cutoff
from apps.core import db, pages
from apps.runs.models import ENDED, Run, RunAttempt
from apps.runs.services import holds, places
from apps.tasks.models import Task

MAX_PAGE = 64
CHUNK = 128
# Rows looked at for one page: what is held or kept longer must not make it look through everything.
SCAN = 1_024

Position = tuple[datetime, UUID]
Blocker = Callable[[Sequence[UUID]], set[UUID]]

_ORDER = (pages.moment("finished_at"), pages.identifier("attempt_id"))
_blockers: dict[str, Blocker] = {}


def register_blocker(name: str, blocker: Blocker) -> None:
    """Adds who names those of some attempts whose end is not settled on the disk yet; one query for all."""
    _blockers[name] = blocker


@dataclass(frozen=True)
class Candidate:
    """A log that may go; `eligible_at` is since when its rule lets it, `position` where the list has it."""

    attempt_id: UUID
    artifact_id: str
    project_id: str
    task_id: UUID
    finished_at: datetime
    eligible_at: datetime
    bytes: int
    files: int
    position: Position


@dataclass(frozen=True)
class Page:
    """Candidates in order; `next` is the last row that was looked at, where more may follow."""

    candidates: list[Candidate]
    next: Position | None

    @property
    def truncated(self) -> bool:
        return self.next is not None


def page(rules: Rules, now: datetime, after: Position | None, limit: int) -> Page:
    """Up to `limit` (1–64) logs whose age lets them go, the oldest first.

    The page ends early where SCAN rows were looked at. Raises RetentionPageInvalid for a stored row that breaks its
    rules: it is never skipped.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise RetentionPageInvalid
    rows = StoredLog.objects.filter(finished_at__lte=cutoff(now, rules.shortest_ms))

    def old(row: StoredLog) -> datetime | None:
        return _eligible(rules, row, now)

    found: list[Candidate] = []
    for chunk, at_end in chunks(rows, after, SCAN):
        for candidate in judge(chunk, rules, old):
            if len(found) == limit:
                return Page(found, found[-1].position)
            found.append(candidate)
        last = chunk[-1] if chunk else None
        after = (last.finished_at, last.pk) if last else after
        if at_end:
            return Page(found, None)
    return Page(found, after)


def chunks(
    rows: QuerySet[StoredLog, StoredLog], after: Position | None, most: int
) -> Iterator[tuple[list[StoredLog], bool]]:
    """Rows in order, CHUNK at a time up to `most`, each with whether it is the last there is."""
    for _ in range(0, most, CHUNK):
        narrowed = rows if after is None else rows.filter(pages.after(_ORDER, list(after)))
        chunk = list(narrowed.order_by("finished_at", "attempt_id")[:CHUNK])
        yield chunk, len(chunk) < CHUNK
        if len(chunk) < CHUNK:
            return
        after = (chunk[-1].finished_at, chunk[-1].pk)


def judge(
    rows: Sequence[StoredLog], rules: Rules, eligible: Callable[[StoredLog], datetime | None]
) -> list[Candidate]:
    """Those of the rows that `eligible` lets go (since when, None = not yet) and that nothing keeps."""
    wanted = {row.pk: (row, since) for row in rows if (since := eligible(row)) is not None}
    if not wanted:
        return []
    kept = protected([row for row, _since in wanted.values()], rules)
    attempts = RunAttempt.objects.filter(pk__in=wanted).select_related("run")
    return [
        _candidate(attempt, *wanted[attempt.pk])
        for attempt in sorted(attempts, key=lambda one: (wanted[one.pk][0].finished_at, one.pk))
        if attempt.pk not in kept
        and attempt.status in ENDED
        and attempt.run.status in ENDED
        and attempt.run.execution_owner == "runtime"
        and attempt.executor_type == "local_process"
        and (attempt.log_artifact_id or "").startswith("local-")
    ]


def protected(rows: Sequence[StoredLog], rules: Rules) -> set[UUID]:
    """Attempts among the rows whose logs stay whatever their age: a fixed number of queries.

    Unsettled receipts, logs already recorded, held runs, pinned tasks, the last success of a task and its newest
    ones.
    """
    attempt_ids = [row.pk for row in rows]
    kept = {pk for blocker in _blockers.values() for pk in blocker(attempt_ids)}
    kept |= set(ArtifactRetention.objects.filter(pk__in=attempt_ids).values_list("attempt_id", flat=True))
    held = holds.held(row.run_id for row in rows)
    tasks = {row.task_id: row.project_id for row in rows}
    kept_tasks, successes, newest = _of_tasks(tasks, rules)
    for row in rows:
        edge = newest.get(row.task_id)
        if (
            row.run_id in held
            or row.task_id in kept_tasks
            or row.run_id == successes.get(row.task_id)
            or (edge is not None and (row.finished_at, row.pk) >= edge)
        ):
            kept.add(row.pk)
    return kept


def hold(chosen: Sequence[Candidate], rules: Rules) -> set[UUID]:
    """Attempts among the chosen that may go still, their tasks and runs held still until the transaction ends.

    Locks in the order of the house: tasks, then runs, as whoever pins one of them takes it.
    """
    rows = list(StoredLog.objects.filter(pk__in=[one.attempt_id for one in chosen]))
    places.lock_tasks({row.task_id for row in rows})
    list(db.lock(Run.objects.filter(pk__in={row.run_id for row in rows}).order_by("pk")).values_list("pk"))
    return {row.pk for row in rows} - protected(rows, rules)


def _of_tasks(
    tasks: dict[UUID, str], rules: Rules
) -> tuple[set[UUID], dict[UUID, UUID], dict[UUID, Position]]:
    """Pinned tasks, the last success of each, and from which log on its newest ones are kept."""
    logs = StoredLog.objects.filter(task_id=OuterRef("pk")).order_by("-finished_at", "-attempt_id")
    least = {task_id: rules.keep_least(project_id, task_id) for task_id, project_id in tasks.items()}
    pinned: set[UUID] = set()
    successes: dict[UUID, UUID] = {}
    newest: dict[UUID, Position] = {}
    # One query for all tasks of one number; nearly always there is one number.
    for number in sorted(set(least.values())):
        rows = Task.objects.filter(pk__in=[pk for pk, one in least.items() if one == number]).annotate(
            success=Subquery(logs.filter(succeeded=True).values("run_id")[:1])
        )
        if number:
            nth = logs[number - 1 : number]
            rows = rows.annotate(
                edge_at=Subquery(nth.values("finished_at")),
                edge=Subquery(nth.values("attempt_id"), output_field=UUIDField()),
            )
        for row in rows.values("pk", "pinned", "success", *(("edge_at", "edge") if number else ())):
            if row["pinned"]:
                pinned.add(row["pk"])
            if row["success"] is not None:
                successes[row["pk"]] = row["success"]
            if number:
                # Fewer than that: all of them stay.
                newest[row["pk"]] = (
                    (row["edge_at"], row["edge"]) if row["edge"] is not None else (_EVER, _FIRST)
                )
    return pinned, successes, newest


_EVER = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_FIRST = UUID(int=0)


def _eligible(rules: Rules, row: StoredLog, now: datetime) -> datetime | None:
    keep = rules.keep_ms(row.project_id, row.task_id)
    return None if row.finished_at > cutoff(now, keep) else cutoff(row.finished_at, -keep)


def _candidate(attempt: RunAttempt, row: StoredLog, since: datetime) -> Candidate:
    artifact_id = attempt.log_artifact_id
    if (
        not facts.is_artifact_id(artifact_id)
        or artifact_id != row.log_artifact_id
        or attempt.finished_at is None
    ):
        raise RetentionPageInvalid
    return Candidate(
        attempt_id=attempt.pk,
        artifact_id=row.log_artifact_id,
        project_id=row.project_id,
        task_id=row.task_id,
        finished_at=attempt.finished_at,
        eligible_at=max(since, attempt.finished_at),
        bytes=row.bytes,
        files=row.files,
        position=(row.finished_at, row.pk),
    )


def in_scope(project_id: str, task_id: UUID | None) -> QuerySet[StoredLog, StoredLog]:
    """The listed logs of a project or of one of its tasks."""
    chosen = Q(project_id=project_id) if task_id is None else Q(task_id=task_id, project_id=project_id)
    return StoredLog.objects.filter(chosen)


def verify(found: Page, after: Position | None, limit: int) -> None:
    """Raises RetentionPageInvalid for a page that is too long, out of order or behind its cursor (§7.6)."""
    positions: Iterable[Position] = [candidate.position for candidate in found.candidates]
    edge = after
    for position in positions:
        if edge is not None and position <= edge:
            raise RetentionPageInvalid
        edge = position
    if len(found.candidates) > limit or (found.next is not None and edge is not None and found.next < edge):
        raise RetentionPageInvalid
