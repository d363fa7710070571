"""Action types. Each has a module of its own and registers itself when the app is made ready."""

from __future__ import annotations

from apps.approvals import registry
from apps.approvals.actions.run_create import NAME, RunCreate, RunEvidence
from apps.approvals.registry import ActionType

RUN_CREATE = registry.register(
    ActionType(NAME, "run.start", "run", handler=RunCreate(), evidence=RunEvidence(), withdrawable=True)
)
