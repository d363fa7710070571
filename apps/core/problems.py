"""Every refusal of the API as `application/problem+json` (RFC 9457, api.md "Rules for every call")."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import DatabaseError, IntegrityError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.template.loader import render_to_string
from rest_framework import exceptions

from apps.core import db
from apps.core.errors import (
    Busy,
    DomainError,
    Forbidden,
    InvalidInput,
    NotFound,
    TooLarge,
    Unauthenticated,
    Unavailable,
)

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 1

log = logging.getLogger("qinglong.api")

# DRF's own refusals that have no counterpart in core.errors.
_CODES: dict[type[exceptions.APIException], str] = {
    exceptions.ParseError: "invalid_json",
    exceptions.MethodNotAllowed: "method_not_allowed",
    exceptions.NotAcceptable: "not_acceptable",
    exceptions.UnsupportedMediaType: "unsupported_media_type",
    exceptions.Throttled: "too_many_requests",
    exceptions.ValidationError: "invalid",
}


class Problem(HttpResponse):
    """The answer to a refused call. Equal refusals are equal byte for byte: no ids, no times."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: object,
        *,
        errors: dict[str, Any] | None = None,
        retry_after: int | None = None,
        **extra: Any,
    ) -> None:
        body: dict[str, Any] = {
            "type": f"urn:qinglong:problem:{code}",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "code": code,
            "detail": str(detail),
            "errors": errors or {},
            **extra,
        }
        text = json.dumps(body, ensure_ascii=False, default=str)
        super().__init__(text, status=status, content_type=CONTENT_TYPE)
        if status == HTTPStatus.UNAUTHORIZED:
            self["WWW-Authenticate"] = "Bearer"
        if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            self["Retry-After"] = str(retry_after or RETRY_AFTER_SECONDS)
        self["Cache-Control"] = "no-store"


def of(error: DomainError) -> Problem:
    """The answer for a named error; `retry_after` in its extra members becomes the header."""
    extra = dict(error.extra)
    fields = getattr(error, "fields", {})
    errors = {name: [str(sentence) for sentence in sentences] for name, sentences in fields.items()}
    retry_after = extra.pop("retry_after", None)
    return Problem(error.status, error.code, error.detail, errors=errors, retry_after=retry_after, **extra)


def handle(error: Exception, context: dict[str, Any]) -> HttpResponseBase | None:
    """DRF's exception handler; what it does not know becomes a 500 through `server_error`."""
    if isinstance(error, DomainError):
        return of(error)
    if isinstance(error, exceptions.APIException):
        return _of_rest_framework(error)
    named = _named(error)
    return None if named is None else of(named)


def _named(error: Exception) -> DomainError | None:
    if isinstance(error, Http404):
        return NotFound()
    if isinstance(error, PermissionDenied):
        return Forbidden()
    if isinstance(error, RequestDataTooBig):
        return TooLarge()
    if isinstance(error, SuspiciousOperation):
        return InvalidInput()
    if isinstance(error, IntegrityError):
        log.exception("a constraint refused a write that no service foresaw")
        return Busy()
    if isinstance(error, DatabaseError) and db.is_busy(error):
        return Busy()
    if isinstance(error, OperationalError):
        log.exception("the database cannot be reached")
        return Unavailable()
    return None


def _of_rest_framework(error: exceptions.APIException) -> Problem:
    if isinstance(error, exceptions.ValidationError):
        return Problem(400, "invalid", InvalidInput.message, errors=_errors(error.detail))
    for known, named in (
        (exceptions.NotAuthenticated, Unauthenticated),
        (exceptions.AuthenticationFailed, Unauthenticated),
        (exceptions.PermissionDenied, Forbidden),
        (exceptions.NotFound, NotFound),
    ):
        if isinstance(error, known):
            return of(named())
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), "error")
    wait = getattr(error, "wait", None)
    return Problem(error.status_code, code, error.detail, retry_after=None if wait is None else int(wait) + 1)


def _errors(detail: Any, path: str = "") -> dict[str, list[str]]:
    """One flat mapping: `retry.max_attempts` → sentences; `_` for the whole body."""
    if isinstance(detail, dict):
        found: dict[str, list[str]] = {}
        for name, inner in detail.items():
            step = "" if name == "non_field_errors" else str(name)
            found.update(_errors(inner, ".".join(part for part in (path, step) if part)))
        return found
    if isinstance(detail, list) and any(isinstance(item, dict | list) for item in detail):
        found = {}
        for index, item in enumerate(detail):
            if item:
                found.update(_errors(item, f"{path}.{index}" if path else str(index)))
        return found
    sentences = detail if isinstance(detail, list) else [detail]
    return {path or "_": [str(sentence) for sentence in sentences]}


def is_api(request: HttpRequest) -> bool:
    """Whether the path belongs to the API, where every answer is JSON."""
    return request.path_info == "/api" or request.path_info.startswith("/api/")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """The project's handler400."""
    if not is_api(request):
        return _page(request, 400)
    return of(TooLarge() if isinstance(exception, RequestDataTooBig) else InvalidInput())


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """The project's handler403."""
    return of(Forbidden()) if is_api(request) else _page(request, 403)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """The project's handler404: an unknown route looks like an unknown id."""
    return of(NotFound()) if is_api(request) else _page(request, 404)


def server_error(request: HttpRequest) -> HttpResponseBase:
    """The project's handler500: says nothing about what happened."""
    return of(DomainError()) if is_api(request) else _page(None, 500)


def _page(request: HttpRequest | None, status: int) -> HttpResponse:
    """An error page. Django's own handlers read the form once more, and fall over one that cannot be read."""
    return HttpResponse(render_to_string(f"{status}.html", request=request), status=status)
