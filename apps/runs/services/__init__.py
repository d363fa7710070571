"""Every write of runs, one function per use case."""

from apps.runs.services.cancel import CancelResult, cancel_queued, request_cancel
from apps.runs.services.door import Alone
from apps.runs.services.retry import retry_run
from apps.runs.services.start import Skipped, Started, start_run
from apps.runs.services.totals import fold_totals

__all__ = [
    "Alone", "CancelResult", "Skipped", "Started", "cancel_queued", "fold_totals", "request_cancel", "retry_run",
    "start_run",
]  # fmt: skip
