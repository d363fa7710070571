"""The one door to a task that needs an approval, whoever comes (docs/approvals.md, upper-floors.md §4.7).

A run of such a task is queued by an approval that was consumed for exactly this start, or by a person whose role the
project's policy lets start alone and who says that they mean it. The database refuses every other one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.utils.translation import gettext_lazy as _

from apps.core import canonical, clock, ids, participants
from apps.core.errors import InvalidInput
from apps.identity.principals import PolicySubject
from apps.projects import approval_policy, policy
from apps.projects.errors import ApprovalRequired
from apps.projects.policy import Grant
from apps.runs.models import AloneStart, Skip, SkipReason
from apps.tasks.models import Task

MAX_REASON = 500
START = "run.start"
# Noted with a record's id for each due time that waits for its request to be filed.
ASKED = "run.to_be_asked"
RESERVED = "trigger:"
TO_FILE, FILED = "due", "filed"


@dataclass(frozen=True)
class Alone:
    """That a person means to start a task alone that needs an approval; without it nobody does.

    With a `reason` the glass is broken. Views make one for a session and for a token whose scopes name `run.start`.
    Raises InvalidInput for a reason that is no line of 1 to 500 characters.
    """

    reason: str | None = None

    def __post_init__(self) -> None:
        if self.reason is None:
            return
        text = self.reason.strip()
        if not ids.is_text_id(text, MAX_REASON):
            raise InvalidInput.field("reason", _("One line of 1 to 500 characters."))
        object.__setattr__(self, "reason", text)


@dataclass(frozen=True)
class Approved:
    """A consumed approval as the evidence for a start (approvals.md §6): whose request it was, and of which moment.

    Its run waits for a place even where the task skips: nobody's approval is used up for nothing.
    """

    request_id: str
    requested_by: PolicySubject
    task_revision: str
    at: datetime


@dataclass(frozen=True)
class Claim:
    """A start with which somebody stands at the door: `key` and `digest` are those of the start."""

    grant: Grant
    task: Task
    key: str | None
    digest: str
    approved: Approved | None
    alone: Alone | None


Evidence = Callable[[Claim], bool]
_evidence: list[Evidence] = []


def register(evidence: Evidence) -> None:
    """Who can tell whether an approval was consumed for exactly this start; without one none is believed."""
    if evidence not in _evidence:
        _evidence.append(evidence)


def admit(claim: Claim) -> AloneStart | None:
    """Lets a start in, with the record that goes before its run where a person starts alone.

    Inside the transaction that holds task and project. No statement for a task that needs no approval. Raises
    ApprovalRequired.
    """
    if not claim.task.requires_approval:
        return None
    if claim.approved is not None:
        if not any(knows(claim) for knows in _evidence):
            raise refusal(claim.task)
        return None
    if claim.alone is None or claim.grant.actor.type != "user":
        raise refusal(claim.task)
    found = approval_policy.of(claim.task.project_id)
    role = approval_policy.role_of(claim.grant.actor, claim.task.project_id)
    reason = claim.alone.reason
    if role is None:
        raise refusal(claim.task)
    if reason is not None and role in found.break_glass_roles:
        return _alone(claim, AloneStart.Kind.BREAK_GLASS, role, found.version, reason)
    if reason is None and role in found.exempt_roles:
        return _alone(claim, AloneStart.Kind.EXEMPT, role, found.version)
    raise refusal(claim.task)


def refusal(task: Task) -> ApprovalRequired:
    """What a start of the task is answered with: what is needed, and where it can be asked for."""
    return policy.to_be_asked(task.project_id, START, START)


def ways(subject: PolicySubject, project_id: str) -> frozenset[str]:
    """How somebody could start a task alone that needs an approval: kinds of AloneStart; two queries, for pages."""
    if subject.type != "user":
        return frozenset()
    found = approval_policy.of(project_id)
    role = approval_policy.role_of(subject, project_id)
    kinds = {
        str(AloneStart.Kind.EXEMPT): found.exempt_roles,
        str(AloneStart.Kind.BREAK_GLASS): found.break_glass_roles,
    }
    return frozenset(kind for kind, roles in kinds.items() if role in roles)


def to_be_asked(
    task: Task, *, trigger_type: str, trigger_id: UUID, actor_id: str, due: datetime, now: datetime
) -> Skip:
    """The record of a due time whose start needs an approval, not stored yet; the request for it is still to be filed.

    It is filed under an id that follows from trigger and due time, so once.
    """
    skip = Skip(
        project_id=task.project_id,
        task=task,
        reason=SkipReason.APPROVAL_REQUIRED,
        trigger_type=trigger_type,
        trigger_id=trigger_id,
        triggered_by_type="system",
        triggered_by_id=actor_id,
        scheduled_for=due,
        approval_id=request_id(trigger_id, str(clock.to_ms(due))),
        filing=TO_FILE,
        created_at=now,
    )
    participants.note(ASKED, skip.pk)
    return skip


def request_id(trigger_id: UUID, occasion: str) -> str:
    """The id of the request for one firing of a trigger; no caller can choose one that begins like this."""
    digest = canonical.domain_digest("qinglong.trigger-approval.v1", f"{trigger_id}:{occasion}")
    return f"{RESERVED}{digest[:48]}"


def settle_filing(skip_id: UUID, code: str) -> bool:
    """Writes down that the request was filed, or what kept it from that; False where somebody else did it before."""
    values = {"filing": FILED} if code == FILED else {"filing": code[:64], "approval_id": None}
    return Skip.objects.filter(pk=skip_id, filing=TO_FILE).update(**values) == 1


def alone_starts(project_id: str, kind: str, since: datetime, most: int = 10) -> list[AloneStart]:
    """What people started alone since a moment, the latest first, with task and run; one query."""
    rows = AloneStart.objects.filter(project=project_id, kind=kind, created_at__gte=since)
    return list(rows.select_related("task", "run").order_by("-created_at", "run")[:most])


def _alone(claim: Claim, kind: str, role: str, version: int, reason: str = "") -> AloneStart:
    return AloneStart(
        project_id=claim.task.project_id,
        task_id=claim.task.pk,
        kind=kind,
        role=role,
        started_by_id=claim.grant.actor.id,
        reason=reason,
        policy_version=version,
    )


def started_alone(run_ids: Iterable[UUID]) -> set[UUID]:
    """Those of the runs that a person started alone; one query."""
    return set(AloneStart.objects.filter(pk__in=list(run_ids)).values_list("pk", flat=True))
