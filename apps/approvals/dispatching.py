"""The dispatcher: claims what is due, looks at it again, passes the barrier, and carries it out (approvals.md §5.1)."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from apps.approvals import due, registry, values
from apps.approvals.contract import (
    ENDED,
    OUTCOMES,
    RECOVERY_REQUIRED,
    Block,
    Handler,
    Held,
    Inspection,
    Ready,
    Result,
    Snapshot,
    Wait,
    holding,
)
from apps.approvals.due import Position
from apps.approvals.heartbeat import Heartbeat
from apps.approvals.services import execution
from apps.core import clock, ids
from apps.core.errors import DomainError

PAGE = 16
RETRY_FIRST_MS = 1_000
RETRY_MOST_MS = 60_000
NO_HANDLER = "handler_unavailable"
NOT_INSPECTED = "handler_inspection_failed"
OTHER_DIGEST = "action_digest_mismatch"
AFTER_START = "handler_failed_after_start"

logger = logging.getLogger("qinglong.approvals")


@dataclass
class Report(due.Report):
    """What a page of the dispatcher came to."""

    started: int = 0
    succeeded: int = 0
    failed: int = 0
    blocked: int = 0
    retrying: int = 0
    deferred: int = 0
    recovery_required: int = 0
    already_terminal: int = 0


def owner_name(part: str) -> str:
    """A name for a process of ours that holds leases: new at each start."""
    return f"{part}:{secrets.token_hex(12)}"


def dispatch_page(
    owner: str, limit: int = PAGE, after: Position | None = None, *, lease_ms: int = execution.LEASE_MS
) -> Report:
    """Carries out one page of what is due; one that fails does not stop the others.

    Raises InvalidApprovedActionExecution, and what the database raises where nothing can be listed.
    """
    found = due.executions(clock.now(), limit, after)
    report = Report()
    report.go_through(found, lambda dispatch_id: _carry(dispatch_id, owner, lease_ms, report))
    return report


def retry_delay_ms(attempt: int) -> int:
    """How long to wait after a try that did not pass the barrier: 1, 2, 4, 8 … 60 s."""
    return min(RETRY_MOST_MS, RETRY_FIRST_MS << (attempt - 1))


def _carry(dispatch_id: str, owner: str, lease_ms: int, report: Report) -> None:
    claimed = execution.claim(dispatch_id, owner, secrets.token_hex(32), clock.now(), lease_ms)
    if claimed.status != "claimed" or claimed.snapshot is None:
        _count_unclaimed(claimed, report)
        return
    report.claimed += 1
    found = claimed.snapshot
    kind = registry.TYPES.get(found.dispatch.action_type)
    handler = None if kind is None else kind.handler
    if handler is None:
        _put_off(found, NO_HANDLER, report)
        return
    seen = _inspect(handler, found)
    if isinstance(seen, Wait):
        _put_off(found, seen.code, report)
    elif isinstance(seen, Block):
        _refuse(found, seen.code, report)
    elif seen.digest != found.dispatch.action_digest:
        _refuse(found, OTHER_DIGEST, report)
    else:
        _start(handler, found, lease_ms, report)


def _count_unclaimed(claimed: execution.Claimed, report: Report) -> None:
    last = None if claimed.snapshot is None else claimed.snapshot.execution.last_result_code
    if claimed.status == "blocked" and last == execution.EXHAUSTED:
        report.blocked += 1
    elif claimed.status in ENDED:
        report.already_terminal += 1
    elif claimed.status == RECOVERY_REQUIRED:
        report.recovery_required += 1
    elif claimed.status == "not_found":
        report.unavailable += 1
    else:
        report.deferred += 1


def _inspect(handler: Handler, found: Snapshot) -> Inspection:
    """What the handler sees; whatever is no answer of the contract means "not now"."""
    try:
        seen: object = handler.inspect(found.dispatch)
    except Exception as error:
        _log("inspection", error)
        return Wait(NOT_INSPECTED)
    if isinstance(seen, Ready) and values.is_digest(seen.digest):
        return seen
    if isinstance(seen, Wait | Block) and values.is_identifier(seen.code, 64):
        return seen
    return Wait(NOT_INSPECTED)


def _put_off(found: Snapshot, code: str, report: Report) -> None:
    now = clock.now()
    again = now + timedelta(milliseconds=retry_delay_ms(found.execution.attempt_count))
    after = execution.release_before_start(holding(found.execution), _new_id(), code, now, again)
    if after.execution.status == "blocked":
        report.blocked += 1
    else:
        report.retrying += 1


def _refuse(found: Snapshot, code: str, report: Report) -> None:
    execution.release_before_start(holding(found.execution), _new_id(), code, clock.now())
    report.blocked += 1


def _start(handler: Handler, found: Snapshot, lease_ms: int, report: Report) -> None:
    dispatch = found.dispatch
    started = execution.start(
        holding(found.execution), dispatch.approval_request_id, dispatch.action_digest, clock.now()
    )
    report.started += 1
    # From here on whatever goes wrong is for recovery: nothing is carried out twice.
    with Heartbeat(holding(started.execution), lease_ms) as beat:
        result = _execute(handler, started)
    try:
        _complete(beat.held, result, clock.now())
    except DomainError as error:
        report.recovery_required += 1
        raise error
    if result.outcome == "indeterminate":
        report.blocked += 1
    elif result.outcome == "succeeded":
        report.succeeded += 1
    else:
        report.failed += 1


def _execute(handler: Handler, started: Snapshot) -> Result:
    unknown = Result("indeterminate", AFTER_START)
    try:
        result: object = handler.execute(started, started.dispatch.pk, holding(started.execution))
    except Exception as error:
        _log("handler", error)
        return unknown
    if not isinstance(result, Result) or result.outcome not in OUTCOMES:
        return unknown
    return result if values.is_identifier(result.code, 64) else unknown


def _complete(held: Held, result: Result, at: datetime) -> None:
    execution.complete(held, _new_id(), result.outcome, result.code, at)


def _new_id() -> str:
    return str(ids.uuid7())


def _log(what: str, error: Exception) -> None:
    # The type alone: the message may quote what was to be done.
    logger.warning("the %s of an approved action failed: %s", what, type(error).__name__)
