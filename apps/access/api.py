"""Who am I, my tokens, and the description of the API itself."""

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
    read_body,
)
from apps.access.errors import SessionNotFresh
from apps.access.models import ApiToken, User
from apps.access.scopes import MAX_SCOPES
from apps.projects.queries import find as find_project
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


class TokenSerializer(StrictSerializer):
    """A token, without its secret. `project` limits it to one project."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    scopes = serializers.ListField(child=serializers.CharField())
    project = ReferenceSerializer(allow_null=True)
    created_at = MomentField()
    expires_at = MomentField(allow_null=True)
    last_used_at = MomentField(allow_null=True)


class NewTokenSerializer(StrictSerializer):
    """Scopes are permissions, `*`, `token.manage` and `instance.manage`; `*` leaves out what must be named."""

    name = serializers.CharField(max_length=128, trim_whitespace=False)
    scopes = serializers.ListField(child=serializers.CharField(max_length=255), max_length=MAX_SCOPES)
    project = serializers.CharField(max_length=128, required=False, allow_null=True, help_text="Id or slug.")
    expires_at = MomentField(required=False, allow_null=True)


class CreatedTokenSerializer(TokenSerializer):
    """A new token with its secret, which is shown only here."""

    token = serializers.CharField()


def represent(token: ApiToken) -> dict[str, Any]:
    """A token as the API shows it."""
    return dict(TokenSerializer(token).data)


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


class Tokens(Endpoint):
    permissions = {"GET": SIGNED_IN, "POST": TOKEN_MANAGE}

    @describe(summary="List your tokens", parameters=PAGE_PARAMETERS, responses=paged(TokenSerializer))
    def get(self, request: Request) -> Response:
        page = queries.page_tokens(
            self.principal.subject, project_id=self.credential.project_id, **page_of(request)
        )
        return page_response(page, represent)

    @describe(
        summary="Make a token",
        description="A session must be fresh (password within 15 minutes); a token needs `token.manage`.",
        request=NewTokenSerializer,
        responses={201: CreatedTokenSerializer},
    )
    def post(self, request: Request) -> Response:
        if self.credential.kind == "session" and not services.is_fresh(request._request):
            raise SessionNotFresh
        values = read_body(NewTokenSerializer, request.data)
        project = find_project(values["project"]) if values.get("project") else None
        created = services.create_token(
            self.principal.subject,
            name=values["name"],
            scopes=values["scopes"],
            project_id=project.id if project else None,
            expires_at=values.get("expires_at"),
            maker=self.credential,
            origin=ORIGIN,
        )
        return Response({**represent(created.token), "token": created.secret}, status=201)


class OneToken(Endpoint):
    permissions = {"DELETE": TOKEN_MANAGE}

    @describe(summary="Revoke a token", responses={204: None})
    def delete(self, request: Request, id: UUID) -> Response:
        services.revoke_token(self.principal.subject, id, maker=self.credential, origin=ORIGIN)
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
    path("tokens", Tokens.as_view()),
    path("tokens/<uuid:id>", OneToken.as_view()),
    path("schema", Schema.as_view(), name="api-schema"),
    path("docs", Docs.as_view(), name="api-docs"),
]
