"""Applications, agents and workers: subjects that are no people, and the credentials they come with."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.urls import path
from django.utils.translation import gettext_lazy as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access import queries, services
from apps.access.api.tokens import (
    CreatedTokenSerializer,
    NewTokenSerializer,
    RotationSerializer,
    TokenSerializer,
    read_new,
    read_overlap,
    represent_created,
)
from apps.access.api.tokens import represent as represent_token
from apps.access.endpoints import (
    ADMINISTRATOR,
    IF_MATCH,
    ORIGIN,
    PAGE_PARAMETERS,
    TOKEN_MANAGE,
    Endpoint,
    MomentField,
    StrictSerializer,
    describe,
    etag,
    if_match,
    page_of,
    page_response,
    paged,
    read_body,
    read_changes,
)
from apps.access.models import Application
from apps.access.services.applications import TYPES
from apps.core.errors import InvalidInput, NotFound
from apps.identity.principals import PolicySubject


class ApplicationSerializer(StrictSerializer):
    """A subject that is no person. `id` is for role bindings, and the `client_id` of its exchanges."""

    id = serializers.CharField(source="subject_id", read_only=True)
    type = serializers.CharField(source="subject.type")
    name = serializers.CharField(max_length=128)
    description = serializers.CharField(max_length=400, required=False, allow_blank=True)
    status = serializers.CharField(source="subject.status", read_only=True)
    version = serializers.IntegerField(read_only=True)
    created_at = MomentField(read_only=True)
    updated_at = MomentField(read_only=True)


class NewApplicationSerializer(StrictSerializer):
    """A new application; it has no role anywhere until somebody gives it one."""

    type = serializers.CharField(max_length=32, help_text=f"One of {', '.join(TYPES)}.")
    name = serializers.CharField(max_length=128)
    description = serializers.CharField(max_length=400, required=False, allow_blank=True, default="")


class ApplicationChangeSerializer(StrictSerializer):
    """What can be changed; disabling stops its tokens at once."""

    name = serializers.CharField(max_length=128)
    description = serializers.CharField(max_length=400, allow_blank=True)
    status = serializers.CharField(max_length=16, help_text="`active` or `disabled`.")
    leave_ownerless = serializers.BooleanField(
        help_text="With `disabled`: even where nobody else owns a project of theirs (else 409 `last_owner`)."
    )


class NewCredentialSerializer(NewTokenSerializer):
    """`token` is used as it is; a `client` secret is exchanged at `/oauth/token` for tokens of an hour."""

    kind = serializers.CharField(
        max_length=16, required=False, default="token", help_text="`token` or `client`."
    )


def represent(row: Application) -> dict[str, Any]:
    """An application as the API shows it."""
    return dict(ApplicationSerializer(row).data)


def _found(id: str) -> Application:
    row = queries.find_application(id)
    if row is None:
        raise NotFound
    return row


def subject_of(row: Application) -> PolicySubject:
    """The subject behind an application."""
    return PolicySubject(row.subject.type, row.subject_id)


class Applications(Endpoint):
    permissions = {"GET": ADMINISTRATOR, "POST": ADMINISTRATOR}
    fresh = frozenset({"POST"})

    @describe(
        summary="List applications, agents and workers",
        parameters=PAGE_PARAMETERS,
        responses=paged(ApplicationSerializer),
    )
    def get(self, request: Request) -> Response:
        return page_response(queries.page_applications(**page_of(request)), represent)

    @describe(
        summary="Make an application, agent or worker",
        request=NewApplicationSerializer,
        responses={201: ApplicationSerializer},
    )
    def post(self, request: Request) -> Response:
        values = read_body(NewApplicationSerializer, request.data)
        row = services.create_application(
            values["type"],
            values["name"],
            values["description"],
            actor=self.principal.subject,
            origin=ORIGIN,
        )
        return etag(Response(represent(_found(row.pk)), status=201), row.version)


class OneApplication(Endpoint):
    permissions = {"GET": ADMINISTRATOR, "PATCH": ADMINISTRATOR}
    fresh = frozenset({"PATCH"})

    @describe(summary="Read an application", responses=ApplicationSerializer)
    def get(self, request: Request, id: str) -> Response:
        row = _found(id)
        return etag(Response(represent(row)), row.version)

    @describe(
        summary="Rename, enable or disable an application",
        parameters=[IF_MATCH],
        request=ApplicationChangeSerializer,
        responses=ApplicationSerializer,
    )
    def patch(self, request: Request, id: str) -> Response:
        version = if_match(request)
        changes = read_changes(ApplicationChangeSerializer, request.data, represent(_found(id)))
        empty = [name for name, value in changes.items() if value is None]
        if empty:
            raise InvalidInput(fields={name: [_("This field has no default.")] for name in empty})
        row = services.update_application(id, version, **changes, actor=self.principal.subject, origin=ORIGIN)
        return etag(Response(represent(row)), row.version)


class ApplicationTokens(Endpoint):
    permissions = {"GET": ADMINISTRATOR, "POST": ADMINISTRATOR}
    fresh = frozenset({"POST"})

    @describe(
        summary="List the credentials of an application",
        parameters=PAGE_PARAMETERS,
        responses=paged(TokenSerializer),
    )
    def get(self, request: Request, id: str) -> Response:
        return page_response(queries.page_tokens(subject_of(_found(id)), **page_of(request)), represent_token)

    @describe(
        summary="Make a token or client secret for an application",
        request=NewCredentialSerializer,
        responses={201: CreatedTokenSerializer},
    )
    def post(self, request: Request, id: str) -> Response:
        self.require(TOKEN_MANAGE)
        created = services.create_token(
            subject_of(_found(id)),
            **read_new(request, NewCredentialSerializer),
            maker=self.credential,
            actor=self.principal.subject,
            origin=ORIGIN,
        )
        return Response(represent_created(created), status=201)


class OneApplicationToken(Endpoint):
    permissions = {"DELETE": ADMINISTRATOR}

    @describe(summary="Revoke a credential of an application", responses={204: None})
    def delete(self, request: Request, id: str, token: UUID) -> Response:
        self.require(TOKEN_MANAGE)
        services.revoke_token(
            subject_of(_found(id)),
            token,
            maker=self.credential,
            actor=self.principal.subject,
            origin=ORIGIN,
        )
        return Response(status=204)


class RotateApplicationToken(Endpoint):
    permissions = {"POST": ADMINISTRATOR}
    fresh = frozenset({"POST"})

    @describe(
        summary="Give a credential of an application a new secret",
        request=RotationSerializer,
        responses={201: CreatedTokenSerializer},
    )
    def post(self, request: Request, id: str, token: UUID) -> Response:
        self.require(TOKEN_MANAGE)
        created = services.rotate_token(
            subject_of(_found(id)),
            token,
            overlap=read_overlap(request),
            maker=self.credential,
            actor=self.principal.subject,
            origin=ORIGIN,
        )
        return Response(represent_created(created), status=201)


urlpatterns = [
    path("applications", Applications.as_view()),
    path("applications/<str:id>", OneApplication.as_view()),
    path("applications/<str:id>/tokens", ApplicationTokens.as_view()),
    path("applications/<str:id>/tokens/<uuid:token>", OneApplicationToken.as_view()),
    path("applications/<str:id>/tokens/<uuid:token>/rotate", RotateApplicationToken.as_view()),
]
