"""The OpenAPI document: what all routes have in common is said once, here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from django.utils.translation import gettext_lazy as _
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, extend_schema

from apps.access.serializers import ProblemSerializer
from apps.core.problems import CONTENT_TYPE
from apps.projects.permissions import PERMISSIONS

_ALWAYS = {
    "400": _("Invalid"),
    "401": _("Sign in first"),
    "403": _("Not allowed"),
    "503": _("Try again later"),
}
_WITH_ID = {"404": _("Nothing here, or no role in the project")}
_ASKED = {"409": _("Conflict")}
_WRITING = {
    **_ASKED,
    "413": _("Too large"),
    "415": _("Not JSON"),
    "429": _("Too many requests"),
}

PATH_PARAMETERS = {
    "p": _("Project: id or short name."),
    "t": _("Task: id or short name."),
    "id": _("Id."),
    "revision": _("Revision id."),
    "name": _("Name."),
    "token": _("Token id."),
    "artifact": _("Artifact id."),
}
IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    required=True,
    description='The version read, as in ETag: `"3"`.',
)
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="At most 200 characters; without one every call is a start of its own.",
)
PAGE_PARAMETERS = [
    OpenApiParameter("limit", int, description="1 to 200; 50 without."),
    OpenApiParameter("cursor", str, description="`next_cursor` of the page before."),
]


F = TypeVar("F", bound=Callable[..., Any])


def describe(**options: Any) -> Callable[[F], F]:
    """`extend_schema` with types: what the document says of one method of a view."""
    decorator: Callable[[F], F] = extend_schema(**options)
    return decorator


class EndpointSchema(AutoSchema):  # type: ignore[misc]
    """Operation ids from method and path, tags from the app, the problem answers of every route."""

    def get_operation_id(self) -> str:
        path = self.path.removeprefix("/api/v3").strip("/")
        words = re.sub(r"\{(\w+)\}", r"by_\1", path)
        return f"{self.method.lower()}_{re.sub(r'[^a-zA-Z0-9]+', '_', words)}".strip("_")

    def get_description(self) -> str:
        """The view's own words; what its bases say is for those who write views."""
        return inspect.cleandoc(vars(type(self.view)).get("__doc__") or "")

    def get_tags(self) -> list[str]:
        return [type(self.view).__module__.split(".")[1]]

    def _resolve_path_parameters(self, variables: list[str]) -> list[dict[str, Any]]:
        parameters: list[dict[str, Any]] = super()._resolve_path_parameters(variables)
        for parameter in parameters:
            description = PATH_PARAMETERS.get(parameter["name"])
            if description is not None:
                parameter.setdefault("description", str(description))
        return parameters

    def _get_response_bodies(self, direction: str = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(direction)
        problems = {
            **_ALWAYS,
            **(_WITH_ID if "{" in self.path or self._body_names_a_project() else {}),
            **({} if self.method == "GET" else _WRITING),
            **(_ASKED if self._agents_ask() else {}),
        }
        if any(parameter is IF_MATCH for parameter in self.get_override_parameters()):
            problems["428"] = _("If-Match is missing")
        for status, description in sorted(problems.items()):
            body = self._get_response_for_code(ProblemSerializer, status, [CONTENT_TYPE], direction)
            bodies.setdefault(status, {**body, "description": str(description)})
        return bodies

    def _agents_ask(self) -> bool:
        """Some reads need a right that agents have only with an approval."""
        right = PERMISSIONS.get(self.view.permissions.get(self.method, ""))
        return right is not None and right.agent_asks

    def _body_names_a_project(self) -> bool:
        """One that is not shared with the caller is answered like one that does not exist."""
        if self.method == "GET":
            return False
        return "project" in getattr(self.get_request_serializer(), "_declared_fields", {})


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[misc]
    """Bearer tokens."""

    target_class = "apps.access.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "ql3t_…"}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[misc]
    """The panel's cookie."""

    target_class = "apps.access.authentication.SessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "apiKey", "in": "cookie", "name": "ql_session"}
