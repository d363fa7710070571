"""Who a browser's request comes from: the row of its session in the list of live ones."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from apps.access.services import session_of
from apps.core import clock


class SignedIn(AuthenticationMiddleware):
    """Sets `request.user`; nothing is read before somebody asks, so pages for everybody cost no query."""

    def process_request(self, request: HttpRequest) -> None:
        request.user = SimpleLazyObject(lambda: _user(request))  # type: ignore[assignment]


def _user(request: HttpRequest) -> Any:
    found = session_of(request)
    return AnonymousUser() if found is None or found.expires_at <= clock.now() else found.user
