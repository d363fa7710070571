"""Every write of approvals."""

from __future__ import annotations

from apps.approvals.services.consuming import Consumed, Consumption, consume
from apps.approvals.services.creating import Filed, NewRequest, create
from apps.approvals.services.deciding import Decided, Verdict, decide
from apps.approvals.services.filing import Wish, file_request
from apps.approvals.services.withdrawing import withdraw

__all__ = [
    "Consumed",
    "Consumption",
    "Decided",
    "Filed",
    "NewRequest",
    "Verdict",
    "Wish",
    "consume",
    "create",
    "decide",
    "file_request",
    "withdraw",
]
