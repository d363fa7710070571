"""Who a request comes from: a bearer token or the panel's session (api.md "Credentials")."""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpRequest
from rest_framework import authentication, exceptions, permissions
from rest_framework.request import Request

from apps.access import services
from apps.access.addresses import address_of, lies_in
from apps.access.errors import CsrfFailed
from apps.access.models import SignIn, User
from apps.access.scopes import Credential
from apps.core import canonical, clock
from apps.core.errors import Unauthenticated
from apps.identity.principals import Assurance, PolicySubject, Principal

_TOKEN = re.compile(r"ql3t_[A-Za-z0-9_-]{43}")
_END_OF_TIME = clock.from_ms(253_402_300_799_000)


class Denied(permissions.BasePermission):
    """What a view may that is no Endpoint: nothing. Here, as DRF loads it before it can load views."""

    def has_permission(self, request: Request, view: Any) -> bool:
        return False


class TokenAuthentication(authentication.BaseAuthentication):
    """`Authorization: Bearer ql3t_…`; token and subject in one query, checked anew on each request.

    A token opens views that check its scopes and no others: those are the Endpoints, which cannot leave it out.
    """

    def authenticate(self, request: Request) -> tuple[User | None, Credential] | None:
        """None without a bearer header; raises Unauthenticated for one that is not good now or not from here."""
        from apps.access.endpoints import Endpoint

        scheme, _, secret = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        secret = secret.strip()
        if _TOKEN.fullmatch(secret) is None or not isinstance(request.parser_context.get("view"), Endpoint):
            raise Unauthenticated
        now, address = clock.now(), address_of(request)
        token = services.find_token(secret, now)
        if token is None:
            raise Unauthenticated
        if token.addresses and not lies_in(address, token.addresses):
            services.note_refusal(token, now, address)
            raise Unauthenticated
        services.note_use(token, now, address)
        request.principal = Principal(  # type: ignore[attr-defined]
            PolicySubject(token.subject.type, token.subject.id),
            f"token:{token.id}",
            token.created_at,
            token.expires_at or _END_OF_TIME,
            Assurance.SERVICE,
        )
        user: User | None = getattr(token.subject, "account", None)
        return user, Credential(
            "token",
            frozenset(token.scopes),
            token.project_id,
            token.id,
            token.expires_at,
            tuple(token.addresses),
        )

    def authenticate_header(self, request: Request) -> str:
        """What a 401 asks for."""
        return "Bearer"


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
