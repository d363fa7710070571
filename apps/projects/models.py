"""Projects, who may do what in them, and how the first owner comes in (projects-and-identity.md §3.1–3.3)."""

from __future__ import annotations

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
