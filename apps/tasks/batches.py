"""Rows of actions on all tasks that match; who carries them out stands above (`apps.panel.batch_job`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db import IntegrityError
from django.db.models import F, Value
from django.utils.translation import gettext_lazy as _

from apps.audit import services as audit
from apps.core import clock, db
from apps.core.db import write_transaction
from apps.core.errors import Conflict, NotFound
from apps.projects import policy
from apps.projects.policy import Grant
from apps.tasks.models import Batch

MAX_REFUSALS = 100
KEPT = timedelta(days=7)


class BatchRunning(Conflict):
    code = "batch_running"
    message = _("An action of yours on many tasks is still going on; wait for it, or stop it.")


@dataclass(frozen=True, kw_only=True)
class BatchWish:
    """What is to be done to which tasks; texts as the list has them."""

    action: str
    value: str
    search: str
    show: str
    language: str


@write_transaction
def start_batch(grant: Grant, wish: BatchWish) -> Batch:
    """Begins one, as the grant's person; one at a time in a project. Raises BatchRunning and the policy's errors."""
    policy.confirm(grant)
    now = clock.now()
    Batch.objects.filter(
        project_id=grant.project_id, subject_id=grant.actor.id, finished_at__lt=now - KEPT
    ).delete()
    batch = Batch(
        project_id=grant.project_id, subject_type=grant.actor.type, subject_id=grant.actor.id, created_at=now,
        action=wish.action, value=wish.value, search=wish.search, show=wish.show, language=wish.language,
    )  # fmt: skip
    try:
        with db.savepoint():
            batch.save(force_insert=True)
    except IntegrityError as error:
        if not db.is_unique_violation(error):
            raise
        raise BatchRunning from None
    audit.record(
        grant.project_id,
        actor=grant.actor.pair,
        action="task.batch_started",
        subject=("batch", str(batch.pk)),
        metadata={"action": wish.action, "search": wish.search, "show": wish.show},
        origin=grant.origin,
    )
    return batch


@write_transaction
def advance(batch_id: UUID, cursor: UUID, done: int, refusals: Sequence[Sequence[str]]) -> bool:
    """Notes how far it is; False where somebody stopped it meanwhile."""
    batch = db.lock(Batch.objects.filter(pk=batch_id, state=Batch.State.RUNNING)).first()
    if batch is None:
        return False
    kept = [*batch.refusals, *(list(one) for one in refusals)][:MAX_REFUSALS]
    Batch.objects.filter(pk=batch_id).update(
        cursor=Value(cursor), done=F("done") + done, refused=F("refused") + len(refusals), refusals=kept
    )
    return True


@write_transaction
def finish(batch_id: UUID, state: str = Batch.State.DONE) -> None:
    """Ends one that runs; any other stays as it is."""
    rows = Batch.objects.filter(pk=batch_id, state=Batch.State.RUNNING)
    rows.update(state=state, finished_at=clock.now())


@write_transaction
def stop_batch(grant: Grant, batch_id: UUID) -> None:
    """Stops one of the grant's person after the task at hand; what is done stays. Raises NotFound."""
    policy.confirm(grant)
    find(grant.project_id, grant.actor.id, batch_id)
    finish(batch_id, Batch.State.STOPPED)


def find(project_id: str, subject_id: str, batch_id: UUID) -> Batch:
    """A batch of the person; raises NotFound."""
    batch = Batch.objects.filter(pk=batch_id, project_id=project_id, subject_id=subject_id).first()
    if batch is None:
        raise NotFound
    return batch


def running() -> list[UUID]:
    """The batches that go on, the oldest first."""
    return list(Batch.objects.filter(state=Batch.State.RUNNING).order_by("pk").values_list("pk", flat=True))
