"""The list of tasks: searched, in the order of a column, with what a row shows, in a fixed number of queries.

Nothing is counted and nothing is sorted that an index does not hold in order. The orders by next and by last run
have two parts: tasks that have such a time, then the others, newest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Lower

from apps.core import canonical, pages
from apps.panel import schedules
from apps.projects.queries import attach
from apps.runs.models import LastEnd, Run, RunStatus
from apps.tasks import queries as tasks
from apps.tasks import search
from apps.tasks.models import SavedView, Task
from apps.tasks.queries import NEWEST

HISTORY = 10
# The order of 2.x: pinned first, then enabled ones, then the newest.
USUAL = (
    pages.Key("pinned", descending=True),
    pages.Key("enabled", descending=True),
    pages.moment("created_at", descending=True),
    pages.identifier(descending=True),
)
_BADLY = ("failed", "timed_out", "lost")
_STATUS_WORDS = {
    "stopped": ("cancelled",), "timeout": ("timed_out",), "failing": _BADLY, "ok": ("succeeded",),
    "starting": ("dispatching",), "waiting": ("queued",),
}  # fmt: skip


@dataclass(frozen=True)
class Bit:
    """One run in a row's history."""

    pk: UUID
    status: str
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def at(self) -> datetime | None:
        """When it was over, else when it was made."""
        return self.finished_at or self.created_at


@dataclass(frozen=True)
class TaskRow:
    """A task; `history` holds its newest runs, oldest first; `current` the run that has its place."""

    task: Task
    history: Sequence[Bit]
    current: Run | None
    schedule: schedules.Outlook
    address: str = ""

    @property
    def statuses(self) -> list[str]:
        """The states of the history, for its bars."""
        return [bit.status for bit in self.history]

    @property
    def last(self) -> Bit | None:
        """The newest run."""
        return self.history[-1] if self.history else None

    @property
    def last_end(self) -> Bit | None:
        """The newest run that has ended."""
        return next((bit for bit in reversed(self.history) if bit.finished_at or bit.status == "lost"), None)


@dataclass(frozen=True)
class Wanted:
    """What a page of the list is asked for. `show` is empty, `enabled`, `disabled` or `archived`."""

    search: str = ""
    order: str = SavedView.Order.USUAL
    show: str = ""

    def scope(self, project_id: str) -> dict[str, Any]:
        """What a cursor is bound to."""
        return {"project": project_id, "search": self.search, "order": self.order, "show": self.show}


def page(
    project_id: str, wanted: Wanted, cursor: str | None = None, *, address: str = ""
) -> pages.Page[TaskRow]:
    """A page of rows; five queries, six where the first part of an order ends within it.

    `address` is where the pages of a task lie, with `--t--` for the task: working out each would cost more than
    reading the rows.
    """
    found = _page(project_id, wanted, cursor)
    attach(project_id, found.items)
    ids = [task.pk for task in found.items]
    history, current, outlook = histories(ids), holders(ids), schedules.outlooks(ids)
    rows = [
        TaskRow(
            task,
            history.get(task.pk, ()),
            current.get(task.pk),
            outlook.get(task.pk, schedules.NONE),
            address.replace("--t--", str(task.pk) if task.archived_at else task.slug),
        )
        for task in found.items
    ]
    return pages.Page(rows, found.next_cursor)


def wanted_tasks(project_id: str, wanted: Wanted) -> QuerySet[Task]:
    """All tasks that match, in no order; for the list and for what is done to all of them."""
    filters = tasks.Filters(
        enabled={"enabled": True, "disabled": False}.get(wanted.show), archived=wanted.show == "archived"
    )
    rows = tasks.filtered(Task.objects.filter(project_id=project_id), filters)
    above: Mapping[str, search.Condition] = {
        "schedule": schedules.matching,
        "status": lambda word: _status(project_id, word),
    }
    return search.matching(rows, search.parse(wanted.search), above)


def _page(project_id: str, wanted: Wanted, cursor: str | None) -> pages.Page[Task]:
    rows, scope = wanted_tasks(project_id, wanted), wanted.scope(project_id)
    down = wanted.order.startswith("-")
    match wanted.order.removeprefix("-"):
        case "name":
            rows = rows.annotate(folded=Lower("name"))
            keys = (pages.Key("folded", descending=down), pages.identifier(descending=down))
            return pages.paginate(rows, keys, kind="panel.tasks", scope=scope, cursor=cursor)
        case "last":
            # The usual way round is the newest first.
            keys = (pages.moment("at", descending=not down), pages.identifier(descending=not down))
            ended = rows.filter(last_end__project_id=project_id).annotate(at=F("last_end__finished_at"))
            return _in_two_parts(ended, keys, rows.filter(last_end=None), scope, cursor)
        case "next":
            keys = (pages.moment("at", descending=down), pages.identifier(descending=down))
            having, others = schedules.by_next_fire(project_id, rows)
            return _in_two_parts(having, keys, others, scope, cursor)
    return pages.paginate(rows, USUAL, kind="panel.tasks", scope=scope, cursor=cursor)


