"""Who am I, where am I signed in, and the description of the API itself."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import path
from django.utils.translation import get_language
from drf_spectacular.generators import SchemaGenerator
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access import queries, services
from apps.access.endpoints import (
    ORIGIN,
    PAGE_PARAMETERS,
    SIGNED_IN,
    TOKEN_MANAGE,
    ActorSerializer,
    Endpoint,
    MomentField,
    ReferenceSerializer,
    StrictSerializer,
    describe,
    page_of,
    page_response,
    paged,
)
from apps.access.models import User
from apps.projects.queries import roles_of


class RoleSerializer(StrictSerializer):
    """A role of the caller in one project."""

    project = ReferenceSerializer()
    role = serializers.CharField()


class MeSerializer(StrictSerializer):
    """The caller. `scopes` is null for a session, which may do all that the subject may."""

    subject = ActorSerializer()
    username = serializers.CharField(allow_null=True)
    is_administrator = serializers.BooleanField()
    assurance = serializers.CharField()
    authenticated_at = MomentField()
    scopes = serializers.ListField(child=serializers.CharField(), allow_null=True)
    roles = RoleSerializer(many=True)


class Me(Endpoint):
    permissions = {"GET": SIGNED_IN}

    @describe(summary="Who you are and what you may do", responses=MeSerializer)
    def get(self, request: Request) -> Response:
        principal, credential, user = self.principal, self.credential, request.user
        account = user if isinstance(user, User) else None
        document = {
            "subject": {"type": principal.subject.type, "id": principal.subject.id},
            "username": account.username if account else None,
            "is_administrator": account is not None and account.is_superuser,
            "assurance": principal.assurance,
            "authenticated_at": principal.authenticated_at,
            "scopes": None if credential.scopes is None else sorted(credential.scopes),
            "roles": [
                {"project": binding.project, "role": binding.role}
                for binding in roles_of(principal.subject, credential.project_id)
            ],
        }
        return Response(MeSerializer(document).data)


class SessionSerializer(StrictSerializer):
    """A live session of the caller. `current` is the one that asks."""

    id = serializers.UUIDField()
    platform = serializers.CharField()
    method = serializers.CharField()
    assurance = serializers.CharField()
    address = serializers.CharField()
    agent = serializers.CharField()
    created_at = MomentField()
    authenticated_at = MomentField()
    last_seen_at = MomentField()
    expires_at = MomentField()
    current = serializers.BooleanField()


class Sessions(Endpoint):
    permissions = {"GET": TOKEN_MANAGE}

    @describe(
        summary="List your live sessions", parameters=PAGE_PARAMETERS, responses=paged(SessionSerializer)
    )
    def get(self, request: Request) -> Response:
        own = services.session_of(request._request) if self.credential.kind == "session" else None
        page = queries.page_sessions(self.principal.subject.id, **page_of(request))
        for row in page.items:
            row.current = own is not None and row.pk == own.pk  # type: ignore[attr-defined]
        return page_response(page, lambda row: dict(SessionSerializer(row).data))


class OneSession(Endpoint):
    permissions = {"DELETE": TOKEN_MANAGE}

    @describe(summary="End one of your sessions", responses={204: None})
    def delete(self, request: Request, id: UUID) -> Response:
        subject = self.principal.subject
        services.end_session(subject.id, id, actor=subject, origin=ORIGIN)
        return Response(status=204)


class Schema(Endpoint):
    permissions = {"GET": SIGNED_IN}

    @describe(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        return JsonResponse(_document(get_language() or "en"), json_dumps_params={"ensure_ascii": False})


class Docs(Endpoint):
    permissions = {"GET": SIGNED_IN}

    @describe(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        return render(request._request, "access/docs.html")


@lru_cache(maxsize=4)
def _document(language: str) -> dict[str, Any]:
    """The OpenAPI document; the same for everybody, so made once per process and language."""
    document: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)
    return {**document, "servers": [{"url": settings.PREFIX or "/"}]}


urlpatterns = [
    path("me", Me.as_view()),
    path("sessions", Sessions.as_view()),
    path("sessions/<uuid:id>", OneSession.as_view()),
    path("schema", Schema.as_view(), name="api-schema"),
    path("docs", Docs.as_view(), name="api-docs"),
]
