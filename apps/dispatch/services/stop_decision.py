"""A person's way out where a stop did not reach its process (runs.md §7.2, §18.3)."""

from __future__ import annotations

from uuid import UUID

from apps.audit import services as audit
from apps.core import clock, db, ids, wakeups
from apps.core.db import write_transaction
from apps.core.errors import InvalidInput
from apps.core.streams import Actor
from apps.dispatch import fence as fences
from apps.dispatch import leases
from apps.dispatch.errors import StopNotOpen
from apps.dispatch.models import RunCancellationDispatch, RunDispatchLease
from apps.dispatch.services import cancellation, completion
from apps.dispatch.services.passes import not_before
from apps.projects import policy
from apps.projects.policy import Grant
from apps.runs.errors import RunEnded, RunNotFound
from apps.runs.machine import Change
from apps.runs.models import ACTIVE_ATTEMPT, Run, RunAttempt
from apps.runs.services import cancel, places, writes

DECISIONS = ("verify", "lost", "cancelled")
MAX_REASON = 200
MARKED_LOST = "RUN_MARKED_LOST"
OPEN = frozenset({"blocked", "dispatched", "retry_wait"})


@write_transaction
def resolve(grant: Grant, run_id: UUID, decision: str, reason: str) -> Run:
    """Decides about a stop that came to nothing, for `reason` (1–200 characters); needs `run.stop`.

    `verify` delivers it again, with the identity of the process looked at anew; of a blocked one also `lost` and
    `cancelled` say that the process is gone: attempt and run end as lost, or as the stop asked (`cancelled`, or
    `timed_out` where the time limit asked). Raises InvalidInput, RunNotFound, RunEnded, StopNotOpen or the
    policy's errors.
    """
    if decision not in DECISIONS:
        raise InvalidInput.field("decision", f"One of {', '.join(DECISIONS)}.")
    if not reason.strip() or len(reason) > MAX_REASON or ids.has_control(reason) or not ids.is_utf8(reason):
        raise InvalidInput.field("reason", f"1 to {MAX_REASON} characters without control characters.")
    policy.confirm(grant, "run.stop")
    task_ids = Run.objects.filter(pk=run_id, project_id=grant.project_id).values_list("task_id", flat=True)
    tasks = places.lock_tasks(task_ids)
    run = db.lock(Run.objects.filter(pk=run_id, project_id=grant.project_id)).first()
    if run is None:
        raise RunNotFound
    if run.ended:
        raise RunEnded
    row = db.lock(RunCancellationDispatch.objects.filter(pk=run_id)).first()
    if row is None or row.status not in (OPEN if decision == "verify" else ("blocked",)):
        raise StopNotOpen
    attempt = RunAttempt.objects.get(pk=row.attempt_id)
    if attempt.status not in ACTIVE_ATTEMPT:
        raise StopNotOpen
    change = Change(run, attempt)
    actor = Actor(grant.actor.type, grant.actor.id)
    told = {"attempt_id": str(attempt.pk), "decision": decision, "reason": reason}
    change.tell("run.stop_resolved", actor, told, None)
    if decision == "verify":
        cancellation.send_again(row)
    else:
        _end(change, decision, actor)
    writes.write_one(change, clock.now())
    places.refill(tasks.values())
    audit.record(
        run.project_id,
        actor=(grant.actor.type, grant.actor.id),
        action="run.stop_resolved",
        subject=("run", str(run.pk)),
        metadata={"decision": decision, "reason": reason},
        origin=grant.origin,
    )
    wakeups.ring(cancel.CLUSTER)
    return run


def _end(change: Change, decision: str, actor: Actor) -> None:
    """Ends what nobody will report any more; whoever carries it lets go with its next heartbeat."""
    run, attempt, now = change.run, change.attempt, clock.now()
    assert attempt is not None
    at = not_before(run, attempt, now)
    if decision == "lost":
        completion.lose(change, at, MARKED_LOST, actor)
    else:
        to, failure = completion.outcome(run, 1)
        change.move_attempt(to, at, actor, failure=failure)
        change.move_run(to, at, actor, failure=failure)
    held = db.lock(RunDispatchLease.objects.filter(pk=attempt.pk, status="leased"))
    leases.complete([fences.of_lease(row) for row in held], now)
