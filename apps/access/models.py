"""Sign-in accounts and API tokens: how a request comes to a subject (architecture.md §5, api.md)."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Lower

from apps.core import fields
from apps.identity.models import IdentitySubject
from apps.projects.models import Project


class UserManager(BaseUserManager["User"]):
    """Look-ups only; accounts are made by `access.services`."""

    def get_by_natural_key(self, username: str | None) -> User:
        return self.get(username__iexact=username)


class User(AbstractBaseUser):
    """The sign-in account of one identity subject. `is_superuser` = instance administrator, no project rights."""

    id = fields.IdField()
    username = models.CharField(max_length=64)
    subject = models.OneToOneField(IdentitySubject, on_delete=models.PROTECT, related_name="account")
    is_active = models.BooleanField(default=True)
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
        return self.is_active

    def has_perm(self, perm: str, obj: Any = None) -> bool:
        """Django's permission tables are not used."""
        return False

    def has_module_perms(self, app_label: str) -> bool:
        """Django's permission tables are not used."""
        return False


class ApiToken(models.Model):
    """A bearer token of one subject; the secret exists only in the answer that made it."""

    id = fields.IdField()
    subject = models.ForeignKey(
        IdentitySubject, on_delete=models.PROTECT, related_name="tokens", db_index=False
    )
    name = models.CharField(max_length=128)
    digest = models.CharField(max_length=64, editable=False)
    scopes = models.JSONField(default=list)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, null=True, db_index=False)
    created_at = fields.created_at()
    expires_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "access_api_tokens"
        indexes = [models.Index(fields=["subject", "created_at", "id"], name="access_api_token_subject")]
        constraints = [
            models.UniqueConstraint(fields=["digest"], name="access_api_token_digest"),
            models.CheckConstraint(
                condition=Q(expires_at__isnull=True) | Q(expires_at__gt=F("created_at")),
                name="access_api_token_lifetime",
            ),
        ]

    def __str__(self) -> str:
        return self.name
