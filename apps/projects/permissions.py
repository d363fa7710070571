"""The permission registry and its matrix (projects-and-identity.md §4.1, §4.2). Later floors add rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from django.utils.translation import gettext_lazy as _

from apps.core.errors import InvalidInput
from apps.projects.models import Role

MAX_LENGTH = 255
_NAME = re.compile(r"[a-z][a-z0-9-]*\.[a-z][a-z0-9_-]*")
_TOOL = re.compile(r"tool\.call:[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass(frozen=True)
class Permission:
    """One right: its roles, whether it holds in an archived project, whether agents must ask."""

    name: str
    roles: frozenset[str]
    read: bool = False
    agent_asks: bool = True


_registry: dict[str, Permission] = {}
PERMISSIONS: Mapping[str, Permission] = MappingProxyType(_registry)


def register(
    name: str, *, roles: Iterable[str], read: bool = False, agent_asks: bool | None = None
) -> Permission:
    """Adds a permission when the process starts; a read is free for agents unless said otherwise.

    Raises ValueError for a malformed name and for a second, different entry of the same name.
    """
    if _NAME.fullmatch(name) is None or len(name) > MAX_LENGTH:
        raise ValueError("not a permission name")
    asks = not read if agent_asks is None else agent_asks
    permission = Permission(name, frozenset(str(Role(role)) for role in roles), read, asks)
    if _registry.setdefault(name, permission) != permission:
        raise ValueError("permission registered twice")
    return permission


def find(name: object) -> Permission:
    """The permission of this exact name; raises InvalidInput for all else, wildcards too."""
    if isinstance(name, str) and len(name) <= MAX_LENGTH:
        known = _registry.get(name)
        if known is not None:
            return known
        if _TOOL.fullmatch(name) is not None:
            return Permission(name, _OPERATORS)
    raise InvalidInput.field("permission", _("Not a permission."))


def of_role(role: str) -> frozenset[str]:
    """The registered permissions of a role."""
    return frozenset(name for name, permission in _registry.items() if role in permission.roles)


_OWNERS = frozenset({str(Role.OWNER)})
_ADMINS = _OWNERS | {str(Role.ADMIN)}
_OPERATORS = _ADMINS | {str(Role.OPERATOR)}
_VIEWERS = _OPERATORS | {str(Role.VIEWER)}

for _name in ("project.read", "task.read", "run.read", "artifact.read"):
    register(_name, roles=_VIEWERS, read=True)
for _name in ("task.create", "task.update", "run.start", "run.stop", "run.retry", "secret.use"):
    register(_name, roles=_OPERATORS)
for _name in (
    "task.delete", "secret.manage", "worker.manage", "policy.manage", "approval.decide", "approval.recover",
):  # fmt: skip
    register(_name, roles=_ADMINS)
register("project.manage", roles=_OWNERS)
