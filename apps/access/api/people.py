"""People of this installation: who they are, whether they may come in, where they are signed in."""

from __future__ import annotations

from typing import Any

from django.urls import path
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access import queries, services
from apps.access.endpoints import (
    ADMINISTRATOR,
    IF_MATCH,
    ORIGIN,
    PAGE_PARAMETERS,
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
from apps.access.models import User
from apps.core.errors import NotFound


class PersonSerializer(StrictSerializer):
    """A person. `id` is that of the subject, for role bindings; it never changes."""

    id = serializers.CharField(source="subject_id", read_only=True)
    username = serializers.CharField(read_only=True)
    status = serializers.CharField(source="subject.status", help_text="`active` or `disabled`.")
    is_administrator = serializers.BooleanField(source="is_superuser")
    version = serializers.IntegerField(source="subject.version", read_only=True)
    created_at = MomentField(read_only=True)


class PersonChangeSerializer(StrictSerializer):
    """What can be changed of a person."""

    status = serializers.CharField(max_length=16, help_text="`active` or `disabled`.")
    is_administrator = serializers.BooleanField()
    leave_ownerless = serializers.BooleanField(
        help_text="With `disabled`: even where nobody else owns a project of theirs (else 409 `last_owner`)."
    )


class NewPersonSerializer(StrictSerializer):
    """A person with a password; without a role anywhere."""

    username = serializers.CharField(max_length=64)
    password = serializers.CharField(max_length=1024, trim_whitespace=False, write_only=True)
    is_administrator = serializers.BooleanField(required=False, default=False)


class WaySerializer(StrictSerializer):
    """A way to sign in: an identity of a provider that stands for the person."""

    provider = serializers.CharField()
    version = serializers.IntegerField()
    created_at = MomentField()


class OnePersonSerializer(PersonSerializer):
    """A person with the ways to sign in and the number of live sessions."""

    ways = WaySerializer(many=True)
    sessions = serializers.IntegerField()


def represent(user: User) -> dict[str, Any]:
    """A person as lists show them."""
    return dict(PersonSerializer(user).data)


def _found(id: str) -> User:
    user = queries.find_person(id)
    if user is None:
        raise NotFound
    return user


class People(Endpoint):
    permissions = {"GET": ADMINISTRATOR, "POST": ADMINISTRATOR}
    fresh = frozenset({"POST"})

    @describe(summary="List people", parameters=PAGE_PARAMETERS, responses=paged(PersonSerializer))
    def get(self, request: Request) -> Response:
        return page_response(queries.page_people(**page_of(request)), represent)

    @describe(summary="Make an account", request=NewPersonSerializer, responses={201: PersonSerializer})
    def post(self, request: Request) -> Response:
        values = read_body(NewPersonSerializer, request.data)
        user = services.create_account(
            values["username"],
            values["password"],
            administrator=values["is_administrator"],
            actor=self.principal.subject,
            origin=ORIGIN,
        )
        return etag(Response(represent(_found(user.subject_id)), status=201), 1)


class OnePerson(Endpoint):
    permissions = {"GET": ADMINISTRATOR, "PATCH": ADMINISTRATOR}
    fresh = frozenset({"PATCH"})

    @describe(summary="Read a person", responses=OnePersonSerializer)
    def get(self, request: Request, id: str) -> Response:
        user = _found(id)
        document = {
            **represent(user),
            "ways": [dict(WaySerializer(way).data) for way in queries.ways_of(id)],
            "sessions": queries.count_sessions(id),
        }
        return etag(Response(document), user.subject.version)

    @describe(
        summary="Enable or disable a person, or make them administrator or not",
        description="Disabling ends every session and stops every token at once; roles stay.",
        parameters=[IF_MATCH],
        request=PersonChangeSerializer,
        responses=PersonSerializer,
    )
    def patch(self, request: Request, id: str) -> Response:
        version = if_match(request)
        changes = read_changes(PersonChangeSerializer, request.data, represent(_found(id)))
        user = services.change_person(
            id,
            version,
            status=changes.get("status"),
            administrator=changes.get("is_administrator"),
            leave_ownerless=bool(changes.get("leave_ownerless")),
            actor=self.principal.subject,
            origin=ORIGIN,
        )
        return etag(Response(represent(user)), user.subject.version)


class PersonSessions(Endpoint):
    permissions = {"DELETE": ADMINISTRATOR}

    @describe(summary="End all sessions of a person", responses={204: None})
    def delete(self, request: Request, id: str) -> Response:
        _found(id)
        services.end_sessions(id, actor=self.principal.subject, origin=ORIGIN)
        return Response(status=204)


urlpatterns = [
    path("people", People.as_view()),
    path("people/<str:id>", OnePerson.as_view()),
    path("people/<str:id>/sessions", PersonSessions.as_view()),
]
