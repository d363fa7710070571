"""Who may file, decide and be acted for, and that it still holds when it is written (approvals.md §4.1, §4.2)."""

from __future__ import annotations

from collections.abc import Collection

from apps.approvals import errors
from apps.identity.principals import PolicySubject
from apps.projects import policy
from apps.projects.errors import PolicyFenceConflict
from apps.projects.policy import Grant

ALLOWED = frozenset({"allow"})
CARRIED_OUT = frozenset({"allow", "require_approval"})
ORIGIN = "approvals"


def admit(subject: PolicySubject, project_id: str, permission: str, effects: Collection[str]) -> Grant:
    """The decision with its fence, where its effect is one of `effects`; raises ApprovalPolicyDenied.

    What it returns is no right to act: only `hold` takes it.
    """
    return look(subject, project_id, permission, effects)[0]


def look(
    subject: PolicySubject, project_id: str, permission: str, effects: Collection[str]
) -> tuple[Grant, str]:
    """The same with the effect that was found."""
    found = policy.decide(subject, project_id, permission)
    if found.effect not in effects or found.fence is None:
        raise errors.ApprovalPolicyDenied
    return Grant(subject, project_id, permission, found.fence, ORIGIN), found.effect


def hold(admitted: Grant) -> None:
    """Holds the project still and checks the fence again, inside the write transaction; raises PolicyFenceConflict."""
    try:
        policy.confirm(admitted)
    except PolicyFenceConflict as error:
        raise errors.PolicyFenceConflict from error
