"""Changing how a project decides about what needs an approval (docs/approvals.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from apps.audit import services as audit
from apps.core import cas, clock, db, ids
from apps.core.errors import InvalidInput, VersionConflict
from apps.identity.models import IdentitySubject
from apps.projects import approval_policy
from apps.projects.approval_policy import ApprovalPolicy
from apps.projects.errors import NobodyCouldDecide
from apps.projects.models import (
    BREAK_GLASS,
    EXEMPT,
    MAX_DECIDERS,
    MAX_QUORUM,
    MAX_REMIND_MINUTES,
    Project,
    ProjectApprovalPolicy,
)
from apps.projects.policy import Grant, confirm

PERMISSION = "policy.manage"
FIELDS = (
    "quorum", "decider_roles", "decider_people", "exempt_roles", "break_glass_roles", "remind_before_minutes",
)  # fmt: skip


@dataclass(frozen=True)
class Changed:
    """The policy as it is now, and how many people could decide under it.

    `tight`: what one of them asks for cannot be decided any more, for too few others are left.
    """

    policy: ApprovalPolicy
    deciders: int

    @property
    def tight(self) -> bool:
        return self.deciders - 1 < self.policy.quorum


@db.write_transaction
def change_approval_policy(grant: Grant, expected_version: int, changes: Mapping[str, Any]) -> Changed:
    """Replaces the named fields (FIELDS); needs `policy.manage`, and whoever calls asks for a fresh sign-in.

    `expected_version` 0: nobody ever changed it. Where nothing changes the version stays. Raises VersionConflict,
    InvalidInput, NobodyCouldDecide where fewer could decide than must agree, and what `policy.confirm` raises.
    """
    # The row itself, as for roles: nobody who decides or starts at this moment reads half of it.
    db.lock(Project.objects.filter(pk=grant.project_id)).first()
    confirm(grant, PERMISSION)
    before = approval_policy.of(grant.project_id)
    if before.version != expected_version:
        raise VersionConflict(before.version)
    wanted = replace(before, **_checked(before, changes))
    deciders = len(approval_policy.possible_deciders(wanted))
    if wanted == before:
        return Changed(before, deciders)
    if deciders < wanted.quorum:
        raise NobodyCouldDecide(possible_deciders=deciders, quorum=wanted.quorum)
    _store(grant, wanted)
    now = approval_policy.of(grant.project_id)
    different = [name for name in FIELDS if getattr(now, name) != getattr(before, name)]
    audit.record(
        grant.project_id,
        actor=grant.actor.pair,
        action="approval_policy.changed",
        subject=("project", grant.project_id),
        metadata={
            "version": now.version,
            "before": {name: _plain(getattr(before, name)) for name in different},
            "after": {name: _plain(getattr(now, name)) for name in different},
        },
        origin=grant.origin,
    )
    return Changed(now, deciders)


def _store(grant: Grant, wanted: ApprovalPolicy) -> None:
    now = clock.now()
    values: dict[str, Any] = {
        name: ",".join(value) if name.endswith("_roles") else _plain(value)
        for name, value in asdict(wanted).items()
        if name in FIELDS
    }
    values |= {"changed_by_type": grant.actor.type, "changed_by_id": grant.actor.id, "updated_at": now}
    if wanted.version == 0:
        ProjectApprovalPolicy.objects.create(project_id=grant.project_id, created_at=now, **values)
        return
    cas.update(ProjectApprovalPolicy.objects.filter(pk=grant.project_id), version=wanted.version, **values)


def _checked(before: ApprovalPolicy, changes: Mapping[str, Any]) -> dict[str, Any]:
    wrong: dict[str, list[str | Promise]] = {}
    values: dict[str, Any] = {}
    for name, value in changes.items():
        try:
            values[name] = _value(before, name, value)
        except ValueError as error:
            wrong[name] = [error.args[0]]
    if wrong:
        raise InvalidInput(fields=wrong)
    return values


def _value(before: ApprovalPolicy, name: str, value: Any) -> Any:
    """A field as it is stored; raises ValueError with a sentence."""
    match name:
        case "quorum":
            return _whole(value, 1, MAX_QUORUM)
        case "remind_before_minutes":
            return _whole(value, 0, MAX_REMIND_MINUTES)
        case "decider_roles" | "exempt_roles":
            return _roles(value, EXEMPT)
        case "break_glass_roles":
            return _roles(value, BREAK_GLASS)
        case "decider_people":
            return _people(before, value)
    raise ValueError(_("There is no such field."))


def _whole(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(
            _("A whole number from %(least)s to %(most)s.") % {"least": f"{least:,}", "most": f"{most:,}"}
        )
    return value


def _roles(value: Any, known: tuple[Any, ...]) -> tuple[str, ...]:
    names = [str(name) for name in known]
    if not isinstance(value, list | tuple) or any(name not in names for name in value):
        raise ValueError(_("A list of some of these: %(names)s.") % {"names": ", ".join(names)})
    return tuple(name for name in names if name in value)


def _people(before: ApprovalPolicy, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_DECIDERS:
        raise ValueError(_("A list of at most 100 people."))
    if any(not ids.is_text_id(one, 255) for one in value):
        raise ValueError(_("There is no such person."))
    fresh = set(value) - set(before.decider_people)
    rows = IdentitySubject.objects.filter(pk__in=fresh, type="user")
    if set(rows.values_list("pk", flat=True)) != fresh:
        raise ValueError(_("There is no such person."))
    return tuple(sorted(set(value)))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
