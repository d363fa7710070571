"""The tables of approvals (approvals.md §3), the plans they are about and how they lapse."""

from __future__ import annotations

from apps.approvals.models.execution import ApprovedActionDispatch, ApprovedActionExecution
from apps.approvals.models.plan import ApprovedActionPlan
from apps.approvals.models.receipt import ApprovedRunReceipt
from apps.approvals.models.recovery import (
    ApprovedActionRecoveryAuthorization,
    ApprovedActionRecoveryControl,
    ApprovedActionRecoveryResolution,
)
from apps.approvals.models.request import ApprovalLapse, ApprovalRequest, Risk
from apps.approvals.models.vote import ApprovalVote

__all__ = [
    "ApprovalLapse",
    "ApprovalRequest",
    "ApprovalVote",
    "ApprovedActionDispatch",
    "ApprovedActionExecution",
    "ApprovedActionPlan",
    "ApprovedActionRecoveryAuthorization",
    "ApprovedActionRecoveryControl",
    "ApprovedActionRecoveryResolution",
    "ApprovedRunReceipt",
    "Risk",
]
