"""The one list of action types: who may file one, how long it may live, and who carries it out (upper-floors.md §7.14).

An action type is registered once, when the process starts; its handler and its evidence belong to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from apps.approvals import values
from apps.approvals.contract import Handler, Provider
from apps.approvals.errors import InvalidApprovalValue
from apps.approvals.models.request import DAY_MS

MAX_NAME = 64


@dataclass(frozen=True)
class ActionType:
    """`permission` is what the action needs; `filed_on` which effects of the policy may file a request for it.

    `longest_life_ms` is from filing to expiry. `handler` inspects and executes, `evidence` observes (§5.1, §7.1);
    None = an approved one waits (`handler_unavailable`), and recovery is by people only. `risk` is what a request
    is shown with that names none. `withdrawable`: whoever asked may take a request back that nobody decided.
    """

    name: str
    permission: str
    resource_type: str
    longest_life_ms: int = DAY_MS
    filed_on: frozenset[str] = frozenset({"require_approval"})
    handler: Handler | None = None
    evidence: Provider | None = None
    risk: str = "medium"
    withdrawable: bool = False


_registry: dict[str, ActionType] = {}
TYPES: Mapping[str, ActionType] = MappingProxyType(_registry)


def register(action_type: ActionType) -> ActionType:
    """Raises ValueError for a name that is none or is taken."""
    if not values.is_identifier(action_type.name, MAX_NAME):
        raise ValueError("not a name of an action type")
    if action_type.name in _registry:
        raise ValueError("action type registered twice")
    _registry[action_type.name] = action_type
    return action_type


def find(name: str) -> ActionType:
    """Raises InvalidApprovalValue for an unknown one."""
    found = _registry.get(name)
    if found is None:
        raise InvalidApprovalValue.field("action_type", "Not an action that can be asked for.")
    return found
