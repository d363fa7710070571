"""Tokens of the caller: made and rotated once, shown once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.urls import path
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access import queries, services
from apps.access.addresses import MAX_NETWORKS
from apps.access.endpoints import (
    ORIGIN,
    PAGE_PARAMETERS,
    SIGNED_IN,
    TOKEN_MANAGE,
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
from apps.access.models import ApiToken
from apps.access.scopes import MAX_SCOPES
from apps.access.services.tokens import MAX_OVERLAP, OVERLAP
from apps.projects.queries import find as find_project


class TokenSerializer(StrictSerializer):
    """A token, without its secret. `project` limits it to one project, `addresses` to where it works from.

    `previous_expires_at` is how long the secret before the last rotation works; `refused_at` is when the right
    secret came from another address.
    """

    id = serializers.UUIDField()
    kind = serializers.CharField(help_text="`token` or `client`.")
    name = serializers.CharField()
    scopes = serializers.ListField(child=serializers.CharField())
    project = ReferenceSerializer(allow_null=True)
    addresses = serializers.ListField(child=serializers.CharField())
    created_at = MomentField()
    expires_at = MomentField(allow_null=True)
    last_used_at = MomentField(allow_null=True)
    last_used_address = serializers.CharField(allow_blank=True)
    previous_expires_at = MomentField(allow_null=True)
    refused_at = MomentField(allow_null=True)
    refused_address = serializers.CharField(allow_blank=True)


class NewTokenSerializer(StrictSerializer):
    """Scopes are permissions, `*`, `token.manage` and `instance.manage`; `*` leaves out what must be named."""

    name = serializers.CharField(max_length=128, trim_whitespace=False)
    scopes = serializers.ListField(child=serializers.CharField(max_length=255), max_length=MAX_SCOPES)
    project = serializers.CharField(max_length=128, required=False, allow_null=True, help_text="Id or slug.")
    expires_at = MomentField(required=False, allow_null=True)
    addresses = serializers.ListField(
        child=serializers.CharField(max_length=64),
        max_length=MAX_NETWORKS,
        required=False,
        help_text="Addresses and networks (`10.0.0.0/8`) it works from; none means everywhere.",
    )


class CreatedTokenSerializer(TokenSerializer):
    """A token with its new secret, which is shown only here."""

    token = serializers.CharField()


class RotationSerializer(StrictSerializer):
    """How long the secret before goes on working."""

    overlap_ms = serializers.IntegerField(
        required=False, min_value=0, max_value=MAX_OVERLAP // timedelta(milliseconds=1)
    )


def represent(token: ApiToken) -> dict[str, Any]:
    """A token as the API shows it."""
    return dict(TokenSerializer(token).data)


def represent_created(created: services.Created) -> dict[str, Any]:
    """A token with its secret."""
    return {**represent(created.token), "token": created.secret}


def read_new(request: Request, serializer: type[NewTokenSerializer] = NewTokenSerializer) -> dict[str, Any]:
    """What `create_token` takes, out of a body; raises NotFound for a project that there is not."""
    values = read_body(serializer, request.data)
    project = find_project(values["project"]) if values.get("project") else None
    return {
        "name": values["name"],
        "scopes": values["scopes"],
        "project_id": project.id if project else None,
        "expires_at": values.get("expires_at"),
        "addresses": values.get("addresses", []),
        "kind": values.get("kind", ApiToken.Kind.TOKEN),
    }


def read_overlap(request: Request) -> timedelta:
    """The overlap of a rotation; a day without one."""
    values = read_body(RotationSerializer, request.data)
    return timedelta(milliseconds=values["overlap_ms"]) if "overlap_ms" in values else OVERLAP


class Tokens(Endpoint):
    permissions = {"GET": SIGNED_IN, "POST": TOKEN_MANAGE}
    fresh = frozenset({"POST"})

    @describe(summary="List your tokens", parameters=PAGE_PARAMETERS, responses=paged(TokenSerializer))
    def get(self, request: Request) -> Response:
        page = queries.page_tokens(
            self.principal.subject, project_id=self.credential.project_id, **page_of(request)
        )
        return page_response(page, represent)

    @describe(
        summary="Make a token",
        description="A session must be fresh (proved within 15 minutes); a token needs `token.manage`.",
        request=NewTokenSerializer,
        responses={201: CreatedTokenSerializer},
    )
    def post(self, request: Request) -> Response:
        created = services.create_token(
            self.principal.subject, **read_new(request), maker=self.credential, origin=ORIGIN
        )
        return Response(represent_created(created), status=201)


class OneToken(Endpoint):
    permissions = {"DELETE": TOKEN_MANAGE}

    @describe(summary="Revoke a token", responses={204: None})
    def delete(self, request: Request, id: UUID) -> Response:
        services.revoke_token(self.principal.subject, id, maker=self.credential, origin=ORIGIN)
        return Response(status=204)


class RotateToken(Endpoint):
    permissions = {"POST": TOKEN_MANAGE}
    fresh = frozenset({"POST"})

    @describe(
        summary="Give a token a new secret",
        description="The secret before works for `overlap_ms` more (0 to 7 days, a day without), then no more.",
        request=RotationSerializer,
        responses={201: CreatedTokenSerializer},
    )
    def post(self, request: Request, id: UUID) -> Response:
        created = services.rotate_token(
            self.principal.subject, id, overlap=read_overlap(request), maker=self.credential, origin=ORIGIN
        )
        return Response(represent_created(created), status=201)


urlpatterns = [
    path("tokens", Tokens.as_view()),
    path("tokens/<uuid:id>", OneToken.as_view()),
    path("tokens/<uuid:id>/rotate", RotateToken.as_view()),
]
