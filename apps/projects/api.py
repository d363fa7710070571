"""Projects and who has which role in them."""

from __future__ import annotations

from typing import Any

from django.urls import path
from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.endpoints import (
    ADMINISTRATOR,
    IF_MATCH,
    ORIGIN,
    PAGE_PARAMETERS,
    ActorSerializer,
    Endpoint,
    MomentField,
    ProjectEndpoint,
    StrictSerializer,
    describe,
    etag,
    if_match,
    only_parameters,
    page_of,
    page_response,
    paged,
    read_body,
    read_changes,
)
from apps.core.errors import InvalidInput
from apps.core.fields import MAX_VERSION
from apps.identity.models import SubjectType
from apps.identity.principals import PolicySubject
from apps.projects import approval_policy, queries, services
from apps.projects.models import (
    BREAK_GLASS,
    EXEMPT,
    MAX_DECIDERS,
    MAX_QUORUM,
    MAX_REMIND_MINUTES,
    Project,
    ProjectRoleBinding,
    Role,
)
from apps.projects.services import Binding
from apps.projects.services.approval_policies import Changed
from apps.projects.services.roles import stored_binding

DECIDER_ROLES = [str(role) for role in EXEMPT]
BREAK_GLASS_ROLES = [str(role) for role in BREAK_GLASS]


class ProjectSerializer(StrictSerializer):
    """A project; `name` and `slug` can be changed."""

    id = serializers.CharField(read_only=True)
    slug = serializers.CharField(max_length=128, trim_whitespace=False)
    name = serializers.CharField(max_length=255, trim_whitespace=False)
    status = serializers.CharField(read_only=True, help_text="`active` or `archived`.")
    version = serializers.IntegerField(read_only=True)
    created_at = MomentField(read_only=True)
    updated_at = MomentField(read_only=True)


class BindingSerializer(StrictSerializer):
    """One version of a subject's role; `role` is null where it was revoked."""

    subject_type = serializers.CharField()
    subject_id = serializers.CharField()
    role = serializers.CharField(allow_null=True)
    state = serializers.CharField(help_text="`active` or `revoked`.")
    version = serializers.IntegerField()
    mutation_id = serializers.CharField()
    changed_by = ActorSerializer()
    created_at = MomentField()


class DecidersSerializer(StrictSerializer):
    """Who decides: people of these roles, and these people by subject id; never anybody without `approval.decide`."""

    roles = serializers.ListField(child=serializers.ChoiceField(choices=DECIDER_ROLES))
    people = serializers.ListField(
        child=serializers.CharField(max_length=255, trim_whitespace=False), max_length=MAX_DECIDERS
    )


class ApprovalPolicySerializer(StrictSerializer):
    """How a project decides about what needs an approval; what a change leaves out stays as it is.

    `exempt_roles` may start a task alone that needs an approval, `break_glass_roles` with a written reason.
    `remind_before_minutes` before its end a request nobody decided is pointed out; 0 never. `expected_version` is that
    of the last look, 0 where nobody ever changed it. `possible_deciders` is how many people could decide now;
    `warnings` may hold `tight`: what one of them asks for could not be decided, for too few others are left.
    """

    version = serializers.IntegerField(read_only=True)
    expected_version = serializers.IntegerField(min_value=0, max_value=MAX_VERSION - 1, write_only=True)
    quorum = serializers.IntegerField(min_value=1, max_value=MAX_QUORUM, required=False)
    deciders = DecidersSerializer(required=False)
    exempt_roles = serializers.ListField(child=serializers.ChoiceField(choices=DECIDER_ROLES), required=False)
    break_glass_roles = serializers.ListField(
        child=serializers.ChoiceField(choices=BREAK_GLASS_ROLES), required=False
    )
    remind_before_minutes = serializers.IntegerField(
        min_value=0, max_value=MAX_REMIND_MINUTES, required=False
    )
    possible_deciders = serializers.IntegerField(read_only=True)
    warnings = serializers.ListField(child=serializers.CharField(), read_only=True)
    changed_by = ActorSerializer(read_only=True, allow_null=True)
    updated_at = MomentField(read_only=True, allow_null=True)


class RoleChangeSerializer(StrictSerializer):
    """A grant, a change, or with `role` null a revocation. `expected_version` 0: no role version yet."""

    subject_type = serializers.ChoiceField(choices=[str(value) for value in SubjectType.values])
    subject_id = serializers.CharField(max_length=255, trim_whitespace=False)
    role = serializers.ChoiceField(choices=[str(value) for value in Role.values], allow_null=True)
    expected_version = serializers.IntegerField(min_value=0, max_value=MAX_VERSION - 1)
    mutation_id = serializers.CharField(max_length=64, trim_whitespace=False)


def represent(project: Project) -> Any:
    """A project as the API shows it."""
    return ProjectSerializer(project).data


def represent_binding(binding: Binding) -> Any:
    """A role binding as the API shows it."""
    document = {
        "subject_type": binding.subject.type,
        "subject_id": binding.subject.id,
        "role": binding.role,
        "state": binding.state,
        "version": binding.version,
        "mutation_id": binding.mutation_id,
        "changed_by": {"type": binding.changed_by.type, "id": binding.changed_by.id},
        "created_at": binding.created_at,
    }
    return BindingSerializer(document).data


