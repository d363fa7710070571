"""How django-axes counts failures here: it looks after the pair that is asked about, and writes once."""

from __future__ import annotations

from typing import Any

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.models import AccessAttempt
from django.http import HttpRequest


class PairCounter(AxesDatabaseHandler):  # type: ignore[misc]
    """Named by AXES_HANDLER.

    axes would go through the failures of everybody, and take SQLite's one writer, at each failure of anybody; what
    is over is forgotten by `access.jobs.tidy`. Only an old count of this very pair must not go on.
    """

    def clean_expired_user_attempts(
        self, request: HttpRequest | None = None, credentials: dict[str, Any] | None = None
    ) -> int:
        """Forgets failures of this pair that are over; returns how many rows that were."""
        old = [
            pk
            for attempts in self.filter_user_attempts(request, credentials)
            for pk in attempts.filter(attempt_time__lte=get_cool_off_threshold(request)).values_list(
                "pk", flat=True
            )
        ]
        return AccessAttempt.objects.filter(pk__in=old).delete()[0] if old else 0
