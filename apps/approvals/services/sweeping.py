"""What the control cluster does for requests: hands approved ones over, writes down what lapsed."""

from __future__ import annotations

import logging
from datetime import datetime

from django.db.models import QuerySet

from apps.approvals.errors import ApprovalPolicyDenied
from apps.approvals.models import ApprovalRequest
from apps.approvals.services.consuming import Consumption, consume
from apps.approvals.services.lapsing import OPEN, settle
from apps.core import clock, pages
from apps.core.errors import DomainError

PAGE = 64
ORDER = (pages.moment("expires_at"), pages.Key("id"))
Position = tuple[datetime, str]

logger = logging.getLogger("qinglong.approvals")


def consume_page(after: Position | None = None) -> Position | None:
    """Consumes one page of approved requests, the soonest to expire first; returns where to go on, None at the end.

    One that cannot be consumed does not stop the others: it is tried again later or has lapsed.
    """
    rows = ApprovalRequest.objects.filter(state="approved", expires_at__gt=clock.now(), lapse__isnull=True)
    found = _page(rows, after)
    for request in found:
        try:
            consume(Consumption.of(request))
        except ApprovalPolicyDenied:
            _settle(request)
        except DomainError as error:
            logger.warning("an approval could not be consumed: %s", error.code)
    return _position(found) if len(found) == PAGE else None


def expire_page(after: Position | None = None) -> tuple[Position | None, bool]:
    """Writes down one page of what expired behind a position; returns the new one and whether there may be more.

    New requests expire later than now, so nobody ever has to go back.
    """
    found = _page(ApprovalRequest.objects.filter(state__in=OPEN, expires_at__lte=clock.now()), after)
    for request in found:
        _settle(request)
    return (_position(found) if found else after), len(found) == PAGE


def void_page(after: Position | None = None) -> Position | None:
    """Looks at one page of open requests and writes down what changed under them; returns where to go on, or None."""
    rows = ApprovalRequest.objects.filter(state__in=OPEN, expires_at__gt=clock.now(), lapse__isnull=True)
    found = _page(rows, after)
    for request in found:
        _settle(request)
    return _position(found) if len(found) == PAGE else None


def _page(rows: QuerySet[ApprovalRequest], after: Position | None) -> list[ApprovalRequest]:
    if after is not None:
        rows = rows.filter(pages.after(ORDER, list(after)))
    return list(rows.order_by("expires_at", "id")[:PAGE])


def _position(found: list[ApprovalRequest]) -> Position:
    return found[-1].expires_at, found[-1].pk


def _settle(request: ApprovalRequest) -> None:
    try:
        settle(request.pk)
    except DomainError as error:
        logger.warning("an approval could not be looked at: %s", error.code)
