"""Links by which somebody new comes in: for instance administrators, and for those who give roles in a project."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.urls import path
from django.utils.translation import gettext_lazy as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access import queries, services
from apps.access.addresses import invitation_link
from apps.access.endpoints import (
    ADMINISTRATOR,
    ORIGIN,
    PAGE_PARAMETERS,
    ActorSerializer,
    Endpoint,
    MomentField,
    ProjectEndpoint,
    ReferenceSerializer,
    StrictSerializer,
    describe,
    page_of,
    page_response,
    paged,
    read_body,
)
from apps.access.models import Invitation
from apps.access.services.invitations import LASTS, LONGEST, SHORTEST, inviter_of
from apps.core.errors import InvalidInput
from apps.projects.models import Role
from apps.projects.policy import Grant
from apps.projects.queries import find as find_project

_MS = timedelta(milliseconds=1)
_TOGETHER = _("A role belongs to a project: name both or neither.")


class InvitationSerializer(StrictSerializer):
    """An open invitation; `username` is a suggestion, empty for none."""

    id = serializers.UUIDField()
    username = serializers.CharField()
    is_administrator = serializers.BooleanField()
    project = ReferenceSerializer(allow_null=True)
    role = serializers.CharField(allow_null=True)
    invited_by = ActorSerializer()
    created_at = MomentField()
    expires_at = MomentField()


class MadeInvitationSerializer(InvitationSerializer):
    """`url` is the link itself; it is in this answer and nowhere else."""

    url = serializers.CharField()


class NewMemberSerializer(StrictSerializer):
    """An invitation into the project of the address."""

    username = serializers.CharField(max_length=64, required=False, allow_blank=True, default="")
    role = serializers.ChoiceField(choices=[str(value) for value in Role.values])
    expires_in_ms = serializers.IntegerField(
        required=False,
        default=LASTS // _MS,
        min_value=SHORTEST // _MS,
        max_value=LONGEST // _MS,
        help_text="From 5 minutes to 30 days; 7 days without it.",
    )


class NewInvitationSerializer(NewMemberSerializer):
    """An invitation with a role in `project` (which needs `policy.manage` there), or with neither of the two."""

    role = serializers.ChoiceField(
        choices=[str(value) for value in Role.values], required=False, allow_null=True, default=None
    )
    project = serializers.CharField(max_length=128, required=False, allow_null=True, default=None)
    is_administrator = serializers.BooleanField(required=False, default=False)


def represent(row: Invitation) -> dict[str, Any]:
    """An invitation as the API shows it."""
    project, by = row.project, inviter_of(row)
    document = {
        "id": row.pk,
        "username": row.username,
        "is_administrator": row.is_administrator,
        "project": None if project is None else {"id": project.pk, "slug": project.slug},
        "role": row.role,
        "invited_by": {"type": by.type, "id": by.id},
        "created_at": row.created_at,
        "expires_at": row.expires_at,
    }
    return dict(InvitationSerializer(document).data)


def _made(view: Endpoint, values: dict[str, Any], grant: Grant | None, *, administrator: bool) -> Response:
    made = services.invite(
        view.principal.subject,
        username=values["username"],
        administrator=administrator,
        grant=grant,
        role=values["role"],
        lasts=values["expires_in_ms"] * _MS,
        origin=ORIGIN,
    )
    url = invitation_link(view.request, made.secret)
    return Response({**represent(made.invitation), "url": url}, status=201)


class Invitations(Endpoint):
    permissions = {"GET": ADMINISTRATOR, "POST": ADMINISTRATOR}
    fresh = frozenset({"POST"})

    @describe(
        summary="List open invitations", parameters=PAGE_PARAMETERS, responses=paged(InvitationSerializer)
    )
    def get(self, request: Request) -> Response:
        return page_response(queries.page_invitations(**page_of(request)), represent)

    @describe(
        summary="Make a one-time link for somebody new",
        request=NewInvitationSerializer,
        responses={201: MadeInvitationSerializer},
    )
    def post(self, request: Request) -> Response:
        values = read_body(NewInvitationSerializer, request.data)
        project = values["project"]
        if (project is None) != (values["role"] is None):
            raise InvalidInput.field("role" if project else "project", _TOGETHER)
        grant = None if project is None else self.authorize(find_project(project).pk, "policy.manage")
        return _made(self, values, grant, administrator=values["is_administrator"])


class OneInvitation(Endpoint):
    permissions = {"DELETE": ADMINISTRATOR}

    @describe(summary="Revoke an open invitation", responses={204: None})
    def delete(self, request: Request, id: UUID) -> Response:
        services.revoke_invitation(id, actor=self.principal.subject, origin=ORIGIN)
        return Response(status=204)


class ProjectInvitations(ProjectEndpoint):
    permissions = {"GET": "policy.manage", "POST": "policy.manage"}
    fresh = frozenset({"POST"})
    while_archived = frozenset({"GET", "HEAD"})

    @describe(
        summary="List the open invitations into a project",
        parameters=PAGE_PARAMETERS,
        responses=paged(InvitationSerializer),
    )
    def get(self, request: Request, p: str) -> Response:
        page = queries.page_invitations(project_id=self.project_id, **page_of(request))
        return page_response(page, represent)

    @describe(
        summary="Make a one-time link for somebody new, with a role in a project",
        request=NewMemberSerializer,
        responses={201: MadeInvitationSerializer},
    )
    def post(self, request: Request, p: str) -> Response:
        values = read_body(NewMemberSerializer, request.data)
        return _made(self, values, self.grant, administrator=False)


class OneProjectInvitation(ProjectEndpoint):
    permissions = {"DELETE": "policy.manage"}
    while_archived = frozenset({"DELETE"})

    @describe(summary="Revoke an open invitation into a project", responses={204: None})
    def delete(self, request: Request, p: str, id: UUID) -> Response:
        services.revoke_invitation(
            id, project_id=self.project_id, actor=self.principal.subject, origin=ORIGIN
        )
        return Response(status=204)


urlpatterns = [
    path("people/invitations", Invitations.as_view()),
    path("people/invitations/<uuid:id>", OneInvitation.as_view()),
    path("projects/<str:p>/invitations", ProjectInvitations.as_view()),
    path("projects/<str:p>/invitations/<uuid:id>", OneProjectInvitation.as_view()),
]
