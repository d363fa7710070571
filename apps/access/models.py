"""Sign-in accounts and API tokens: how a request comes to a subject (architecture.md §5, api.md)."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Lower

from apps.access.factors.models import CodeApp, RecoveryCode
from apps.access.oidc.models import KnownIssuer, ProviderSignIn, UsedOnce
from apps.core import clock, fields
from apps.identity.models import IdentitySubject
from apps.projects.models import Project, Role

__all__ = [
    "ApiToken", "Application", "CodeApp", "Invitation", "KnownIssuer", "ProviderSignIn", "RecoveryCode", "SignIn",
    "UsedOnce", "User",
]  # fmt: skip


class UserManager(BaseUserManager["User"]):
    """Look-ups only; accounts are made by `access.services`."""

    def get_by_natural_key(self, username: str | None) -> User:
        return self.get(username__iexact=username)


class User(AbstractBaseUser):
    """The sign-in account of one identity subject. `is_superuser` = instance administrator, no project rights.

    Whether somebody may sign in at all is the subject's status and nothing here.
    """

    id = fields.IdField()
    username = models.CharField(max_length=64)
    subject = models.OneToOneField(IdentitySubject, on_delete=models.PROTECT, related_name="account")
    is_superuser = models.BooleanField(default=False)
    language = models.CharField(max_length=16, blank=True, default="")
    created_at = fields.created_at()

    USERNAME_FIELD = "username"

    objects = UserManager()

    class Meta:
        db_table = "access_users"
        constraints = [models.UniqueConstraint(Lower("username"), name="access_user_username_uidx")]

    def __str__(self) -> str:
        return self.username

    @property
    def is_staff(self) -> bool:
        """Everybody who can sign in may open the panel; what they see there is the policy's decision."""
        return True

    def has_perm(self, perm: str, obj: Any = None) -> bool:
        """Django's permission tables are not used."""
        return False

    def has_module_perms(self, app_label: str) -> bool:
        """Django's permission tables are not used."""
        return False


MAX_SESSIONS = 64


class SignIn(models.Model):
    """One live session of a person; a session without its row here is none, whatever its cookie says (§6.1).

    A row goes when its session ends. `slot` holds the bound of 64 per person and platform in the database.
    """

    class Platform(models.TextChoices):
        DESKTOP = "desktop"
        MOBILE = "mobile"

    id = fields.IdField()
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="sign_ins", db_index=False)
    platform = models.CharField(max_length=8, choices=Platform)
    slot = models.SmallIntegerField()
    digest = models.CharField(max_length=64, editable=False)
    provider = models.CharField(max_length=64)
    provider_subject = models.CharField(max_length=128)
    # Digest of the session's name at the provider, for a sign-out that comes from there.
    provider_session = models.CharField(max_length=64, blank=True, default="", editable=False)
    method = models.CharField(max_length=24)
    assurance = models.CharField(max_length=16)
    authenticated_at = models.DateTimeField()
    created_at = fields.created_at()
    last_seen_at = models.DateTimeField(default=clock.now)
    expires_at = models.DateTimeField()
    address = models.CharField(max_length=64, blank=True, default="")
    agent = models.CharField(max_length=200, blank=True, default="")

    class Meta:
        db_table = "access_sign_ins"
        indexes = [
            models.Index(fields=["provider", "provider_session"], name="access_sign_in_provider"),
            models.Index(fields=["expires_at"], name="access_sign_in_expiry"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["digest"], name="access_sign_in_digest"),
            models.UniqueConstraint(fields=["user", "platform", "slot"], name="access_sign_in_slot"),
            models.CheckConstraint(
                condition=Q(slot__gte=0, slot__lt=MAX_SESSIONS), name="access_sign_in_slot_check"
            ),
            fields.one_of("platform", ["desktop", "mobile"], "access_sign_in_platform_check"),
            fields.one_of(
                "assurance", ["single_factor", "multi_factor", "hardware"], "access_sign_in_assurance_check"
            ),
            models.CheckConstraint(
                condition=Q(expires_at__gt=F("created_at")) & Q(expires_at__gt=F("authenticated_at")),
                name="access_sign_in_lifetime",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.platform} {self.method}"


class Invitation(models.Model):
    """What a one-time link promises somebody new; the secret exists only in the answer that made it.

    Who made it stays answerable: what is promised is given only while they could give it themselves. It is closed
    once, accepted or revoked; past `expires_at` it is closed too.
    """

    id = fields.IdField()
    digest = models.CharField(max_length=64, editable=False)
    username = models.CharField(max_length=64, blank=True, default="")
    is_administrator = models.BooleanField(default=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, null=True)
    role = models.CharField(max_length=16, choices=Role, null=True)  # noqa: DJ001
    invited_by_type = models.CharField(max_length=32)
    invited_by_id = models.CharField(max_length=255)
    created_at = fields.created_at()
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True)
    accepted_by = models.ForeignKey(
        IdentitySubject, on_delete=models.PROTECT, null=True, related_name="invitation", db_index=False
    )
    revoked_at = models.DateTimeField(null=True)
    refused_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "access_invitations"
        indexes = [
            models.Index(fields=["created_at", "id"], name="access_invitation_created"),
            models.Index(fields=["invited_by_id", "created_at"], name="access_invitation_inviter"),
            models.Index(fields=["expires_at"], name="access_invitation_expiry"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["digest"], name="access_invitation_digest"),
            models.CheckConstraint(
                condition=Q(project__isnull=True, role__isnull=True)
                | Q(project__isnull=False, role__isnull=False),
                name="access_invitation_promise",
            ),
            fields.one_of("role", Role.values, "access_invitation_role_check"),
            models.CheckConstraint(
                condition=Q(expires_at__gt=F("created_at")), name="access_invitation_lifetime"
            ),
            models.CheckConstraint(
                condition=Q(accepted_at__isnull=True, accepted_by__isnull=True)
                | Q(accepted_at__isnull=False, accepted_by__isnull=False, revoked_at__isnull=True),
                name="access_invitation_closed_once",
            ),
        ]

    def __str__(self) -> str:
        return self.username or str(self.id)


