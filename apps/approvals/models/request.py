"""What somebody asked for, who decided, and that it was used once (approvals.md §3.1)."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import pgettext_lazy

from apps.core import clock, fields
from apps.core.fields import absent, present
from apps.identity.models import SubjectType
from apps.projects.models import MAX_QUORUM, Project

DAY_MS = 86_400_000
DECISION = (
    "decision_id", "decision", "decision_reason_code", "decided_by_type", "decided_by_id", "decided_at",
)  # fmt: skip
CONSUMPTION = ("consumption_id", "dispatch_id", "consumed_by_type", "consumed_by_id", "consumed_at")


class Risk(models.TextChoices):
    LOW = "low", pgettext_lazy("risk", "Low")
    MEDIUM = "medium", pgettext_lazy("risk", "Medium")
    HIGH = "high", pgettext_lazy("risk", "High")
    CRITICAL = "critical", pgettext_lazy("risk", "Critical")


class ApprovalRequest(models.Model):
    """One exact action, bound by digests, that a person allows or refuses before `expires_at`."""

    class State(models.TextChoices):
        PENDING = "pending", pgettext_lazy("approval", "Waiting")
        APPROVED = "approved", pgettext_lazy("approval", "Approved")
        REJECTED = "rejected", pgettext_lazy("approval", "Rejected")
        CONSUMED = "consumed", pgettext_lazy("approval", "Handed over")

    class Verdict(models.TextChoices):
        APPROVED = "approved"
        REJECTED = "rejected"

    id = models.CharField(primary_key=True, max_length=64, editable=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    version = models.IntegerField(default=1)
    state = models.CharField(max_length=16, choices=State, default=State.PENDING)
    permission = models.CharField(max_length=255)
    action_type = models.CharField(max_length=64)
    action_ref = models.CharField(max_length=255)
    action_digest = models.CharField(max_length=64)
    preview_digest = models.CharField(max_length=64)
    risk = models.CharField(max_length=16, choices=Risk)
    requested_by_type = models.CharField(max_length=32, choices=SubjectType)
    requested_by_id = models.CharField(max_length=255)
    requested_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    # What the action type allowed when it was filed, in milliseconds.
    longest_life_ms = models.BigIntegerField(default=DAY_MS)
    # How many had to approve when it was filed; the project may ask for more by now, never for fewer.
    quorum = models.PositiveSmallIntegerField(default=1)
    decision_id = models.CharField(max_length=64, null=True)  # noqa: DJ001
    decision = models.CharField(max_length=16, choices=Verdict, null=True)  # noqa: DJ001
    decision_reason_code = models.CharField(max_length=64, null=True)  # noqa: DJ001
    decided_by_type = models.CharField(max_length=32, choices=SubjectType, null=True)  # noqa: DJ001
    decided_by_id = models.CharField(max_length=255, null=True)  # noqa: DJ001
    decided_at = models.DateTimeField(null=True)
    consumption_id = models.CharField(max_length=64, null=True)  # noqa: DJ001
    # No foreign key: dispatches point back.
    dispatch_id = models.CharField(max_length=64, null=True)  # noqa: DJ001
    consumed_by_type = models.CharField(max_length=32, choices=SubjectType, null=True)  # noqa: DJ001
    consumed_by_id = models.CharField(max_length=255, null=True)  # noqa: DJ001
    consumed_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "approval_requests"
        indexes = [
            models.Index(fields=["project", "state", "expires_at", "id"], name="approval_request_queue"),
            models.Index(
                F("project"), F("requested_by_type"), F("requested_by_id"), F("requested_at").desc(), F("id"),
                name="approval_request_requester",
            ),
            models.Index(
                F("project"), F("requested_at").desc(), F("id").desc(), name="approval_request_newest"
            ),
            # For jobs: what waits to be consumed or to lapse, over all projects.
            models.Index(
                fields=["expires_at", "id"], condition=Q(state__in=["pending", "approved"]),
                name="approval_request_open",
            ),
        ]  # fmt: skip
        constraints = [
            models.UniqueConstraint(fields=["decision_id"], name="approval_request_decision_uidx"),
            models.UniqueConstraint(fields=["consumption_id"], name="approval_request_consumption_uidx"),
            models.CheckConstraint(
                condition=Q(version__gte=1, version__lte=3), name="approval_request_version_check"
            ),
            fields.one_of(
                "state", ["pending", "approved", "rejected", "consumed"], "approval_request_state_check"
            ),
            fields.one_of("risk", Risk.values, "approval_request_risk_check"),
            fields.one_of("requested_by_type", SubjectType.values, "approval_request_requester_type_check"),
            fields.one_of("decided_by_type", SubjectType.values, "approval_request_decided_by_type_check"),
            fields.one_of("consumed_by_type", SubjectType.values, "approval_request_consumed_by_type_check"),
            models.CheckConstraint(
                condition=Q(requested_at__gte=clock.from_ms(0), expires_at__gt=F("requested_at")),
                name="approval_request_lifetime_check",
            ),
            fields.within(
                "expires_at", "requested_at", "longest_life_ms", "approval_request_longest_life_check"
            ),
            models.CheckConstraint(
                condition=Q(longest_life_ms__gte=1) & (~Q(action_type="run.create") | Q(longest_life_ms=DAY_MS)),
                name="approval_request_life_of_type_check",
            ),
            models.CheckConstraint(
                condition=Q(quorum__gte=1, quorum__lte=MAX_QUORUM), name="approval_request_quorum_check"
            ),
            fields.long("action_digest", 64, "approval_request_action_digest_check"),
            fields.long("preview_digest", 64, "approval_request_preview_digest_check"),
            fields.together(DECISION, "approval_request_decision_tuple_check"),
            fields.one_of("decision", ["approved", "rejected"], "approval_request_decision_value_check"),
            models.CheckConstraint(
                condition=Q(decided_at__isnull=True)
                | Q(decided_at__gte=F("requested_at"), decided_at__lt=F("expires_at")),
                name="approval_request_decision_time_check",
            ),
            fields.together(CONSUMPTION, "approval_request_consumption_tuple_check"),
            models.CheckConstraint(
                condition=Q(consumed_at__isnull=True)
                | Q(consumed_at__gte=F("decided_at"), consumed_at__lt=F("expires_at")),
                name="approval_request_consumption_time_check",
            ),
            models.CheckConstraint(
                condition=(Q(state="pending", version=1) & absent(*DECISION) & absent(*CONSUMPTION))
                | (
                    Q(state="approved", version=2, decision="approved")
                    & present(*DECISION) & absent(*CONSUMPTION)
                )
                | (
                    Q(state="rejected", version=2, decision="rejected")
                    & present(*DECISION) & absent(*CONSUMPTION)
                )
                | (
                    Q(state="consumed", version=3, decision="approved")
                    & present(*DECISION) & present(*CONSUMPTION)
                ),
                name="approval_request_state_tuple_check",
            ),
            # Nobody decides what they asked for themselves, whatever way led here (lessons.md D25).
            models.CheckConstraint(
                condition=Q(decided_by_id__isnull=True)
                | Q(decided_by_type="user") & ~Q(
                    requested_by_type=F("decided_by_type"), requested_by_id=F("decided_by_id")
                ),
                name="approval_request_decider_check",
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.id} {self.state}"


class ApprovalLapse(models.Model):
    """That an open request came to nothing by itself: expired, or what it was about has changed.

    `code` says why. The request keeps its stored state; deciding and consuming look here.
    """

    request = models.OneToOneField(
        ApprovalRequest, on_delete=models.PROTECT, primary_key=True, related_name="lapse"
    )
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    code = models.CharField(max_length=64)
    lapsed_at = models.DateTimeField()

    class Meta:
        db_table = "approval_lapses"
        indexes = [
            models.Index(F("project"), F("lapsed_at").desc(), F("request"), name="approval_lapse_project")
        ]

    def __str__(self) -> str:
        return f"{self.request_id} {self.code}"
