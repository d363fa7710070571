"""Carries out an action on all tasks that match, as whoever asked for it, a few seconds at a time."""

from __future__ import annotations

import time
from uuid import UUID

from django.utils import translation

from apps.core import control
from apps.core.errors import Forbidden
from apps.identity.models import IdentitySubject
from apps.identity.principals import PolicySubject
from apps.panel import bulk, task_list
from apps.projects import policy
from apps.projects.policy import Grant
from apps.tasks import batches
from apps.tasks.models import Batch

# Control jobs are short: what is left is taken up at the next pass.
BUDGET_S = 8.0
CHUNK = 20


def carry_on(_cursor: control.Cursor) -> control.Cursor | None:
    """Goes on with every batch that runs, each a chunk at a time, until the budget is spent."""
    until = time.monotonic() + BUDGET_S
    going = batches.running()
    while going and time.monotonic() < until:
        going = [batch_id for batch_id in going if chunk(batch_id)]
    return None


def chunk(batch_id: UUID) -> bool:
    """Does the next tasks of a batch; False when it is over or was stopped.

    Whoever asked for it is looked at anew for every task, and a right that is lost ends the batch.
    """
    batch = Batch.objects.filter(pk=batch_id, state=Batch.State.RUNNING).select_related("project").first()
    if batch is None:
        return False
    try:
        _grant(batch)
    except Forbidden:
        batches.finish(batch.pk, Batch.State.DENIED)
        return False
    wanted = task_list.Wanted(batch.search, show=batch.show)
    rows = task_list.wanted_tasks(batch.project_id, wanted).filter(pk__lt=batch.pk, archived_at=None)
    if batch.cursor is not None:
        rows = rows.filter(pk__gt=batch.cursor)
    found = list(rows.order_by("pk")[:CHUNK])
    if not found:
        batches.finish(batch.pk)
        return False
    wish = bulk.Wish(batch.action, batch.value, once=str(batch.pk))
    with translation.override(batch.language):
        outcomes = bulk.carry_out(lambda: _grant(batch), found, wish)
    refused = [[one.task.slug, one.task.name, one.refusal] for one in outcomes if one.refusal]
    return batches.advance(batch.pk, found[-1].pk, len(outcomes) - len(refused), refused)


def _grant(batch: Batch) -> Grant:
    """The right of whoever asked, as it is now."""
    permission = bulk.ACTIONS[batch.action].permission
    subject = PolicySubject(batch.subject_type, batch.subject_id)
    active = IdentitySubject.objects.filter(pk=subject.id, status=IdentitySubject.Status.ACTIVE).exists()
    decision = policy.decide(subject, batch.project_id, permission)
    if not active or decision.effect != "allow":
        raise Forbidden
    return Grant(subject, batch.project_id, permission, decision.fence, "panel", decision.vault)
