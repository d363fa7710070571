"""The reconciler: looks for evidence of what was started and not ended, and does nothing else (approvals.md §7.3)."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from apps.approvals import due, registry, values
from apps.approvals.action_records import FINDINGS, FOR_PEOPLE, VERIFIED
from apps.approvals.contract import Evidence, Provider, RecoverySnapshot, holding_control
from apps.approvals.due import Position
from apps.approvals.services import recovery
from apps.approvals.services.recovery import Found, Resolution
from apps.core import clock, ids

PAGE = 16
RETRY_FIRST_MS = 5_000
RETRY_MOST_MS = 300_000
UNSUPPORTED = Evidence("unsupported", "automatic_recovery_unsupported")
UNAVAILABLE = Evidence("unavailable", "recovery_evidence_unavailable")
INVALID = Evidence("conflict", "recovery_evidence_invalid")

logger = logging.getLogger("qinglong.approvals")


@dataclass
class Report(due.Report):
    """What a page of the reconciler came to."""

    verified_succeeded: int = 0
    verified_failed: int = 0
    deferred: int = 0
    manual_required: int = 0
    execution_active: int = 0
    already_resolved: int = 0


def recover_page(
    owner: str, limit: int = PAGE, after: Position | None = None, *, lease_ms: int = recovery.LEASE_MS
) -> Report:
    """Looks after one page of what is due; one that fails does not stop the others.

    Raises InvalidApprovedActionRecovery, and what the database raises where nothing can be listed.
    """
    found = due.controls(clock.now(), limit, after)
    report = Report()
    report.go_through(found, lambda dispatch_id: _look_after(dispatch_id, owner, lease_ms, report))
    return report


def retry_delay_ms(finding_number: int) -> int:
    """How long to wait after a finding that settles nothing: 5, 10, 20 … 300 s, for ever."""
    return min(RETRY_MOST_MS, RETRY_FIRST_MS << min(finding_number - 1, 16))


def _look_after(dispatch_id: str, owner: str, lease_ms: int, report: Report) -> None:
    claimed = recovery.claim(dispatch_id, owner, secrets.token_hex(32), clock.now(), lease_ms)
    if claimed.status != "claimed" or claimed.snapshot is None:
        if claimed.status == "execution_active":
            report.execution_active += 1
        elif claimed.status == "resolved":
            report.already_resolved += 1
        elif claimed.status == "manual_required":
            report.manual_required += 1
        else:
            report.deferred += 1
        return
    report.claimed += 1
    found = claimed.snapshot
    now = clock.now()
    seen = _observe(found, now)
    if seen.finding in VERIFIED:
        _resolve(found, seen, now, report)
    else:
        _record(found, seen, now, report)


def _observe(found: RecoverySnapshot, now: datetime) -> Evidence:
    kind = registry.TYPES.get(found.dispatch.action_type)
    provider: Provider | None = None if kind is None else kind.evidence
    if provider is None or provider.capability != "automatic":
        return UNSUPPORTED
    try:
        seen: object = provider.observe(found, found.dispatch.pk, now)
    except Exception as error:
        logger.warning("evidence could not be looked for: %s", type(error).__name__)
        return UNAVAILABLE
    sound = (
        isinstance(seen, Evidence)
        and seen.finding in FINDINGS
        and values.is_identifier(seen.result_code, 64)
        and (seen.digest is None or values.is_digest(seen.digest))
        and (seen.finding not in VERIFIED or seen.digest is not None)
    )
    return seen if sound and isinstance(seen, Evidence) else INVALID


def _resolve(found: RecoverySnapshot, seen: Evidence, now: datetime, report: Report) -> None:
    done = recovery.resolve(
        Resolution(
            dispatch_id=found.dispatch.pk,
            execution_version=found.execution.version,
            control_version=found.control.version,
            mutation_id=str(ids.uuid7()),
            decision=VERIFIED[seen.finding],
            reason_code=seen.result_code,
            resolved_at=now,
            evidence_digest=seen.digest,
            held=holding_control(found.control),
        )
    )
    if done.status != "resolved":
        report.already_resolved += 1
    elif seen.finding == "verified_succeeded":
        report.verified_succeeded += 1
    else:
        report.verified_failed += 1


def _record(found: RecoverySnapshot, seen: Evidence, now: datetime, report: Report) -> None:
    again: datetime | None = None
    if seen.finding not in FOR_PEOPLE:
        again = now + timedelta(milliseconds=retry_delay_ms(found.control.finding_count + 1))
    finding = Found(str(ids.uuid7()), seen.finding, seen.result_code, now, again, seen.digest)
    recovery.record_finding(holding_control(found.control), found.execution.version, finding)
    if again is None:
        report.manual_required += 1
    elif seen.finding == "unavailable":
        report.unavailable += 1
    else:
        report.deferred += 1