def _in_two_parts(
    having: QuerySet[Task],
    keys: Sequence[pages.Key],
    others: QuerySet[Task],
    scope: Mapping[str, Any],
    cursor: str | None,
    limit: int = pages.DEFAULT_LIMIT,
) -> pages.Page[Task]:
    """Pages through `having` in the order of `keys`, then through `others`, the newest first."""
    bound = canonical.digest({"scope": dict(scope), "limit": limit})
    part: int = 0
    position: list[Any] = []
    if cursor:
        part, *position = pages.decode(cursor, "panel.tasks", bound, (pages.Key("part"), *keys))
    found: list[Task] = []
    places: list[tuple[int, Sequence[pages.Key]]] = []
    for number, (rows, order) in enumerate(((having, keys), (others, NEWEST))):
        if number < part or len(found) > limit:
            continue
        rest = rows.filter(pages.after(order, position)) if number == part and position else rows
        by = [F(key.name).desc() if key.descending else F(key.name).asc() for key in order]
        more = list(rest.order_by(*by)[: limit + 1 - len(found)])
        found += more
        places += [(number, order)] * len(more)
    if len(found) <= limit:
        return pages.Page(found, None)
    number, order = places[limit - 1]
    return pages.Page(
        found[:limit], pages.encode("panel.tasks", bound, [number, *pages.place(found[limit - 1], order)])
    )


def _status(project_id: str, word: str) -> Q | Exists:
    """Tasks by what they do now, or by how their last run ended; an unknown word finds nothing."""
    word = word.lower()
    if word in ("enabled", "disabled"):
        return Q(enabled=word == "enabled")
    holding = Run.objects.filter(task_id=OuterRef("pk"), holds_place=True)
    if word == "idle":
        return ~Q(Exists(holding)) & Q(enabled=True)
    statuses = _STATUS_WORDS.get(word, (word,))
    known = [status for status in statuses if status in RunStatus.values]
    if not known:
        return Q(pk__in=())
    if known[0] in ("queued", "dispatching", "running", "waiting_approval", "retry_wait"):
        return Exists(Run.objects.filter(task_id=OuterRef("pk"), holds_place=True, status__in=known))
    ended = LastEnd.objects.filter(project_id=project_id, status__in=known).values("task_id")
    found = Q(pk__in=ended)
    if "lost" in known:
        lost = Run.objects.filter(project_id=project_id, status="lost").order_by("-created_at", "-id")
        found |= Q(pk__in=list(lost.values_list("task_id", flat=True)[:1000]))
    return found


def histories(task_ids: Sequence[UUID], limit: int = HISTORY) -> dict[UUID, list[Bit]]:
    """The newest runs of each task, oldest first: one statement that seeks in one index once per task.

    A window over all runs would read them all, and SQLite has no LATERAL; a union of limited selects is the
    same on both engines.
    """
    if not task_ids:
        return {}
    columns = "task_id, id, status, created_at, started_at, finished_at"
    one = f"SELECT {columns} FROM runs WHERE task_id = %s ORDER BY created_at DESC, id DESC LIMIT {limit:d}"
    sql = " UNION ALL ".join(f"SELECT * FROM ({one}) AS t{number}" for number in range(len(task_ids)))
    params = [Task._meta.pk.get_db_prep_value(task_id, connection) for task_id in task_ids]
    uuid = Task._meta.pk.to_python
    found: dict[UUID, list[Bit]] = {}
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        for task_id, run_id, status, *times in cursor.fetchall():
            created, started, finished = (_moment(value) for value in times)
            bit = Bit(uuid(run_id), status, created, started, finished)
            found.setdefault(uuid(task_id), []).append(bit)
    return {task_id: bits[::-1] for task_id, bits in found.items()}


def _moment(value: datetime | str | None) -> datetime | None:
    """A time as the engine gave it: SQLite knows none and keeps texts in UTC."""
    if value is None or (isinstance(value, datetime) and value.tzinfo):
        return value
    return (datetime.fromisoformat(value) if isinstance(value, str) else value).replace(tzinfo=UTC)


def holders(task_ids: Iterable[UUID]) -> dict[UUID, Run]:
    """The run of each task that runs or is next to run."""
    found: dict[UUID, Run] = {}
    for run in Run.objects.filter(task_id__in=list(task_ids), holds_place=True).order_by("-id")[:1000]:
        known = found.get(run.task_id)
        if known is None or (run.status == "running" and known.status != "running"):
            found[run.task_id] = run
    return found
