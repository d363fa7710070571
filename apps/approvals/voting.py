"""Votes as they are counted and shown: who said what, how many count, how many are needed (docs/approvals.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from apps.approvals.models import ApprovalRequest, ApprovalVote
from apps.projects import approval_policy
from apps.projects.approval_policy import ApprovalPolicy

APPROVED = "approved"


@dataclass(frozen=True)
class Vote:
    """What one person said; `counts` is False where they could not decide any more."""

    voter_id: str
    decision: str
    reason_code: str
    decision_id: str
    voted_at: datetime
    counts: bool = True


@dataclass(frozen=True)
class Tally:
    """Votes in their order; `given` of the approvals that are `needed` count now."""

    given: int
    needed: int
    votes: tuple[Vote, ...] = ()

    def of(self, voter_id: str) -> Vote | None:
        """What this person said."""
        return next((vote for vote in self.votes if vote.voter_id == voter_id), None)


def needed(request: ApprovalRequest, policy: ApprovalPolicy) -> int:
    """How many must approve: what was asked for when it was filed, or what is by now if that is more."""
    return max(request.quorum, policy.quorum)


def count(request: ApprovalRequest, policy: ApprovalPolicy, votes: Iterable[ApprovalVote]) -> Tally:
    """The tally of an open request; one query. Inside a transaction that holds the project it stays so."""
    rows = list(votes)
    able = set(approval_policy.possible_deciders(policy, among=[row.voter_id for row in rows]))
    return _tally(request, policy, rows, able)


def tallies(project_id: str, requests: Iterable[ApprovalRequest]) -> dict[str, Tally]:
    """The tallies of requests of one project, by id; three queries at most, one where nobody voted yet."""
    found = list(requests)
    if not found:
        return {}
    votes: dict[str, list[ApprovalVote]] = {}
    rows = ApprovalVote.objects.filter(request__in=[request.pk for request in found])
    for row in rows.order_by("voted_at", "id"):
        votes.setdefault(row.request_id, []).append(row)
    policy = approval_policy.of(project_id)
    voters = {row.voter_id for many in votes.values() for row in many}
    able = set(approval_policy.possible_deciders(policy, among=voters))
    return {request.pk: _tally(request, policy, votes.get(request.pk, []), able) for request in found}


def _tally(
    request: ApprovalRequest, policy: ApprovalPolicy, rows: Collection[ApprovalVote], able: set[str]
) -> Tally:
    # Of what was decided, the votes counted then; rights that somebody lost since change nothing of it.
    decided = request.decision is not None
    votes = tuple(
        Vote(
            row.voter_id,
            row.decision,
            row.reason_code,
            row.decision_id,
            row.voted_at,
            decided or row.voter_id in able,
        )
        for row in rows
    )
    given = sum(vote.counts and vote.decision == APPROVED for vote in votes)
    if decided:
        return Tally(given, max(given, request.quorum), votes)
    return Tally(given, needed(request, policy), votes)
