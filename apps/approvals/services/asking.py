"""What triggers ask for: the requests of due times and calls of tasks that need an approval (docs/approvals.md).

A due time leaves a record in the scheduler's transaction; its request is filed from that, under an id that follows
from trigger and due time, so once, however often it is tried. A call of a webhook files it at once.
"""

from __future__ import annotations

import logging
from uuid import UUID

from apps.approvals import registry
from apps.approvals.errors import ApprovalUnavailable
from apps.approvals.services.creating import find
from apps.approvals.services.filing import RUN_CREATE, Wish, file_for
from apps.core.db import savepoint, write_transaction
from apps.core.errors import DomainError, Forbidden, Unavailable
from apps.identity.models import IdentitySubject
from apps.identity.principals import PolicySubject
from apps.runs.models import Skip
from apps.runs.services import door
from apps.triggers import asking
from apps.triggers.asking import Firing
from apps.triggers.models import Trigger

PAGE = 32
ORIGIN = "trigger"
TRIGGER_DELETED = "trigger_deleted"

logger = logging.getLogger("qinglong.approvals")


class RequesterDisabled(Forbidden):
    code = "requester_disabled"


def file_firing(firing: Firing) -> bool:
    """Files the request of one firing as who its trigger acts for; whether it was there already.

    It lives as long as the action type allows: nobody waits at night. Joins the caller's transaction. Raises what
    `filing.file_for` raises, and RequesterDisabled.
    """
    subject = PolicySubject(*firing.acts_for)
    if IdentitySubject.objects.filter(pk=subject.id, status=IdentitySubject.Status.DISABLED).exists():
        raise RequesterDisabled
    kind = registry.find(RUN_CREATE)
    wish = Wish(
        firing.request_id,
        str(firing.task_id),
        input=firing.input,
        expires_in_ms=kind.longest_life_ms,
    )
    return file_for(subject, firing.project_id, wish, origin=ORIGIN).existing


def file_due_page() -> bool:
    """Files the requests of one page of due times, the first first; whether there may be more.

    One that cannot be filed says why on its record. One that storage refuses is tried again.
    """
    found = list(Skip.objects.filter(filing=door.TO_FILE).order_by("id").values_list("pk", flat=True)[:PAGE])
    for skip_id in found:
        try:
            file_due(skip_id)
        except DomainError as error:
            logger.warning("the request of a due time could not be filed yet: %s", error.code)
    return len(found) == PAGE


@write_transaction
def file_due(skip_id: UUID) -> str | None:
    """Files the request of one due time and settles its record: `filed`, or the code of what kept it from that.

    Returns that; None where somebody else did it. Raises what storage raises.
    """
    skip = Skip.objects.filter(pk=skip_id, filing=door.TO_FILE).first()
    if skip is None:
        return None
    trigger = Trigger.objects.filter(pk=skip.trigger_id).first() if skip.trigger_id else None
    code = TRIGGER_DELETED if trigger is None else _file(trigger, str(skip.approval_id))
    return code if door.settle_filing(skip_id, code) else None


def _file(trigger: Trigger, request_id: str) -> str:
    if find(request_id) is not None:
        return door.FILED
    try:
        with savepoint():
            file_firing(asking.of(trigger, request_id, trigger.input))
    except (Unavailable, ApprovalUnavailable):
        raise
    except DomainError as error:
        return error.code
    return door.FILED
