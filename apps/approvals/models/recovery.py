"""What becomes of actions whose process died behind the barrier (approvals.md §3.4, §3.5, §3.7)."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from apps.approvals.models.execution import LEASE, MAX_LEASE_MS, ApprovedActionExecution
from apps.core import clock, fields
from apps.core.fields import MAX_VERSION, absent, present
from apps.projects.models import Project

RECENT_MS = 300_000
FINDING = ("last_finding_mutation_id", "last_finding", "last_result_code")


class ApprovedActionRecoveryControl(models.Model):
    """Where the search for evidence stands; one per execution that crossed the barrier."""

    class Status(models.TextChoices):
        ARMED = "armed"
        LEASED = "leased"
        MANUAL_REQUIRED = "manual_required"
        RESOLVED = "resolved"

    class Finding(models.TextChoices):
        VERIFIED_SUCCEEDED = "verified_succeeded"
        VERIFIED_FAILED = "verified_failed"
        STILL_RUNNING = "still_running"
        MISSING = "missing"
        CONFLICT = "conflict"
        UNSUPPORTED = "unsupported"
        UNAVAILABLE = "unavailable"

    dispatch = models.OneToOneField(
        ApprovedActionExecution, on_delete=models.PROTECT, primary_key=True, related_name="control"
    )
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    execution_version = models.IntegerField()
    status = models.CharField(max_length=24, choices=Status)
    version = models.IntegerField(default=0)
    next_scan_at = models.DateTimeField(null=True)
    lease_owner = models.CharField(max_length=128, null=True)  # noqa: DJ001
    lease_token = models.CharField(max_length=128, null=True, editable=False)  # noqa: DJ001
    lease_expires_at = models.DateTimeField(null=True)
    finding_count = models.IntegerField(default=0)
    last_finding_mutation_id = models.CharField(max_length=64, null=True)  # noqa: DJ001
    last_finding = models.CharField(max_length=24, choices=Finding, null=True)  # noqa: DJ001
    last_result_code = models.CharField(max_length=64, null=True)  # noqa: DJ001
    last_evidence_digest = models.CharField(max_length=64, null=True)  # noqa: DJ001
    resolution_mutation_id = models.CharField(max_length=64, null=True)  # noqa: DJ001
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "approved_action_recovery_controls"
        indexes = [
            models.Index(fields=["status", "next_scan_at", "dispatch"], name="approved_recovery_due"),
            models.Index(
                fields=["project", "status", "created_at", "dispatch"], name="approved_recovery_list"
            ),
            models.Index(fields=["status", "lease_expires_at", "dispatch"], name="approved_recovery_lease"),
        ]
        constraints = [
            fields.one_of(
                "status", ["armed", "leased", "manual_required", "resolved"],
                "approved_action_recovery_status_check",
            ),
            models.CheckConstraint(
                condition=Q(execution_version__gte=1, execution_version__lte=MAX_VERSION),
                name="approved_action_recovery_execution_version_check",
            ),
            models.CheckConstraint(
                condition=Q(version__gte=0, version__lte=MAX_VERSION),
                name="approved_action_recovery_version_check",
            ),
            models.CheckConstraint(
                condition=Q(finding_count__gte=0, finding_count__lte=MAX_VERSION),
                name="approved_action_recovery_finding_count_check",
            ),
            fields.together(LEASE, "approved_action_recovery_lease_check"),
            fields.within(
                "lease_expires_at", "updated_at", MAX_LEASE_MS, "approved_action_recovery_lease_length_check"
            ),
            models.CheckConstraint(
                condition=(Q(finding_count=0) & absent(*FINDING)) | (Q(finding_count__gte=1) & present(*FINDING)),
                name="approved_action_recovery_finding_tuple_check",
            ),
            fields.one_of(
                "last_finding",
                [
                    "verified_succeeded", "verified_failed", "still_running", "missing", "conflict",
                    "unsupported", "unavailable",
                ],
                "approved_action_recovery_finding_check",
            ),
            fields.long("last_evidence_digest", 64, "approved_action_recovery_evidence_digest_check"),
            models.CheckConstraint(
                condition=(Q(status="armed") & present("next_scan_at") & absent("resolution_mutation_id", *LEASE))
                | (
                    Q(status="leased", next_scan_at=F("lease_expires_at"))
                    & present("next_scan_at", *LEASE) & absent("resolution_mutation_id")
                )
                | (
                    Q(status="manual_required", finding_count__gte=1)
                    & absent("next_scan_at", "resolution_mutation_id", *LEASE)
                )
                | (Q(status="resolved") & present("resolution_mutation_id") & absent("next_scan_at", *LEASE)),
                name="approved_action_recovery_resolution_tuple_check",
            ),
            models.CheckConstraint(
                condition=Q(created_at__gte=clock.from_ms(0), updated_at__gte=F("created_at"))
                & (Q(next_scan_at__isnull=True) | Q(next_scan_at__gt=F("updated_at"))),
                name="approved_action_recovery_timestamps_check",
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.dispatch_id} {self.status}"


class ApprovedActionRecoveryResolution(models.Model):
    """How recovery closed an execution, and on whose word; never written by a normal end."""

    class Source(models.TextChoices):
        AUTOMATIC_EVIDENCE = "automatic_evidence"
        HUMAN = "human"

    class Decision(models.TextChoices):
        CONFIRM_SUCCEEDED = "confirm_succeeded"
        CONFIRM_FAILED = "confirm_failed"
        ABANDON_UNKNOWN = "abandon_unknown"

    dispatch = models.OneToOneField(
        ApprovedActionRecoveryControl, on_delete=models.PROTECT, primary_key=True, related_name="resolution"
    )
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    execution_version = models.IntegerField()
    mutation_id = models.CharField(max_length=64)
    source = models.CharField(max_length=24, choices=Source)
    decision = models.CharField(max_length=24, choices=Decision)
    evidence_digest = models.CharField(max_length=64, null=True)  # noqa: DJ001
    reason_code = models.CharField(max_length=64)
    resolved_by_type = models.CharField(max_length=32, null=True)  # noqa: DJ001
    resolved_by_id = models.CharField(max_length=255, null=True)  # noqa: DJ001
    resolved_at = models.DateTimeField()

    class Meta:
        db_table = "approved_action_recovery_resolutions"
        indexes = [
            models.Index(fields=["project", "resolved_at", "dispatch"], name="approved_resolution_project")
        ]
        constraints = [
            models.UniqueConstraint(fields=["mutation_id"], name="approved_action_recovery_resolution_mutation"),
            models.CheckConstraint(
                condition=Q(execution_version__gte=1, execution_version__lte=MAX_VERSION),
                name="approved_action_recovery_resolution_execution_version_check",
            ),
            fields.one_of(
                "source", ["automatic_evidence", "human"], "approved_action_recovery_resolution_source_check"
            ),
            fields.one_of(
                "decision", ["confirm_succeeded", "confirm_failed", "abandon_unknown"],
                "approved_action_recovery_resolution_decision_check",
            ),
            models.CheckConstraint(
                condition=absent("resolved_by_type", "resolved_by_id")
                | (Q(resolved_by_type="user") & present("resolved_by_type", "resolved_by_id")),
                name="approved_action_recovery_resolution_actor_check",
            ),
            models.CheckConstraint(
                condition=(
                    Q(source="automatic_evidence", decision__in=["confirm_succeeded", "confirm_failed"])
                    & present("evidence_digest") & absent("resolved_by_type")
                )
                | (Q(source="human", resolved_by_type="user") & present("resolved_by_type", "resolved_by_id")),
                name="approved_action_recovery_resolution_source_tuple_check",
            ),
            fields.long("evidence_digest", 64, "approved_action_recovery_resolution_evidence_digest_check"),
            models.CheckConstraint(
                condition=Q(resolved_at__gte=clock.from_ms(0)),
                name="approved_action_recovery_resolution_resolved_check",
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.dispatch_id} {self.decision}"


class ApprovedActionRecoveryAuthorization(models.Model):
    """With what sign-in and role a person closed an execution; audit, never a permit."""

    class Assurance(models.TextChoices):
        MULTI_FACTOR = "multi_factor"
        HARDWARE = "hardware"
        LOCAL_CONSOLE = "local_console"

    dispatch = models.OneToOneField(
        ApprovedActionRecoveryResolution,
        on_delete=models.PROTECT,
        primary_key=True,
        related_name="authorization",
    )
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    mutation_id = models.CharField(max_length=64)
    resolved_by_id = models.CharField(max_length=255)
    authentication_id = models.CharField(max_length=128, editable=False)
    assurance = models.CharField(max_length=32, choices=Assurance)
    authenticated_at = models.DateTimeField()
    project_version = models.IntegerField()
    binding_version = models.IntegerField()
    authorized_at = models.DateTimeField()
    fact_digest = models.CharField(max_length=64)

    class Meta:
        db_table = "approved_action_recovery_authorizations"
        indexes = [
            models.Index(fields=["project", "authorized_at", "dispatch"], name="approved_authorization_list"),
            models.Index(
                fields=["authentication_id", "authorized_at", "dispatch"], name="approved_authorization_login"
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["mutation_id"], name="approved_action_recovery_authorization_mutation"
            ),
            fields.one_of(
                "assurance", ["multi_factor", "hardware", "local_console"],
                "approved_action_recovery_authorization_assurance_check",
            ),
            models.CheckConstraint(
                condition=Q(project_version__gte=1, project_version__lte=MAX_VERSION),
                name="approved_action_recovery_authorization_project_check",
            ),
            models.CheckConstraint(
                condition=Q(binding_version__gte=1, binding_version__lte=MAX_VERSION),
                name="approved_action_recovery_authorization_binding_check",
            ),
            models.CheckConstraint(
                condition=Q(authenticated_at__gte=clock.from_ms(0), authorized_at__gte=F("authenticated_at")),
                name="approved_action_recovery_authorization_order_check",
            ),
            fields.within(
                "authorized_at", "authenticated_at", RECENT_MS,
                "approved_action_recovery_authorization_recency_check",
            ),
            fields.long("fact_digest", 64, "approved_action_recovery_authorization_digest_check"),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.dispatch_id} {self.assurance}"
