"""Who a request comes from: a bearer token or the panel's session (api.md "Credentials")."""

from __future__ import annotations

import hmac
import re
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from rest_framework import authentication, exceptions, permissions
from rest_framework.request import Request

from apps.access import services
from apps.access.errors import CsrfFailed
from apps.access.models import ApiToken, SignIn, User
from apps.access.scopes import Credential
from apps.core import canonical, clock
from apps.core.errors import Unauthenticated
from apps.identity import queries as identity
from apps.identity.principals import Assurance, PolicySubject, Principal

_TOKEN = re.compile(r"ql3t_[A-Za-z0-9_-]{43}")
_END_OF_TIME = clock.from_ms(253_402_300_799_000)


class Denied(permissions.BasePermission):
    """What a view may that is no Endpoint: nothing. Here, as DRF loads it before it can load views."""

    def has_permission(self, request: Request, view: Any) -> bool:
        return False


class TokenAuthentication(authentication.BaseAuthentication):
    """`Authorization: Bearer ql3t_…`; token and subject in one query, checked anew on each request."""

    def authenticate(self, request: Request) -> tuple[User | None, Credential] | None:
        """None without a bearer header; raises Unauthenticated for one that is not good now."""
        scheme, _, secret = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        secret = secret.strip()
        if _TOKEN.fullmatch(secret) is None:
            raise Unauthenticated
        digest = canonical.sha256(secret)
        token = ApiToken.objects.select_related("subject__account").filter(digest=digest).first()
        if token is None or not hmac.compare_digest(token.digest, digest):
            raise Unauthenticated
        now = clock.now()
        user = _holder(token, now)
        services.note_use(token, now)
        request.principal = Principal(  # type: ignore[attr-defined]
            PolicySubject(token.subject.type, token.subject.id),
            f"token:{token.id}",
            token.created_at,
            token.expires_at or _END_OF_TIME,
            Assurance.SERVICE,
        )
        return user, Credential(
            "token", frozenset(token.scopes), token.project_id, token.id, token.expires_at
        )

    def authenticate_header(self, request: Request) -> str:
        """What a 401 asks for."""
        return "Bearer"


def _holder(token: ApiToken, now: datetime) -> User | None:
    """The account behind a token, if there is one; raises Unauthenticated when anything on the way is off."""
    row = token.subject
    subject = identity.checked(row.type, row.id, row.status, row.version)
    user: User | None = getattr(row, "account", None)
    dead = token.revoked_at is not None or (token.expires_at is not None and token.expires_at <= now)
    if dead or subject.status != "active":
        raise Unauthenticated
    return user


class SessionAuthentication(authentication.SessionAuthentication):
    """The panel's cookie; unsafe methods need the CSRF token."""

    def authenticate(self, request: Request) -> tuple[User, Credential] | None:
        """None for nobody; raises PrincipalExpired, CsrfFailed and DirectoryUnavailable."""
        found = services.session_of(request._request)
        if found is None:
            return None
        principal = principal_of(found, request._request)
        principal.require_active()
        self.enforce_csrf(request)
        request.principal = principal  # type: ignore[attr-defined]
        return found.user, Credential("session", expires_at=principal.expires_at)

    def enforce_csrf(self, request: Request) -> None:
        """Raises CsrfFailed."""
        try:
            super().enforce_csrf(request)
        except exceptions.PermissionDenied as error:
            raise CsrfFailed from error


def principal_of(found: SignIn, request: HttpRequest) -> Principal:
    """The principal of a session; it is as sure as the session's own sign-in was."""
    kind = found.provider.partition(":")[0]
    return Principal(
        PolicySubject("user", found.user.subject_id),
        f"{kind}:{canonical.sha256(request.session.session_key or '')}",
        found.authenticated_at,
        found.expires_at,
        Assurance(found.assurance),
    )
