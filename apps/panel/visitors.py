"""Who looks at a page: account, principal and roles, read once per request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo

from django.http import HttpRequest
from django.utils import timezone

from apps.access.authentication import principal_of
from apps.access.models import User
from apps.access.services import session_of
from apps.core import clock
from apps.core.errors import InvalidInput, NotFound
from apps.identity.principals import Principal
from apps.projects import permissions, queries
from apps.projects.models import Project
from apps.triggers.schedules import zones

ZONE = "ql_zone"


@dataclass(frozen=True)
class Visitor:
    """A signed-in person. Roles are for showing what can be done; the policy decides what is done."""

    account: User
    principal: Principal
    roles: Mapping[str, str]
    projects: list[Project]

    def project(self, reference: str) -> Project:
        """The project with this id, else with this slug; raises NotFound for all without a role."""
        found = [project for project in self.projects if project.pk == reference]
        found = found or [project for project in self.projects if project.slug == reference]
        if not found:
            raise NotFound
        return found[0]

    @property
    def first_project(self) -> Project | None:
        """The project of pages that belong to none: `default`, else the first."""
        own = [project for project in self.projects if project.pk == queries.DEFAULT_PROJECT]
        return next(iter(own or self.projects), None)

    def permissions(self, project: Project) -> frozenset[str]:
        """What the role in a project can ever do."""
        role = self.roles.get(project.pk)
        return permissions.of_role(role) if role else frozenset()

    def may(self, project: Project, permission: str) -> bool:
        """Whether the role in a project can ever have `permission`."""
        return permission in self.permissions(project)


def visitor_of(request: HttpRequest) -> Visitor | None:
    """The signed-in person of a request, or None; three queries. Raises DirectoryUnavailable."""
    found = session_of(request)
    if found is None or found.expires_at <= clock.now():
        return None
    user, principal = found.user, principal_of(found, request)
    bindings = queries.roles_of(principal.subject)
    return Visitor(
        account=user,
        principal=principal,
        roles={binding.project_id: str(binding.role) for binding in bindings},
        projects=[binding.project for binding in bindings],
    )


def zone_of(request: HttpRequest) -> tzinfo:
    """The zone of the visitor's browser, which its script keeps in a cookie; else the installation's."""
    name = request.COOKIES.get(ZONE)
    if name:
        try:
            return zones.zone(name)
        except InvalidInput:
            pass  # a browser may know a newer zone than we do, and anybody can write a cookie
    return timezone.get_default_timezone()
