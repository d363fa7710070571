"""The base of every API view: what is not declared is refused, scopes and roles are checked in one place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NoReturn, TypeVar

from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.access.errors import LengthRequired, ScopeMissing
from apps.access.models import User
from apps.access.parsers import StrictJSONParser
from apps.access.schema import IDEMPOTENCY_KEY, IF_MATCH, PAGE_PARAMETERS, EndpointSchema, describe
from apps.access.scopes import INSTANCE_MANAGE, TOKEN_MANAGE, Credential
from apps.access.serializers import (
    ActorSerializer,
    MomentField,
    ProblemSerializer,
    ReferenceSerializer,
    StrictSerializer,
    paged,
    read_body,
    read_changes,
)
from apps.access.services.sessions import require_fresh
from apps.core import ids, pages
from apps.core.errors import Forbidden, InvalidInput, NotFound, PreconditionMissing, Unauthenticated
from apps.identity.principals import Principal
from apps.projects import policy
from apps.projects.errors import ApprovalRequired
from apps.projects.models import Project
from apps.projects.policy import Grant
from apps.projects.queries import find as find_project

__all__ = [
    "ADMINISTRATOR",
    "IDEMPOTENCY_KEY",
    "IF_MATCH",
    "PAGE_PARAMETERS",
    "SIGNED_IN",
    "TOKEN_MANAGE",
    "ActorSerializer",
    "Endpoint",
    "MomentField",
    "ProblemSerializer",
    "ProjectEndpoint",
    "ReferenceSerializer",
    "StrictSerializer",
    "describe",
    "etag",
    "idempotency_key",
    "if_match",
    "only_parameters",
    "page_of",
    "page_response",
    "paged",
    "read_body",
    "read_changes",
]

SIGNED_IN = "signed_in"
ADMINISTRATOR = "administrator"
ORIGIN = "api"
API_KEYS = "api:"
MAX_IDEMPOTENCY_KEY = 200

# No project can have it: ids are UUIDs, and the slug rule holds for `default`.
_NOWHERE = "-"
_ENTITY_TAG = re.compile(r'(?:W/)?"([0-9]{1,10})"')
T = TypeVar("T")
# Where a view decides who may call it. One that replaced them would forget the token's scopes.
_CHECKS = frozenset(
    {
        "authentication_classes", "check_object_permissions", "check_permissions", "dispatch",
        "get_authenticators", "get_permissions", "initial", "initialize_request", "perform_authentication",
        "permission_classes",
    }
)  # fmt: skip
_CHECKERS = frozenset({__name__, "rest_framework.views", "django.views.generic.base"})


class Endpoint(APIView):
    """A view that declares, per method, what a caller needs: permission, scope, SIGNED_IN or ADMINISTRATOR.

    Methods in `fresh` need a session whose person proved it lately. HEAD follows GET. A method without an entry is
    refused. Outside a project a permission is a matter of the credential's scopes only: the view shows what the
    caller has a role for.
    """

    permissions: ClassVar[Mapping[str, str]] = {}
    fresh: ClassVar[frozenset[str]] = frozenset()
    permission_classes = ()
    parser_classes = (StrictJSONParser,)
    schema = EndpointSchema()

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuses, when it is imported, a view that could answer without the checks."""
        super().__init_subclass__(**options)
        for name in sorted(_CHECKS):
            place = next(base for base in cls.__mro__ if name in vars(base))
            if place.__module__ not in _CHECKERS:
                raise TypeError(f"{cls.__name__} must not replace {name}")

    @property
    def principal(self) -> Principal:
        """Who calls; only after the checks."""
        found: Principal = self.request.principal  # type: ignore[attr-defined]
        return found

    @property
    def credential(self) -> Credential:
        """What the call was signed in with."""
        found: Credential = self.request.auth  # type: ignore[assignment]
        return found

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """All checks before the method; raises LengthRequired and what `check_permissions` raises."""
        super().initial(request, *args, **kwargs)
        if "Transfer-Encoding" in request.headers and "Content-Length" not in request.headers:
            raise LengthRequired

    def check_permissions(self, request: Request) -> None:
        """Raises Unauthenticated, MethodNotAllowed, Forbidden, NotFound, ApprovalRequired, SessionNotFresh."""
        if getattr(request, "principal", None) is None:
            raise Unauthenticated
        if any("\0" in text for text in self.kwargs.values() if isinstance(text, str)):
            raise NotFound
        # Neither database takes U+0000 in a text, and each says so in its own way.
        if "%00" in request.META.get("QUERY_STRING", ""):
            raise InvalidInput
        method = request.method or ""
        if method == "OPTIONS":
            return
        if method.lower() not in self.http_method_names or not hasattr(self, method.lower()):
            raise exceptions.MethodNotAllowed(method)
        needed = self.permissions.get("GET" if method == "HEAD" else method)
        if needed is None:
            raise Forbidden
        self.require(needed)
        if method in self.fresh and self.credential.kind == "session":
            require_fresh(request._request)

    def require(self, needed: str) -> None:
        """Checks one declared need against the caller."""
        if needed == SIGNED_IN:
            return
        if needed == ADMINISTRATOR:
            user = self.request.user
            administrator = isinstance(user, User) and user.is_superuser
            limited = self.credential.project_id is not None
            if not administrator:
                raise Forbidden
            if limited or not self.credential.covers(INSTANCE_MANAGE):
                raise ScopeMissing
        elif not self.credential.covers(needed):
            raise ScopeMissing

    def authorize(self, project_id: str, permission: str, *, while_archived: bool = False) -> Grant:
        """A grant for one more permission, within the credential's scopes and project.

        Raises NotFound, Forbidden, ProjectArchived, ApprovalRequired.
        """
        if self.credential.project_id not in (None, project_id):
            self.refuse_unseen(permission)
        covered = self.credential.covers(permission)
        try:
            grant = policy.authorize(
                self.principal, project_id, permission, origin=ORIGIN, while_archived=while_archived
            )
        except ApprovalRequired:
            if not covered:
                raise ScopeMissing from None
            raise
        if not covered:
            raise ScopeMissing
        return grant if self.credential.covers(policy.SECRET_USE) else replace(grant, vault="deny")

    def refuse_unseen(self, permission: str) -> NoReturn:
        """Raises NotFound after the work that a project costs which exists and is not shared: clocks tell nothing."""
        policy.decide(self.principal.subject, _NOWHERE, permission)
        raise NotFound

    def options(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Response:
        """The allowed methods, in the Allow header."""
        return Response(status=204)

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        """Answers depend on who asks; nobody in between may keep one."""
        final = super().finalize_response(request, response, *args, **kwargs)
        final.headers.setdefault("Cache-Control", "no-store")
        return final


class ProjectEndpoint(Endpoint):
    """A view inside one project; after the checks `project_id` and `grant` are set.

    `mask` answers 404 also to those who have a role without the permission. `while_archived` names methods
    that work on an archived project although they write.
    """

    mask: ClassVar[bool] = False
    while_archived: ClassVar[frozenset[str]] = frozenset()
    project_id: str
    grant: Grant

    @cached_property
    def project(self) -> Project:
        """The project of the route."""
        return Project.objects.get(pk=self.project_id)

    def locate_project(self, **kwargs: Any) -> str:
        """The project id behind the path; raises NotFound. Routes without `{p}` override it."""
        self.project = find_project(kwargs["p"])
        return self.project.id

    def require(self, needed: str) -> None:
        """Resolves the project, decides and keeps the grant."""
        if needed in (SIGNED_IN, ADMINISTRATOR):
            raise Forbidden
        try:
            self.project_id = self.locate_project(**self.kwargs)
        except NotFound:
            self.refuse_unseen(needed)
        self.grant = self.authorize(
            self.project_id, needed, while_archived=self.request.method in self.while_archived
        )

    def authorize(self, project_id: str, permission: str, *, while_archived: bool = False) -> Grant:
        """As for every Endpoint; NotFound only, where the view masks."""
        try:
            return super().authorize(project_id, permission, while_archived=while_archived)
        except (Forbidden, ApprovalRequired) as error:
            if self.mask:
                raise NotFound from error
            raise


def if_match(request: Request) -> int:
    """The version in `If-Match`; raises PreconditionMissing (428) and InvalidInput."""
    text = request.headers.get("If-Match")
    if text is None:
        raise PreconditionMissing
    found = _ENTITY_TAG.fullmatch(text.strip())
    if found is None or int(found[1]) > 2_147_483_647:
        raise InvalidInput.field("If-Match", _('A version in quotes, like "3".'))
    return int(found[1])


def idempotency_key(request: Request) -> str:
    """The key of a start, marked as the API's own; raises InvalidInput without one of 1–200 characters."""
    text = request.headers.get("Idempotency-Key", "")
    if not ids.is_text_id(text, MAX_IDEMPOTENCY_KEY):
        raise InvalidInput.field("Idempotency-Key", _("1 to 200 characters."))
    return API_KEYS + text


def etag(response: Response, version: int) -> Response:
    """The response with the version as its ETag."""
    response["ETag"] = f'"{version}"'
    return response


def only_parameters(request: Request, *names: str) -> None:
    """Raises InvalidInput for a parameter in the address that the route does not have."""
    unknown = sorted(set(request.query_params) - set(names))
    if unknown:
        raise InvalidInput(fields={name[:64]: [_("There is no such parameter.")] for name in unknown})


def page_of(request: Request, *filters: str) -> dict[str, Any]:
    """`limit` and `cursor` of a list request, as queries take them; raises InvalidInput, also for parameters that
    are neither these nor among the route's `filters`.
    """
    only_parameters(request, "limit", "cursor", *filters)
    return {
        "limit": pages.read_limit(request.query_params.get("limit")),
        "cursor": request.query_params.get("cursor") or None,
    }


def page_response(page: pages.Page[T], serialize: Callable[[T], Any]) -> Response:
    """The answer of a list."""
    return Response({"items": [serialize(item) for item in page.items], "next_cursor": page.next_cursor})
