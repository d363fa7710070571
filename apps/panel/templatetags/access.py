"""Filters that say in words how somebody signed in, from what, and where a role comes from."""

from __future__ import annotations

import re

from django import template
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext, pgettext_lazy

from apps.access.oidc import providers
from apps.projects.models import ProjectRoleBinding
from apps.projects.services.derived import SOURCES

register = template.Library()

_WAYS: dict[str, Promise] = {
    "password": gettext_lazy("password"),
    "password_code": gettext_lazy("password and code"),
    "password_recovery": gettext_lazy("password and recovery code"),
    "password_passkey": gettext_lazy("password and passkey"),
    "passkey": gettext_lazy("passkey"),
    "oidc": gettext_lazy("single sign-on"),
}
_SURE: dict[str, Promise] = {
    "single_factor": gettext_lazy("one proof"),
    "multi_factor": gettext_lazy("two proofs"),
    "hardware": gettext_lazy("proof bound to a device"),
}
_TYPES: dict[str, Promise] = {
    "api_app": pgettext_lazy("subject", "API application"),
    "agent": pgettext_lazy("subject", "Agent"),
    "mcp_client": pgettext_lazy("subject", "MCP client"),
    "worker": pgettext_lazy("subject", "Worker"),
}
_SOURCES: dict[str, Promise] = {
    "invitation": pgettext_lazy("source of a role", "link for somebody new"),
    "project-created": pgettext_lazy("source of a role", "made the project"),
}
_SYSTEM_SOURCES: dict[str, Promise] = {
    "owner-bootstrap": pgettext_lazy("source of a role", "set-up link"),
    "console": pgettext_lazy("source of a role", "console"),
}
# The first that matches counts: browsers name their forebears too.
_BROWSERS = (
    ("Edg", "Edge"),
    ("OPR", "Opera"),
    ("Firefox", "Firefox"),
    ("Chrome", "Chrome"),
    ("Safari", "Safari"),
)
_SYSTEMS = (
    ("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("Windows", "Windows"), ("Mac OS", "macOS"),
    ("Linux", "Linux"),
)  # fmt: skip


@register.filter
def way_in(method: str) -> str:
    """`password and code`."""
    return str(_WAYS.get(method, method))


@register.filter
def assurance_word(assurance: str) -> str:
    """`two proofs`."""
    return str(_SURE.get(assurance, assurance))


@register.filter
def subject_type(kind: str) -> str:
    """`Agent`."""
    return str(_TYPES.get(kind, kind))


@register.filter
def role_source(row: ProjectRoleBinding) -> str:
    """How a role came or went: by hand, by a provider's groups, by a link."""
    if row.changed_by_type == "system":
        provider = providers.find_key(row.changed_by_id)
        if provider is not None:
            return _("groups at %(name)s") % {"name": provider.name}
        if row.changed_by_id.startswith(SOURCES):
            return _("groups at %(name)s") % {"name": row.changed_by_id}
        return str(_SYSTEM_SOURCES.get(row.changed_by_id, row.changed_by_id))
    kind = row.mutation_id.partition(":")[0]
    return str(_SOURCES.get(kind, pgettext("source of a role", "by hand")))


@register.filter
def browser_name(agent: str) -> str:
    """`Firefox, Linux`: what a browser says of itself, as far as people care."""
    browser = next((word for mark, word in _BROWSERS if re.search(rf"\b{mark}", agent)), "")
    system = next((word for mark, word in _SYSTEMS if mark in agent), "")
    return ", ".join(part for part in (browser, system) if part) or _("unknown device")
