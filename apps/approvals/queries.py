"""Reading approvals: what people see of them, a page at a time (approvals.md §4.7, §11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, QuerySet

from apps.approvals import values, voting
from apps.approvals.contract import RECOVERY_REQUIRED
from apps.approvals.errors import ApprovalRequestNotFound
from apps.approvals.models import (
    ApprovalRequest,
    ApprovalVote,
    ApprovedActionExecution,
    ApprovedActionPlan,
    ApprovedActionRecoveryControl,
)
from apps.approvals.records import sound
from apps.approvals.services import lapsing
from apps.approvals.services.lapsing import OPEN
from apps.approvals.standing import EXPIRED, WITHDRAWN
from apps.approvals.voting import Tally
from apps.core import clock, pages
from apps.core.errors import InvalidInput
from apps.identity.principals import PolicySubject
from apps.projects import approval_policy
from apps.projects.models import MAX_REMIND_MINUTES
from apps.projects.queries import attach

VOID = "void"
STATES = tuple(ApprovalRequest.State.values)
STATUSES = (*STATES, EXPIRED, VOID, WITHDRAWN)
EXECUTION_STATUSES = (*ApprovedActionExecution.Status.values, RECOVERY_REQUIRED)
SOONEST = (pages.moment("expires_at"), pages.Key("id"))
LATEST = (pages.moment("expires_at", descending=True), pages.Key("id", descending=True))
NEWEST = (pages.moment("requested_at", descending=True), pages.Key("id", descending=True))
OLDEST = (pages.moment("created_at"), pages.Key("pk"))
# As the requester's index has it.
NEWEST_OF_ONE = (pages.moment("requested_at", descending=True), pages.Key("id"))


@dataclass(frozen=True)
class Seen:
    """A request as it stands at a moment: `status` is one of STATUSES, `reason` says why it lapsed."""

    request: ApprovalRequest
    status: str
    reason: str | None = None


@dataclass(frozen=True)
class SeenExecution:
    """An execution as it stands at a moment, one of EXECUTION_STATUSES, with its dispatch."""

    execution: ApprovedActionExecution
    status: str


@dataclass(frozen=True)
class Filters:
    """What a list is limited to: a stored state (`live` leaves out what has lapsed), or who asked."""

    state: str | None = None
    requested_by: PolicySubject | None = None
    live: bool = False

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in STATES:
            raise InvalidInput.field("state", "Not a state of an approval.")
        if self.live and self.state not in OPEN:
            raise InvalidInput.field("live", "Only with state=pending or state=approved.")

    def scope(self, project_id: str) -> dict[str, Any]:
        """What a cursor of the list is bound to."""
        return {
            "project": project_id,
            "state": self.state,
            "requested_by": list(self.requested_by.pair) if self.requested_by else None,
            "live": self.live,
        }


def find(request_id: str) -> Seen:
    """One request with its effective status now; raises ApprovalRequestNotFound, ApprovalUnavailable.

    Says nothing about rights: whoever shows it must ask for them. Nothing is written.
    """
    row = _get(request_id)
    return seen(row, clock.now())


def examine(request_id: str) -> Seen:
    """As `find`, and looks whether an open request still is what would happen: for the page of one request."""
    row = _get(request_id)
    now = clock.now()
    found = seen(row, now)
    if found.status in OPEN and (code := lapsing.reason(row)):
        return Seen(row, VOID, code)
    return found


def tally_of(row: ApprovalRequest) -> Tally:
    """The votes about one request; three queries at most."""
    return voting.tallies(row.project_id, [row])[row.pk]


def seen(row: ApprovalRequest, now: datetime) -> Seen:
    """What a checked row comes to at a moment; its lapse must be at hand."""
    if row.state in OPEN:
        lapse = getattr(row, "lapse", None)
        if lapse is not None:
            return Seen(row, lapse.code if lapse.code in (EXPIRED, WITHDRAWN) else VOID, lapse.code)
        if row.expires_at <= now:
            return Seen(row, EXPIRED, EXPIRED)
    return Seen(row, row.state)


def project_of(request_id: str) -> str | None:
    """The project a request belongs to, None for an unknown one."""
    if not values.is_identifier(request_id, 64):
        return None
    return ApprovalRequest.objects.filter(pk=request_id).values_list("project_id", flat=True).first()


def plan_of(row: ApprovalRequest) -> ApprovedActionPlan | None:
    """The plan behind a request, if the server built it."""
    return ApprovedActionPlan.objects.filter(pk=row.action_ref, request_id=row.pk).first()


def execution_of(request_id: str) -> SeenExecution | None:
    """What became of a consumed request, with its receipt and what recovery found; or None. One query."""
    row = (
        ApprovedActionExecution.objects.filter(dispatch__approval_request=request_id)
        .select_related("dispatch__receipt", "control__resolution")
        .first()
    )
    return None if row is None else seen_execution(row, clock.now())


def seen_execution(row: ApprovedActionExecution, now: datetime) -> SeenExecution:
    """Behind the barrier with a lease that ran out, somebody has to look for evidence (§5)."""
    lost = row.status == "executing" and row.lease_expires_at is not None and row.lease_expires_at <= now
    return SeenExecution(row, RECOVERY_REQUIRED if lost else row.status)


def for_people(
    project_id: str, *, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None
) -> pages.Page[ApprovedActionRecoveryControl]:
    """What only a person can close, the longest waiting first, each with execution and dispatch; one query."""
    rows = ApprovedActionRecoveryControl.objects.filter(project=project_id, status="manual_required")
    return pages.paginate(
        rows.select_related("dispatch__dispatch"),
        OLDEST,
        kind="recovery",
        scope={"project": project_id},
        limit=limit,
        cursor=cursor,
    )


def executions(
    project_id: str, status: str, *, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None
) -> pages.Page[SeenExecution]:
    """Executions of one stored status, oldest first; one query. Raises InvalidInput for another word."""
    if status not in ApprovedActionExecution.Status.values:
        raise InvalidInput.field("status", "Not a status of an approved action.")
    rows = ApprovedActionExecution.objects.filter(project=project_id, status=status)
    found = pages.paginate(
        rows.select_related("dispatch__receipt", "control__resolution"),
        OLDEST,
        kind="executions",
        scope={"project": project_id, "status": status},
        limit=limit,
        cursor=cursor,
    )
    now = clock.now()
    return pages.Page([seen_execution(row, now) for row in found.items], found.next_cursor)


def last_approved_revision(plan: ApprovedActionPlan) -> str | None:
    """The revision of the plan's task that was approved last before this was asked for; one query."""
    approved = ApprovalRequest.objects.filter(pk=OuterRef("request_id"), decision="approved")
    earlier = ApprovedActionPlan.objects.filter(
        Exists(approved), project=plan.project_id, task_id=plan.task_id, created_at__lte=plan.created_at
    ).exclude(pk=plan.pk)
    return earlier.order_by("-created_at", "-action_ref").values_list("task_revision", flat=True).first()


