"""What an action type brings: how it is looked at, done once, and found again (approvals.md §5.1, §7.1)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from apps.approvals.models import (
    ApprovedActionDispatch,
    ApprovedActionExecution,
    ApprovedActionRecoveryAuthorization,
    ApprovedActionRecoveryControl,
    ApprovedActionRecoveryResolution,
)
from apps.core import leases

# The version is the generation: every write of a holder raises it, so a fence names one write.
SHAPE = leases.Shape(generation="version", acquired_at="updated_at", renewed_at="updated_at")
Held = leases.Claim[ApprovedActionExecution]
HeldControl = leases.Claim[ApprovedActionRecoveryControl]

ENDED = ("succeeded", "failed", "blocked")
RECOVERY_REQUIRED = "recovery_required"


@dataclass(frozen=True)
class Snapshot:
    """A dispatch and how far it has come, read together and checked."""

    dispatch: ApprovedActionDispatch
    execution: ApprovedActionExecution

    def status(self, now: datetime) -> str:
        """As stored, but `recovery_required` where its holder's time is over behind the barrier."""
        row = self.execution
        expired = row.lease_expires_at is not None and row.lease_expires_at <= now
        return RECOVERY_REQUIRED if row.status == "executing" and expired else row.status


@dataclass(frozen=True)
class RecoverySnapshot(Snapshot):
    """The same with what recovery has found so far."""

    control: ApprovedActionRecoveryControl
    resolution: ApprovedActionRecoveryResolution | None = None
    authorization: ApprovedActionRecoveryAuthorization | None = None


@dataclass(frozen=True)
class Ready:
    """What would be done is still known; `digest` is worked out anew, never taken from the request."""

    digest: str


@dataclass(frozen=True)
class Wait:
    """Not now: tried again a few times; `code` says why."""

    code: str


@dataclass(frozen=True)
class Block:
    """Never: `code` says what is no longer as it was approved."""

    code: str


Inspection = Ready | Wait | Block
Outcome = Literal["succeeded", "failed", "indeterminate"]
OUTCOMES: tuple[Outcome, ...] = ("succeeded", "failed", "indeterminate")


@dataclass(frozen=True)
class Result:
    """What became of the action; `indeterminate` where nobody can tell."""

    outcome: Outcome
    code: str


@dataclass(frozen=True)
class Evidence:
    """What was observed: one of the findings of §3.4; verified ones name their evidence by digest."""

    finding: str
    result_code: str
    digest: str | None = None


class Handler(Protocol):
    """Carries an action out. Whatever `execute` does must be bound to `key`, the dispatch's id."""

    def inspect(self, dispatch: ApprovedActionDispatch) -> Inspection:
        """Looks at what would be done, without any effect; whatever it raises counts as "not now"."""
        ...

    def execute(self, snapshot: Snapshot, key: str, held: Held) -> Result:
        """Does it. Called once for a dispatch, ever; whatever it raises leaves the outcome unknown."""
        ...


class Provider(Protocol):
    """Looks for evidence, and does nothing else; "missing" never means that it did not happen."""

    @property
    def capability(self) -> Literal["automatic", "manual_only"]:
        """Whether it is asked at all."""
        ...

    def observe(self, snapshot: Snapshot, key: str, observed_at: datetime) -> Evidence:
        """What is on record; raises where storage does not answer."""
        ...


def holding(row: ApprovedActionExecution) -> Held:
    """What the holder of a leased or executing row knows."""
    assert row.lease_owner is not None and row.lease_token is not None and row.lease_expires_at is not None
    return leases.Claim(
        row, row.lease_owner, row.version, row.updated_at, row.lease_expires_at, row.lease_token
    )


def holding_control(row: ApprovedActionRecoveryControl) -> HeldControl:
    """What the holder of a leased control knows."""
    assert row.lease_owner is not None and row.lease_token is not None and row.lease_expires_at is not None
    return leases.Claim(
        row, row.lease_owner, row.version, row.updated_at, row.lease_expires_at, row.lease_token
    )