class Projects(Endpoint):
    permissions = {"GET": "project.read", "POST": ADMINISTRATOR}

    @describe(
        summary="List the projects you have a role in",
        parameters=PAGE_PARAMETERS,
        responses=paged(ProjectSerializer),
    )
    def get(self, request: Request) -> Response:
        page = queries.page_projects(
            self.principal.subject, project_id=self.credential.project_id, **page_of(request)
        )
        return page_response(page, represent)

    @describe(
        summary="Make a project and become its owner",
        request=ProjectSerializer,
        responses={201: ProjectSerializer},
    )
    def post(self, request: Request) -> Response:
        values = read_body(ProjectSerializer, request.data)
        project = services.create_project(self.principal.subject, **values, origin=ORIGIN)
        return etag(Response(represent(project), status=201), project.version)


class OneProject(ProjectEndpoint):
    permissions = {"GET": "project.read", "PATCH": "project.manage"}

    @describe(summary="Read a project", responses=ProjectSerializer)
    def get(self, request: Request, p: str) -> Response:
        return etag(Response(represent(self.project)), self.project.version)

    @describe(
        summary="Rename a project",
        parameters=[IF_MATCH],
        request=ProjectSerializer,
        responses=ProjectSerializer,
    )
    def patch(self, request: Request, p: str) -> Response:
        version = if_match(request)
        changes = read_changes(ProjectSerializer, request.data, represent(self.project))
        empty = [name for name, value in changes.items() if value is None]
        if empty:
            raise InvalidInput(fields={name: [_("This field has no default.")] for name in empty})
        project = services.update_project(self.grant, version, **changes)
        return etag(Response(represent(project)), project.version)


class RoleBindings(ProjectEndpoint):
    permissions = {"GET": "project.read", "POST": "policy.manage"}
    fresh = frozenset({"POST"})
    while_archived = frozenset({"POST"})

    @describe(
        summary="List who has which role",
        parameters=[
            *PAGE_PARAMETERS,
            OpenApiParameter("history", str, description="`1` shows every version there ever was."),
        ],
        responses=paged(BindingSerializer),
    )
    def get(self, request: Request, p: str) -> Response:
        history = request.query_params.get("history", "0")
        if history not in ("0", "1"):
            raise InvalidInput.field("history", _("0 or 1."))
        page = queries.page_bindings(self.project_id, history=history == "1", **page_of(request, "history"))
        return page_response(page, _represent_row)

    @describe(
        summary="Grant, change or revoke a role",
        request=RoleChangeSerializer,
        responses={200: BindingSerializer, 201: BindingSerializer},
    )
    def post(self, request: Request, p: str) -> Response:
        values = read_body(RoleChangeSerializer, request.data)
        appended = services.change_role(
            self.grant,
            PolicySubject(values["subject_type"], values["subject_id"]),
            values["role"],
            expected_version=values["expected_version"],
            mutation_id=values["mutation_id"],
        )
        status = 201 if appended.outcome == "inserted" else 200
        return Response(represent_binding(appended.binding), status=status)


class Approval(ProjectEndpoint):
    """The project's policy about approvals; an addition to the contract."""

    permissions = {"GET": "project.read", "PATCH": "policy.manage"}
    fresh = frozenset({"PATCH"})

    @describe(summary="Read how the project decides about approvals", responses=ApprovalPolicySerializer)
    def get(self, request: Request, p: str) -> Response:
        only_parameters(request)
        found = approval_policy.of(self.project_id)
        return represent_policy(Changed(found, len(approval_policy.possible_deciders(found))))

    @describe(
        summary="Change how the project decides about approvals",
        request=ApprovalPolicySerializer,
        responses=ApprovalPolicySerializer,
    )
    def patch(self, request: Request, p: str) -> Response:
        values = read_body(ApprovalPolicySerializer, request.data)
        expected = values.pop("expected_version")
        deciders = values.pop("deciders", None)
        if deciders is not None:
            values |= {"decider_roles": deciders["roles"], "decider_people": deciders["people"]}
        return represent_policy(services.change_approval_policy(self.grant, expected, values))


def represent_policy(found: Changed) -> Response:
    """The policy as the API shows it."""
    policy = found.policy
    document = {
        "version": policy.version,
        "quorum": policy.quorum,
        "deciders": {"roles": list(policy.decider_roles), "people": list(policy.decider_people)},
        "exempt_roles": list(policy.exempt_roles),
        "break_glass_roles": list(policy.break_glass_roles),
        "remind_before_minutes": policy.remind_before_minutes,
        "possible_deciders": found.deciders,
        "warnings": ["tight"] if found.tight else [],
        "changed_by": None
        if policy.changed_by is None
        else {"type": policy.changed_by[0], "id": policy.changed_by[1]},
        "updated_at": policy.updated_at,
    }
    return etag(Response(ApprovalPolicySerializer(document).data), policy.version)


def _represent_row(row: ProjectRoleBinding) -> Any:
    return represent_binding(stored_binding(row))


urlpatterns = [
    path("projects", Projects.as_view()),
    path("projects/<str:p>", OneProject.as_view()),
    path("projects/<str:p>/approval-policy", Approval.as_view()),
    path("projects/<str:p>/role-bindings", RoleBindings.as_view()),
]