def page(
    project_id: str,
    filters: Filters | None = None,
    *,
    limit: int = pages.DEFAULT_LIMIT,
    cursor: str | None = None,
) -> pages.Page[Seen]:
    """Requests of a project; two queries.

    Open ones come in the order in which they expire, decided ones the latest first; without a state the newest first.
    """
    chosen = filters or Filters()
    now = clock.now()
    rows = ApprovalRequest.objects.filter(project=project_id).select_related("lapse")
    keys = NEWEST
    if chosen.requested_by is not None:
        who = chosen.requested_by
        rows = rows.filter(requested_by_type=who.type, requested_by_id=who.id)
        keys = NEWEST_OF_ONE
    if chosen.state is not None:
        rows = rows.filter(state=chosen.state)
        if chosen.requested_by is None:
            keys = SOONEST if chosen.state in OPEN else LATEST
    if chosen.live:
        rows = rows.filter(expires_at__gt=now, lapse__isnull=True)
    found = pages.paginate(
        rows, keys, kind="approvals", scope=chosen.scope(project_id), limit=limit, cursor=cursor
    )
    attach(project_id, found.items)
    return pages.Page([seen(sound(row), now) for row in found.items], found.next_cursor)


def waiting(project_id: str, decider: PolicySubject, most: int = 10) -> list[datetime]:
    """When the live requests of others in a project expire, the soonest first, at most `most`; one query."""
    rows = _live(decider).filter(project=project_id).order_by("expires_at", "id")
    return list(rows.values_list("expires_at", flat=True)[:most])


