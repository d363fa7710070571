"""Local sign-in: a name and a password stand for an account, the account for an active subject."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.backends import BaseBackend
from django.contrib.auth.hashers import make_password
from django.http import HttpRequest

from apps.access.models import User
from apps.access.oidc import rules
from apps.access.queries import find_account
from apps.identity.queries import resolve_authentication_subject

PROVIDER = "local"


class LocalBackend(BaseBackend):
    """Argon2 passwords. The binding `local`/account id is resolved on each request (§6.4.7)."""

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **credentials: Any,
    ) -> User | None:
        """The account, or None; costs one hash whatever was wrong."""
        if not username or not password:
            return None
        user = find_account(username)
        if user is None:
            make_password(password)
            return None
        return user if user.check_password(password) and _may_sign_in(user) else None

    def get_user(self, user_id: Any) -> None:
        """Nobody: sessions are found in the list of live ones (`access.middleware`)."""
        return None


def _may_sign_in(user: User) -> bool:
    if not rules.may_come_in(user.username, PROVIDER):
        return False
    subject = resolve_authentication_subject(PROVIDER, str(user.id))
    return subject is not None and subject.id == user.subject_id
