"""Processes that outlived a stop: a person asks for their end, a session of their node brings it about.

Each is known by pid and start time, as the shim saw it, and by the boot in which that was; whoever has the pid by
now is never meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from apps.audit import services as audit
from apps.core import clock, db, wakeups
from apps.core.db import write_transaction
from apps.core.streams import Actor
from apps.dispatch import cancellations
from apps.dispatch.errors import NothingEscaped
from apps.dispatch.launcher.client import Handle
from apps.dispatch.models import EscapedProcesses
from apps.projects import policy
from apps.projects.policy import Grant
from apps.runs.errors import RunNotFound
from apps.runs.machine import Change
from apps.runs.models import Run, RunAttempt
from apps.runs.services import writes
from apps.runs.services.cancel import CLUSTER

PAGE = 16


@write_transaction
def request_kill(grant: Grant, run_id: UUID) -> EscapedProcesses:
    """Asks that what escaped the newest stop of a run is killed; needs `run.stop`.

    Returns a wish that is still open unchanged. Raises RunNotFound, NothingEscaped or the policy's errors.
    """
    policy.confirm(grant, "run.stop")
    run = db.lock(Run.objects.filter(pk=run_id, project_id=grant.project_id)).first()
    if run is None:
        raise RunNotFound
    attempt, processes, handle = _newest(run)
    open_wish = EscapedProcesses.objects.filter(pk=attempt.pk, done_at__isnull=True).first()
    if open_wish is not None:
        return open_wish
    now = clock.now()
    wish, _made = EscapedProcesses.objects.update_or_create(
        pk=attempt.pk,
        defaults={
            "run_id": run.pk,
            "node_id": (attempt.worker_id or "").partition(":")[0],
            "boot_id": handle.boot_id,
            "processes": processes,
            "requested_at": now,
            "done_at": None,
            "outcome": None,
        },
    )
    pids = [one["pid"] for one in processes]
    change = Change(run, attempt)
    actor = Actor(grant.actor.type, grant.actor.id)
    change.tell("run.escaped_kill_requested", actor, {"attempt_id": str(attempt.pk), "pids": pids}, None)
    writes.write_one(change, now)
    audit.record(
        run.project_id,
        actor=(grant.actor.type, grant.actor.id),
        action="run.escaped_kill_requested",
        subject=("run", str(run.pk)),
        metadata={"attempt": str(attempt.pk), "pids": pids},
        origin=grant.origin,
    )
    wakeups.ring(CLUSTER)
    return wish


def waiting(node_id: str) -> list[EscapedProcesses]:
    """Open wishes about processes of a node, the oldest first; at most 16."""
    rows = EscapedProcesses.objects.filter(node_id=node_id, done_at__isnull=True)
    return list(rows.order_by("requested_at", "pk")[:PAGE])


@write_transaction
def settle(wish: EscapedProcesses, outcome: Mapping[str, str], owner: str) -> bool:
    """Writes down what came of a wish, by pid; False where another session was first."""
    run = db.lock(Run.objects.filter(pk=wish.run_id)).get()
    now = clock.now()
    open_wish = EscapedProcesses.objects.filter(
        pk=wish.pk, requested_at=wish.requested_at, done_at__isnull=True
    )
    if not open_wish.update(done_at=now, outcome=dict(outcome)):
        return False
    change = Change(run, RunAttempt.objects.get(pk=wish.pk))
    payload = {"attempt_id": str(wish.pk), "processes": dict(outcome)}
    change.tell("run.escaped_killed", Actor("worker", owner), payload, None)
    writes.write_one(change, now)
    return True


def _newest(run: Run) -> tuple[RunAttempt, list[dict[str, int]], Handle]:
    """What escaped the newest attempt; only what is younger than its shim can be of its tree."""
    proofs = cancellations.proofs(run.pk)
    attempt = RunAttempt.objects.filter(run=run).order_by("-attempt").first()
    if attempt is None or attempt.pk not in proofs:
        raise NothingEscaped
    try:
        handle = Handle.decode(attempt.executor_handle or "")
    except ValueError:
        raise NothingEscaped from None
    found = [dict(one) for one in proofs[attempt.pk]["escaped"] if one["start_ticks"] >= handle.start_ticks]
    if not found:
        raise NothingEscaped
    return attempt, found, handle