def to_remind(project_id: str, decider: PolicySubject, most: int = 10) -> list[datetime]:
    """Of `waiting`, what expires within the minutes of the project's policy, the soonest first; two queries."""
    until = clock.now() + timedelta(minutes=approval_policy.of(project_id).remind_before_minutes)
    rows = _live(decider).filter(project=project_id, expires_at__lte=until).order_by("expires_at", "id")
    return list(rows.values_list("expires_at", flat=True)[:most])


def expiring(now: datetime, most: int = 1_000) -> int:
    """How many live requests of all projects expire within the minutes of their policy, counted up to `most`;
    two queries.
    """
    soonest = ApprovalRequest.objects.filter(
        state="pending",
        expires_at__gt=now,
        expires_at__lte=now + timedelta(minutes=MAX_REMIND_MINUTES),
        lapse__isnull=True,
    )
    found = list(soonest.order_by("expires_at", "id").values_list("project_id", "expires_at")[:most])
    policies = approval_policy.of_many({project_id for project_id, _at in found})
    return sum(
        at <= now + timedelta(minutes=policies[project_id].remind_before_minutes) for project_id, at in found
    )


def waiting_elsewhere(project_ids: Sequence[str], decider: PolicySubject, most: int = 100) -> Counter[str]:
    """How many live requests of others wait in each of some projects, counted up to `most` in all; one query."""
    rows = _live(decider).filter(project__in=project_ids).order_by("expires_at", "id")
    return Counter(rows.values_list("project_id", flat=True)[:most])


def to_start(project_id: str, task_id: UUID, most: int = 3) -> list[ApprovalRequest]:
    """Live requests to start a task, the soonest to expire first, at most `most`; one query."""
    plan = ApprovedActionPlan.objects.filter(request_id=OuterRef("pk"), task_id=str(task_id))
    rows = _live(None).filter(Exists(plan), project=project_id)
    return list(rows.order_by("expires_at", "id")[:most])


def plans_of(found: Iterable[Seen]) -> dict[str, ApprovedActionPlan]:
    """The plans behind requests, by request id, without snapshots; one query."""
    refs = {one.request.action_ref: one.request.pk for one in found}
    rows = ApprovedActionPlan.objects.filter(pk__in=refs).defer("snapshot")
    return {row.request_id: row for row in rows if refs.get(row.pk) == row.request_id}


def _live(decider: PolicySubject | None) -> QuerySet[ApprovalRequest]:
    """Pending requests that nothing has ended, without those that `decider` filed or has voted about."""
    rows = ApprovalRequest.objects.filter(state="pending", expires_at__gt=clock.now(), lapse__isnull=True)
    if decider is None:
        return rows
    said = ApprovalVote.objects.filter(request=OuterRef("pk"), voter_type=decider.type, voter_id=decider.id)
    return rows.exclude(requested_by_type=decider.type, requested_by_id=decider.id).exclude(Exists(said))


def _get(request_id: str) -> ApprovalRequest:
    row = None
    if values.is_identifier(request_id, 64):
        row = ApprovalRequest.objects.select_related("lapse", "project").filter(pk=request_id).first()
    if row is None:
        raise ApprovalRequestNotFound
    return sound(row)
