"""Quorum: each word is a vote, one rejection rejects, the last needed vote is the decision (docs/approvals.md)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from apps.access.models import User
from apps.approvals import errors, jobs, queries, services
from apps.approvals.models import ApprovalRequest, ApprovalVote
from apps.audit.models import AuditEntry
from apps.core import clock, ids
from apps.core.errors import DomainError
from apps.identity.services import set_subject_status
from tests import people
from tests.approvals import kit
from tests.conftest import Time
from tests.runs.kit import race

pytestmark = pytest.mark.django_db


class House:
    """An agent that asks, and people who could decide."""

    def __init__(self, quorum: int = 2, names: tuple[str, ...] = ("a", "b", "c")) -> None:
        self.cast = kit.cast()
        self.people = [people.member("admin", name) for name in names]
        if quorum > 1:
            kit.policy_of_project(self.cast.admin, quorum=quorum)
        kit.requested(self.cast.agent)

    def vote(
        self, who: User | int, id: str = "r-1", decision: str = "approved", **more: Any
    ) -> ApprovalRequest:
        voter = self.people[who] if isinstance(who, int) else who
        given = {"decision_id": f"d-{id}-{voter.username}", "decision": decision, **more}
        return kit.decide(voter, kit.verdict(id, **given))

    def tally(self, id: str = "r-1") -> tuple[int, int]:
        found = queries.tally_of(kit.fresh(id))
        return found.given, found.needed


def test_the_last_needed_vote_decides(time: Time) -> None:
    house = House()
    first = house.vote(0)
    assert (first.state, first.version, first.decision_id) == ("pending", 1, None)
    assert house.tally() == (1, 2)
    jobs.consume({})
    assert not kit.dispatches()
    last = house.vote(1)
    assert (last.state, last.version, last.decided_by_id) == ("approved", 2, house.people[1].subject_id)
    assert last.decision_id == "d-r-1-b" and house.tally() == (2, 2)
    jobs.consume({})
    assert len(kit.dispatches()) == 1
    told = AuditEntry.objects.filter(subject_id="r-1").order_by("sequence").values_list("action", flat=True)
    assert list(told) == ["approval.requested", "approval.voted", "approval.approved", "approval.consumed"]


def test_one_rejection_rejects(time: Time) -> None:
    house = House(3)
    house.vote(0)
    done = house.vote(1, decision="rejected")
    assert (done.state, done.decided_by_id) == ("rejected", house.people[1].subject_id)
    with pytest.raises(errors.RequestVersionConflict):
        house.vote(2)


def test_a_vote_counts_once(time: Time) -> None:
    house = House()
    house.vote(0)
    again = house.vote(0)
    assert again.state == "pending" and ApprovalVote.objects.count() == 1, (
        "the same decision id, the same answer"
    )
    for changed in ({"decision_id": "other"}, {"decision_id": "other", "decision": "rejected"}):
        with pytest.raises(errors.AlreadyVoted):
            house.vote(0, **changed)
    kit.requested(house.cast.agent, "r-2")
    for wrong in (
        lambda: house.vote(0, reason_code="tested"),
        lambda: house.vote(0, decision="rejected"),
        lambda: house.vote(0, expected_version=2),
        lambda: house.vote(1, decision_id="d-r-1-a"),
        lambda: house.vote(0, "r-2", decision_id="d-r-1-a"),
    ):
        with pytest.raises(errors.MutationConflict):
            wrong()
    assert house.tally() == (1, 2) and kit.fresh("r-2").state == "pending"
    house.vote(1)
    assert house.vote(0).state == "approved", "a vote that did not decide is answered as things stand now"


def test_who_asked_never_votes(time: Time) -> None:
    house = House()
    task = kit.task(requires_approval=True)
    kit.filed(house.people[0], task, "own")
    with pytest.raises(errors.SelfDecisionRejected):
        house.vote(0, "own")
    house.vote(1, "own")
    assert house.vote(2, "own").state == "approved"


def test_as_many_as_when_it_was_filed_or_now_whichever_is_more(time: Time) -> None:
    house = House(2)
    kit.policy_of_project(house.cast.admin, 1, quorum=1)
    kit.requested(house.cast.agent, "r-2")
    assert (house.tally("r-1"), house.tally("r-2")) == ((0, 2), (0, 1))
    assert house.vote(0, "r-1").state == "pending"
    kit.policy_of_project(house.cast.admin, 2, quorum=3)
    assert house.tally("r-2") == (0, 3)
    house.vote(0, "r-2")
    house.vote(1, "r-2")
    assert kit.fresh("r-2").state == "pending" and house.vote(2, "r-2").state == "approved"


@pytest.mark.parametrize("how", ["role", "disabled", "policy"])
def test_who_may_decide_no_more_does_not_count(time: Time, how: str) -> None:
    house = House()
    house.vote(0)
    gone = house.people[0]
    if how == "role":
        people.give(gone, "operator", version=2)
    elif how == "disabled":
        set_subject_status(gone.subject_id, 1, "disabled", actor=people.ROOT, origin="tests")
    else:
        others = [one.subject_id for one in house.people[1:]]
        kit.policy_of_project(house.cast.admin, 1, decider_roles=[], decider_people=others)
    assert house.tally() == (0, 2)
    assert house.vote(1).state == "pending" and house.tally() == (1, 2)
    assert house.vote(2).state == "approved"
    assert house.tally() == (3, 3), "of what was decided nothing changes"


def test_who_is_not_among_the_deciders(time: Time) -> None:
    house = House(1)
    kit.policy_of_project(
        house.cast.admin, decider_roles=["owner"], decider_people=[house.people[1].subject_id]
    )
    with pytest.raises(errors.NotADecider):
        house.vote(0)
    answer = people.api(house.people[0])(
        "POST", "approvals/r-1/decision",
        {"decision": "approved", "reason_code": "x", "expected_version": 1, "decision_id": "d"},
    )  # fmt: skip
    assert (answer.status_code, answer.json()["code"]) == (403, "approval_not_a_decider")
    assert not ApprovalVote.objects.exists() and house.vote(1).state == "approved"


def test_what_changed_voids_it_between_two_votes(time: Time) -> None:
    house = House()
    task = kit.task()
    kit.filed(house.cast.agent, task, "r-2")
    house.vote(0, "r-2")
    people.give(house.cast.agent, "viewer", version=2)
    with pytest.raises(errors.RequestVoid):
        house.vote(1, "r-2")
    assert kit.fresh("r-2").state == "pending" and ApprovalVote.objects.count() == 1


def test_votes_are_shown(time: Time, django_assert_max_num_queries: Any) -> None:
    house = House()
    house.vote(0)
    caller = people.api(house.cast.operator)
    body = caller("GET", "approvals/r-1").json()
    assert (body["votes_given"], body["votes_needed"], body["decision"]) == (1, 2, None)
    assert body["votes"] == [
        {
            "voter": {"type": "user", "id": house.people[0].subject_id}, "decision": "approved",
            "reason_code": "expected_change", "decision_id": "d-r-1-a",
            "voted_at": clock.rfc3339(clock.now()), "counts": True,
        }
    ]  # fmt: skip
    with django_assert_max_num_queries(30) as few:
        caller("GET", "projects/default/approvals")
    for number in range(2, 6):
        kit.requested(house.cast.agent, f"r-{number}")
        house.vote(1, f"r-{number}")
    with django_assert_max_num_queries(len(few)):
        found = caller("GET", "projects/default/approvals?state=pending").json()["items"]
    assert [one["votes_given"] for one in found] == [1] * 5


def test_the_database_keeps_votes(time: Time) -> None:
    house = House()
    house.vote(0)
    row = ApprovalVote.objects.get()

    def refused(write: Any) -> None:
        with pytest.raises(IntegrityError), transaction.atomic():
            write()

    def another(**changed: Any) -> None:
        values = {
            "request_id": "r-1", "project_id": "default", "voter_id": "somebody", "decision": "approved",
            "reason_code": "x", "decision_id": str(ids.uuid7()), "voted_at": clock.now(), **changed,
        }  # fmt: skip
        ApprovalVote.objects.create(**values)

    refused(lambda: ApprovalVote.objects.update(decision="rejected"))
    refused(lambda: ApprovalVote.objects.filter(pk=row.pk).delete())
    refused(lambda: another(voter_id=row.voter_id))
    refused(lambda: another(decision_id=row.decision_id))
    refused(lambda: another(decision="maybe"))
    refused(lambda: another(voter_type="agent"))
    refused(lambda: ApprovalRequest.objects.filter(pk="r-1").update(quorum=1))
    house.vote(1)
    refused(lambda: another())
    task = kit.task(requires_approval=True)
    own = kit.filed(house.people[0], task, "own")
    refused(lambda: another(request_id=own.pk, voter_id=house.people[0].subject_id))
    # One person's word does not make it approved, whoever writes.
    decision = {
        "version": 2, "state": "approved", "decision_id": "forged", "decision": "approved",
        "decision_reason_code": "x", "decided_by_type": "user", "decided_by_id": house.people[1].subject_id,
        "decided_at": clock.now(),
    }  # fmt: skip
    refused(lambda: ApprovalRequest.objects.filter(pk="own").update(**decision))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("quorum", [2, 3])
def test_all_vote_at_once(seeded: None, time: Time, quorum: int) -> None:
    house = House(quorum)
    outcomes = race([lambda n=n: house.vote(n) for n in range(3)])
    refused = [one.code for one in outcomes if isinstance(one, DomainError)]
    assert not [one for one in outcomes if isinstance(one, Exception) and not isinstance(one, DomainError)]
    assert kit.fresh().state == "approved"
    assert ApprovalVote.objects.count() == quorum
    assert refused == ["approval_request_version_conflict"] * (3 - quorum)
    assert AuditEntry.objects.filter(action="approval.approved").count() == 1


@pytest.mark.django_db(transaction=True)
def test_one_approves_and_one_rejects_at_once(seeded: None, time: Time) -> None:
    house = House()
    race([lambda: house.vote(0), lambda: house.vote(1, decision="rejected"), lambda: house.vote(2)])
    found = kit.fresh()
    assert found.state in ("approved", "rejected")
    said = list(ApprovalVote.objects.order_by("voted_at", "id").values_list("decision", flat=True))
    assert said.count("rejected") == (found.state == "rejected")
    assert said.count("approved") <= 2 if found.state == "approved" else True


@pytest.mark.django_db(transaction=True)
def test_the_last_vote_and_the_end_of_a_right_at_once(seeded: None, time: Time) -> None:
    """Whoever comes first: with the right gone the request waits on, and with the vote first it is approved."""
    house = House()
    house.vote(0)
    race([lambda: house.vote(1), lambda: people.give(house.people[0], "viewer", version=2)])
    found = kit.fresh()
    assert found.state in ("pending", "approved")
    if found.state == "pending":
        assert house.tally() == (1, 2) and house.vote(2).state == "approved"


@pytest.mark.django_db(transaction=True)
def test_a_vote_and_withdrawing_at_once(seeded: None, time: Time) -> None:
    house = House()
    house.vote(0)
    asker = people.principal(house.cast.agent)
    race([lambda: house.vote(1), lambda: services.withdraw(asker, "r-1", origin="tests")])
    seen = queries.find("r-1")
    assert seen.status in ("approved", "withdrawn")
    jobs.consume({})
    assert len(kit.dispatches()) == (seen.status == "approved")
