"""`POST /oauth/token`: an application's client secret for an access token of an hour (RFC 6749 §4.4)."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import unquote_plus

from django.http import HttpRequest, JsonResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.debug import sensitive_post_parameters

from apps.access.addresses import address_of
from apps.access.errors import ScopeExceeded
from apps.access.services import exchange
from apps.core import clock
from apps.core.errors import Busy, InvalidInput, Unauthenticated, Unavailable

_GRANT = "client_credentials"


@method_decorator([csrf_exempt, sensitive_post_parameters("client_secret")], name="dispatch")
class Exchange(View):
    """Form in, JSON out, errors by the names of the RFC; no cookie is looked at or set."""

    http_method_names = ["post"]

    def post(self, request: HttpRequest) -> JsonResponse:
        if request.POST.get("grant_type") != _GRANT:
            return _answer(400, error="unsupported_grant_type")
        client = _client(request)
        if client is None:
            return _refused()
        wanted = request.POST.get("scope")
        try:
            made = exchange(*client, wanted.split() if wanted else None, address=address_of(request))
        except Unauthenticated:
            return _refused()
        except (InvalidInput, ScopeExceeded):
            return _answer(400, error="invalid_scope")
        except (Busy, Unavailable):
            return _answer(503, error="temporarily_unavailable")
        ends = made.token.expires_at or clock.now()
        return _answer(
            200,
            access_token=made.secret,
            token_type="Bearer",  # noqa: S106 - the name of a kind
            expires_in=int((ends - clock.now()).total_seconds()),
            scope=" ".join(made.token.scopes),
        )


def _client(request: HttpRequest) -> tuple[str, str] | None:
    """Id and secret, out of the header or the form, not of both; never out of the address."""
    header = request.headers.get("Authorization", "")
    form = (request.POST.get("client_id", ""), request.POST.get("client_secret", ""))
    if not header:
        return form if all(form) else None
    scheme, _space, text = header.partition(" ")
    if scheme.lower() != "basic" or form[1]:
        return None
    try:
        name, colon, secret = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except ValueError:
        return None
    return (unquote_plus(name), unquote_plus(secret)) if colon and name and secret else None


def _refused() -> JsonResponse:
    response = _answer(401, error="invalid_client")
    response["WWW-Authenticate"] = 'Basic realm="QingLong"'
    return response


def _answer(status: int, **body: Any) -> JsonResponse:
    return JsonResponse(body, status=status, headers={"Cache-Control": "no-store", "Pragma": "no-cache"})
