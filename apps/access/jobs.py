"""What sign-in leaves behind: ended sessions, exchanged tokens, old invitations and failures are forgotten."""

from __future__ import annotations

from datetime import timedelta

from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.sessions.models import Session
from django.utils import timezone

from apps.access.services.invitations import forget_invitations
from apps.access.services.sessions import forget_expired_sessions
from apps.access.services.tokens import forget_access_tokens
from apps.core import clock, control, db

BATCH = 1000


@db.write_transaction
def _forget_strangers() -> None:
    """Half-begun sign-ins and counted failures; their times are Django's own."""
    ended = Session.objects.filter(expire_date__lte=timezone.now()).order_by("expire_date")
    Session.objects.filter(pk__in=list(ended.values_list("pk", flat=True)[:BATCH])).delete()
    old = AccessAttempt.objects.filter(attempt_time__lte=timezone.now() - settings.AXES_COOLOFF_TIME)
    AccessAttempt.objects.filter(pk__in=list(old.values_list("pk", flat=True)[:BATCH])).delete()


def tidy(cursor: control.Cursor) -> control.Cursor | None:
    """One batch of each kind; what is left comes next time."""
    forget_expired_sessions(BATCH)
    forget_access_tokens(clock.now() - timedelta(days=1), BATCH)
    forget_invitations(BATCH)
    _forget_strangers()
    return None


control.register("access.tidy", tidy, 600_000)