class Application(models.Model):
    """What a subject that is no person is called: an API application, agent, MCP client or worker."""

    subject = models.OneToOneField(
        IdentitySubject, on_delete=models.PROTECT, primary_key=True, related_name="application"
    )
    name = models.CharField(max_length=128)
    description = models.CharField(max_length=400, blank=True, default="")
    version = models.IntegerField(default=1)
    created_at = fields.created_at()
    updated_at = models.DateTimeField(default=clock.now)

    class Meta:
        db_table = "access_applications"
        indexes = [models.Index(fields=["created_at", "subject"], name="access_application_created")]
        constraints = [fields.at_least("version", 1, "access_application_version_check")]

    def __str__(self) -> str:
        return self.name


class ApiToken(models.Model):
    """A bearer token of one subject; the secret exists only in the answer that made it.

    A `client` secret opens nothing but the exchange for `access` tokens of at most an hour, which end with it.
    After a rotation the secret before works until `previous_expires_at`.
    """

    class Kind(models.TextChoices):
        TOKEN = "token"  # noqa: S105 - a kind, no secret
        CLIENT = "client"
        ACCESS = "access"

    id = fields.IdField()
    subject = models.ForeignKey(
        IdentitySubject, on_delete=models.PROTECT, related_name="tokens", db_index=False
    )
    kind = models.CharField(max_length=8, choices=Kind, default=Kind.TOKEN)
    parent = models.ForeignKey("self", on_delete=models.PROTECT, null=True, related_name="children")
    name = models.CharField(max_length=128)
    digest = models.CharField(max_length=64, editable=False)
    previous_digest = models.CharField(max_length=64, null=True, editable=False)  # noqa: DJ001
    previous_expires_at = models.DateTimeField(null=True)
    scopes = models.JSONField(default=list)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, null=True, db_index=False)
    addresses = models.JSONField(default=list)
    created_at = fields.created_at()
    expires_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)
    last_used_address = models.CharField(max_length=64, blank=True, default="")
    refused_at = models.DateTimeField(null=True)
    refused_address = models.CharField(max_length=64, blank=True, default="")
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "access_api_tokens"
        indexes = [models.Index(fields=["subject", "created_at", "id"], name="access_api_token_subject")]
        constraints = [
            models.UniqueConstraint(fields=["digest"], name="access_api_token_digest"),
            models.UniqueConstraint(fields=["previous_digest"], name="access_api_token_previous"),
            fields.one_of("kind", ["token", "client", "access"], "access_api_token_kind_check"),
            models.CheckConstraint(
                condition=Q(kind="access", parent__isnull=False) | ~Q(kind="access") & Q(parent__isnull=True),
                name="access_api_token_parent_check",
            ),
            models.CheckConstraint(
                condition=Q(previous_digest__isnull=True, previous_expires_at__isnull=True)
                | Q(previous_digest__isnull=False, previous_expires_at__isnull=False),
                name="access_api_token_overlap_check",
            ),
            models.CheckConstraint(
                condition=Q(expires_at__isnull=True) | Q(expires_at__gt=F("created_at")),
                name="access_api_token_lifetime",
            ),
        ]

    def __str__(self) -> str:
        return self.name
