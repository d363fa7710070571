"""One pass over stops that are to be delivered (runs.md §7.5): claim, tell the process, write down what came of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from apps.core import clock, ids
from apps.core.errors import Busy, DomainError
from apps.dispatch import cancellations
from apps.dispatch.cancellations import DONE, RETRYABLE, AttemptReference, Candidate, Position
from apps.dispatch.services import cancellation
from apps.dispatch.services.cancellation import Claim, Told, Wanted

# Tells a process to end, and returns one of the results of runs.md §7.2. It verifies the process's identity first,
# is called outside any transaction, and may be called again.
Controller = Callable[[AttemptReference, str], str]

logger = logging.getLogger("qinglong.dispatch")


@dataclass
class Counts:
    """What a pass came to; `next_cursor` leads to the rest where there is one."""

    scanned: int = 0
    claimed: int = 0
    termination_requested: int = 0
    already_exited: int = 0
    pending: int = 0
    ambiguous: int = 0
    blocked: int = 0
    deferred: int = 0
    already_resolved: int = 0
    not_eligible: int = 0
    failed: int = 0
    next_cursor: Position | None = None


def deliver(
    owner: str,
    controllers: Mapping[str, Controller],
    run_ids: Collection[UUID],
    *,
    after: Position | None = None,
    limit: int = cancellations.PAGE,
) -> Counts:
    """Delivers what is due among the runs that `owner`, a worker place, carries; one page.

    What cannot be decided costs the other runs nothing. Raises Busy or DatabaseError.
    """
    page = cancellations.pending(run_ids, after=after, limit=limit, due_at=clock.now())
    counts = Counts(scanned=len(page.candidates), next_cursor=page.next_cursor if page.truncated else None)
    single: list[Candidate] = []
    for candidate in page.candidates:
        if len(candidate.attempts) == 1:
            single.append(candidate)
        else:
            # None: whoever looks after lost runs ends it. Several: whom it means cannot be told.
            counts.pending += 1
            counts.ambiguous += len(candidate.attempts) > 1
    if not single:
        return counts
    token = ids.token()
    told = [
        _tell(candidate, claim, controllers)
        for candidate, claim in _claim(owner, token, single, counts)
        if claim.outcome == "claimed"
    ]
    for result in _record(owner, token, told, counts):
        _count(result, counts)
    return counts


def _claim(
    owner: str, token: str, candidates: Sequence[Candidate], counts: Counts
) -> list[tuple[Candidate, Claim]]:
    wanted = [Wanted(one.run_id, one.attempts[0].attempt_id, one.requested_at) for one in candidates]
    try:
        found = cancellation.claim(owner, wanted, token=token)
    except Busy:
        raise
    except DomainError:
        found = {}
        for one in wanted:
            try:
                found |= cancellation.claim(owner, [one], token=token)
            except Busy:
                raise
            except DomainError as error:
                logger.error("the stop of run %s cannot be delivered: %s", one.run_id, error.code)
                counts.failed += 1
    for claim in found.values():
        counts.claimed += claim.outcome == "claimed"
        counts.not_eligible += claim.outcome == "not_eligible"
        counts.already_resolved += claim.outcome in ("dispatched", "blocked")
        counts.deferred += claim.outcome in ("leased", "not_due")
    return [(one, found[one.run_id]) for one in candidates if one.run_id in found]


def _tell(candidate: Candidate, claim: Claim, controllers: Mapping[str, Controller]) -> Told:
    reference = candidate.attempts[0]
    controller = controllers.get(reference.executor_type)
    if controller is None:
        result = "controller_missing"
    elif not reference.handle:
        result = "handle_missing"
    else:
        try:
            result = controller(reference, candidate.reason)
        except Exception as error:
            logger.error("the stop of run %s failed: %s", candidate.run_id, type(error).__name__)
            result = "dispatch_error"
    assert claim.record is not None
    delay = cancellation.retry_delay_ms(claim.record.dispatch_count) if result in RETRYABLE else None
    return Told(candidate.run_id, reference.attempt_id, claim.record.version, result, delay)


def _record(owner: str, token: str, told: Sequence[Told], counts: Counts) -> list[str]:
    """The results that are on record; one that somebody else claimed meanwhile is theirs."""
    if not told:
        return []
    try:
        cancellation.record(owner, token, told)
    except Busy:
        raise
    except DomainError as error:
        if len(told) == 1:
            logger.error("the stop of run %s is not on record: %s", told[0].run_id, error.code)
            counts.failed += 1
            return []
        return [result for one in told for result in _record(owner, token, [one], counts)]
    return [one.result for one in told]


def _count(result: str, counts: Counts) -> None:
    if result in DONE:
        counts.termination_requested += result == "termination_requested"
        counts.already_exited += result == "already_exited"
    elif result in RETRYABLE:
        counts.pending += 1
    else:
        counts.blocked += 1
