"""Reads of dispatch: workers, why a run waits, claims whose offer may have been lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import F, Min, Q

from apps.core import clock, pages
from apps.core.errors import InvalidInput
from apps.core.pages import Key, Page
from apps.dispatch import fence as fences
from apps.dispatch.fence import LeaseFence
from apps.dispatch.models import Node, RunDispatchLease, Worker
from apps.dispatch.services import nodes
from apps.runs.models import Run, RunEvent
from apps.tasks import placement

RECOVERABLE_MAX = 64


@dataclass(frozen=True)
class Recoverable:
    """A claim that was committed and whose attempt has not started: it may be offered again as it was."""

    run_id: UUID
    attempt_id: UUID
    lease: LeaseFence


def waiting_for(runs: Sequence[Run]) -> dict[UUID, str]:
    """Why each run waits; one query, none where nothing is queued.

    `place`: its task has none free. `worker`: nobody takes runs. `labels`: somebody does, and nobody has all the
    labels it needs. `priority`: all slots are taken, and others may come first. `retry`: it is tried again later. A
    run that is about to be taken is not in the answer.
    """
    again = {run.pk: "retry" for run in runs if run.status == "retry_wait"}
    queued = [run for run in runs if run.status == "queued"]
    if not queued:
        return again
    online = [
        (worker.available_slots, worker.labels)
        for worker in Worker.objects.filter(status="online", lease_expires_at__gt=clock.now())
    ]
    reasons = {run.pk: _reason(run, online) for run in queued}
    return again | {pk: why for pk, why in reasons.items() if why is not None}


def _reason(run: Run, online: Sequence[tuple[int, Mapping[str, str]]]) -> str | None:
    if not run.holds_place:
        return "place"
    if not online:
        return "worker"
    slots = [free for free, labels in online if placement.fits(run.requires, labels)]
    return "labels" if not slots else None if any(slots) else "priority"


@dataclass(frozen=True)
class NodeView:
    """A node with its worker places and the leases they hold; `seen_at` is its newest sign of life.

    `state`: `online`, `draining` (it takes nothing, and something still runs), `drained`; or, silent for two minutes,
    `off` where it had signed off, and `lost` where it had not, or had runs.
    """

    node: Node
    workers: list[Worker]
    leases: list[RunDispatchLease]
    seen_at: datetime
    state: str

    def carried(self, worker_id: str) -> list[RunDispatchLease]:
        """What one of its places carries."""
        return [lease for lease in self.leases if lease.worker_id == worker_id]


def page_nodes(*, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None) -> Page[NodeView]:
    """All nodes, by id; three queries."""
    found = pages.paginate(
        Node.objects.all(), [Key("id")], kind="nodes", scope={}, limit=limit, cursor=cursor
    )
    return Page(view_nodes(found.items), found.next_cursor)


def view_nodes(found: Sequence[Node]) -> list[NodeView]:
    """These nodes with all that belongs to them, in two queries; of what they carry the 1,000 oldest."""
    now, known = clock.now(), [row.pk for row in found]
    workers = list(Worker.objects.filter(node_id__in=known).order_by("pk"))
    node_of = {worker.pk: worker.node_id for worker in workers}
    held = RunDispatchLease.objects.filter(worker_id__in=list(node_of), status="leased")
    leases = list(held.select_related("run").order_by("acquired_at")[:1_000])
    views = []
    for row in found:
        own = [worker for worker in workers if worker.node_id == row.pk]
        carried = [lease for lease in leases if node_of[lease.worker_id] == row.pk]
        seen_at = max([row.last_heartbeat_at, *(worker.last_heartbeat_at for worker in own)])
        own.sort(key=lambda worker: worker.place)
        views.append(NodeView(row, own, carried, seen_at, _state(row, own, seen_at, bool(carried), now)))
    return views


def running_on(node_id: str) -> int:
    """How many runs a node still carries."""
    return RunDispatchLease.objects.filter(worker__node_id=node_id, status="leased").count()


def _state(row: Node, places: Sequence[Worker], seen_at: datetime, carries: bool, now: datetime) -> str:
    drains = row.drain_requested_at is not None
    if drains and not carries:
        return "drained"
    if seen_at > now - nodes.LOST_AFTER:
        return "draining" if drains else "online"
    return "lost" if carries or any(worker.status != "offline" for worker in places) else "off"


def page_workers(*, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None) -> Page[Worker]:
    """All workers, by id."""
    return pages.paginate(
        Worker.objects.all(), [Key("id")], kind="workers", scope={}, limit=limit, cursor=cursor
    )


def is_alive(worker: Worker, now: datetime) -> bool:
    """Whether a session of the worker shows itself."""
    return worker.status != "offline" and worker.lease_expires_at > now


def recoverable(
    now: datetime, *, after: tuple[datetime, UUID] | None = None, limit: int = RECOVERABLE_MAX
) -> list[Recoverable]:
    """Live claims of living sessions whose attempts have not started (runs.md §6.3); internal: holds raw tokens."""
    if not 1 <= limit <= RECOVERABLE_MAX:
        raise InvalidInput.field("limit", f"A whole number from 1 to {RECOVERABLE_MAX}.")
    rows = RunDispatchLease.objects.filter(
        status="leased",
        expires_at__gt=now,
        attempt__status="claimed",
        attempt__run_id=F("run_id"),
        run__execution_owner="runtime",
        run__status="dispatching",
        run__cancel_requested_at__isnull=True,
        run__queued_at__isnull=False,
        worker__session_id=F("worker_session_id"),
        worker__generation=F("worker_generation"),
        worker__status__in=["online", "draining"],
        worker__lease_expires_at__gt=now,
    )
    if after is not None:
        rows = rows.filter(Q(expires_at__gt=after[0]) | Q(expires_at=after[0], attempt_id__gt=after[1]))
    return [
        Recoverable(row.run_id, row.attempt_id, fences.of_lease(row))
        for row in rows.order_by("expires_at", "attempt_id")[:limit]
    ]


def oldest_undispatched() -> timedelta | None:
    """How long the oldest run that any worker could carry has been waiting; None where none waits.

    One that needs labels may wait for a worker that is not there: that is its task's trouble, not dispatch's.
    """
    oldest = Run.objects.filter(
        status="queued",
        execution_owner="runtime",
        holds_place=True,
        cancel_requested_at__isnull=True,
        requires=placement.ANYWHERE,
    ).aggregate(oldest=Min("queued_at"))["oldest"]
    return clock.now() - oldest if oldest else None


def start_failures(run_id: UUID, attempt_id: UUID) -> int:
    """How often an attempt was given back because nothing could be started; sessions that died do not count."""
    told = RunEvent.objects.filter(run_id=run_id, type="run.dispatch_released")
    wanted = (str(attempt_id), "start_failed")
    return sum(
        (one.get("attempt_id"), one.get("reason")) == wanted for one in told.values_list("payload", flat=True)
    )
