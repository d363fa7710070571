"""Projects, who may do what in them, and how the first owner comes in (projects-and-identity.md §3.1–3.3)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from django.db import models
from django.db.models import F, Q

from apps.core import fields
from apps.identity.models import SubjectType


class Role(models.TextChoices):
    OWNER = "owner"
    ADMIN = "admin"
    OPERATOR = "operator"
    VIEWER = "viewer"


class Project(models.Model):
    """What tasks, runs, secrets and approvals belong to. An archived one can only be read."""

    class Status(models.TextChoices):
        ACTIVE = "active"
        ARCHIVED = "archived"

    id = models.CharField(primary_key=True, max_length=128, editable=False)
    name = models.CharField(max_length=255)
    slug = models.CharField(max_length=128)
    status = models.CharField(max_length=16, choices=Status, default=Status.ACTIVE)
    version = models.IntegerField(default=1)
    created_at = fields.created_at()
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "projects"
        constraints = [
            models.UniqueConstraint(fields=["slug"], name="projects_slug_uidx"),
            fields.one_of("status", ["active", "archived"], "projects_status_check"),
            fields.at_least("version", 1, "projects_version_check"),
            fields.not_before("updated_at", "created_at", "projects_updated_at_check"),
        ]

    def __str__(self) -> str:
        return self.name


class ProjectRoleBinding(models.Model):
    """One version of a subject's role in a project; the highest version counts, and none is ever changed."""

    class State(models.TextChoices):
        ACTIVE = "active"
        REVOKED = "revoked"

    id = fields.IdField()
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="bindings", db_index=False)
    subject_type = models.CharField(max_length=32, choices=SubjectType)
    subject_id = models.CharField(max_length=255)
    version = models.IntegerField()
    state = models.CharField(max_length=16, choices=State)
    role = models.CharField(max_length=16, choices=Role, null=True)  # noqa: DJ001
    mutation_id = models.CharField(max_length=64)
    changed_by_type = models.CharField(max_length=32, choices=SubjectType)
    changed_by_id = models.CharField(max_length=255)
    created_at = fields.created_at()

    class Meta:
        db_table = "project_role_bindings"
        indexes = [
            models.Index(
                "subject_type",
                "subject_id",
                "project",
                F("version").desc(),
                name="project_role_binding_subject",
            ),
            models.Index(fields=["project", "created_at", "id"], name="project_role_binding_history"),
        ]
        constraints = [
            # Read backwards it serves the hot authorization read of the current binding.
            models.UniqueConstraint(
                fields=["project", "subject_type", "subject_id", "version"],
                name="project_role_binding_version",
            ),
            models.UniqueConstraint(fields=["project", "mutation_id"], name="project_role_binding_mutation"),
            fields.one_of("subject_type", SubjectType.values, "project_role_binding_subject_check"),
            fields.one_of("changed_by_type", SubjectType.values, "project_role_binding_by_check"),
            fields.one_of("role", Role.values, "project_role_binding_role_check"),
            fields.at_least("version", 1, "project_role_binding_version_ck"),
            models.CheckConstraint(
                condition=Q(state="active", role__isnull=False) | Q(state="revoked", role__isnull=True),
                name="project_role_binding_state_check",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.subject_id} {self.role or self.state} v{self.version}"


# Who may ever start alone what needs an approval, or decide: the roles that have `run.start` and `approval.decide`.
EXEMPT = (Role.OWNER, Role.ADMIN)
BREAK_GLASS = (Role.OWNER, Role.ADMIN, Role.OPERATOR)
MAX_QUORUM = 5
MAX_DECIDERS = 100
MAX_REMIND_MINUTES = 1_440


def _subsets(names: Iterable[str]) -> list[str]:
    """Every selection of the names as it is stored: in their order, with commas."""
    every = [str(name) for name in names]
    chosen = [combinations(every, size) for size in range(len(every) + 1)]
    return [",".join(some) for of_size in chosen for some in of_size]


class ProjectApprovalPolicy(models.Model):
    """How a project decides about what needs an approval; without a row the defaults hold, as version 0.

    Roles are stored as `owner,admin`, in this order; empty is none. `decider_people` names accounts by subject id.
    """

    project = models.OneToOneField(Project, on_delete=models.PROTECT, primary_key=True, related_name="+")
    version = models.IntegerField(default=1)
    quorum = models.PositiveSmallIntegerField(default=1)
    decider_roles = models.CharField(max_length=32, default="owner,admin", blank=True)
    decider_people = models.JSONField(default=list)
    exempt_roles = models.CharField(max_length=32, default="", blank=True)
    break_glass_roles = models.CharField(max_length=32, default="", blank=True)
    remind_before_minutes = models.PositiveIntegerField(default=30)
    changed_by_type = models.CharField(max_length=32, choices=SubjectType)
    changed_by_id = models.CharField(max_length=255)
    created_at = fields.created_at()
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "project_approval_policies"
        constraints = [
            fields.at_least("version", 1, "project_approval_policy_version"),
            models.CheckConstraint(
                condition=Q(quorum__gte=1, quorum__lte=MAX_QUORUM), name="project_approval_policy_quorum"
            ),
            fields.one_of("decider_roles", _subsets(EXEMPT), "project_approval_policy_deciders"),
            fields.one_of("exempt_roles", _subsets(EXEMPT), "project_approval_policy_exempt"),
            fields.one_of("break_glass_roles", _subsets(BREAK_GLASS), "project_approval_policy_glass"),
            models.CheckConstraint(
                condition=Q(remind_before_minutes__gte=0, remind_before_minutes__lte=MAX_REMIND_MINUTES),
                name="project_approval_policy_remind",
            ),
            fields.one_of("changed_by_type", SubjectType.values, "project_approval_policy_changed_by"),
            fields.not_before("updated_at", "created_at", "project_approval_policy_updated"),
        ]

    def __str__(self) -> str:
        return f"{self.project_id} v{self.version}"


class ProjectOwnerBootstrapChallenge(models.Model):
    """A one-time, short-lived right to become the first owner; only the digest of its token is kept."""

    id = fields.IdField()
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="challenges", db_index=False)
    version = models.IntegerField()
    challenge_id = models.CharField(max_length=22)
    token_digest = models.CharField(max_length=64)
    issued_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    consumed_at = models.DateTimeField(null=True)
    claimed_subject_type = models.CharField(max_length=32, choices=SubjectType, null=True)  # noqa: DJ001
    claimed_subject_id = models.CharField(max_length=255, null=True)  # noqa: DJ001

    class Meta:
        db_table = "project_owner_bootstrap_challenges"
        constraints = [
            models.UniqueConstraint(fields=["project", "version"], name="project_owner_bootstrap_version"),
            models.UniqueConstraint(fields=["challenge_id"], name="project_owner_bootstrap_challenge_id"),
            fields.at_least("version", 1, "project_owner_bootstrap_version_check"),
            models.CheckConstraint(
                condition=Q(expires_at__gt=F("issued_at")), name="project_owner_bootstrap_lifetime_check"
            ),
            fields.not_before("consumed_at", "issued_at", "project_owner_bootstrap_consumed_check"),
            fields.one_of(
                "claimed_subject_type", SubjectType.values, "project_owner_bootstrap_subject_check"
            ),
            models.CheckConstraint(
                condition=Q(
                    consumed_at__isnull=True,
                    claimed_subject_type__isnull=True,
                    claimed_subject_id__isnull=True,
                )
                | Q(
                    consumed_at__isnull=False,
                    claimed_subject_type__isnull=False,
                    claimed_subject_id__isnull=False,
                ),
                name="project_owner_bootstrap_claim_tuple",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.project_id} v{self.version}"
