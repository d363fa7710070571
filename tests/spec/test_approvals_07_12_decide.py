"""approvals.md §13, 7–12: deciding."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection

from apps.approvals import errors, queries
from apps.approvals.models import ApprovalRequest
from apps.audit.models import AuditEntry
from apps.core import clock
from apps.core.models import ControlJob, Wakeup
from apps.identity.principals import Assurance, PrincipalExpired
from tests import people
from tests.approvals import kit
from tests.approvals.kit import ready  # noqa: F401
from tests.conftest import Time
from tests.runs.kit import race

SIX = (
    "decision_id", "decision", "decision_reason_code", "decided_by_type", "decided_by_id", "decided_at",
)  # fmt: skip


@pytest.mark.django_db
def test_approvals_07_approve_and_the_same_again(time: Time) -> None:
    c = kit.cast()
    kit.requested(c.agent)
    time.advance(1_000)
    done = kit.decide(c.admin)
    assert (done.state, done.version) == ("approved", 2)
    stored = kit.fresh()
    assert [getattr(stored, name) for name in SIX] == [
        "d-r-1", "approved", "expected_change", "user", c.admin.subject_id, clock.from_ms(time.ms),
    ]  # fmt: skip
    time.advance(1_000)
    again = kit.decide(c.admin)
    assert again.decided_at == stored.decided_at and again.version == 2
    assert AuditEntry.objects.filter(action="approval.approved").count() == 1


@pytest.mark.django_db
def test_approvals_07_the_same_again_holds_after_expiry_and_consumption(time: Time) -> None:
    c = kit.cast()
    request = kit.approved(c)
    kit.services.consume(kit.consumption(request))
    time.advance(kit.DAY_MS)
    assert kit.decide(c.admin).state == "consumed"


@pytest.mark.django_db
@pytest.mark.parametrize(
    "changed", [{"reason_code": "tested"}, {"decision": "rejected"}, {"expected_version": 2}]
)
def test_approvals_07_the_decision_id_with_something_else(time: Time, changed: dict[str, object]) -> None:
    c = kit.cast()
    kit.approved(c)
    with pytest.raises(errors.MutationConflict):
        kit.decide(c.admin, kit.verdict(**changed))
    other = people.member("owner", "olga")
    with pytest.raises(errors.MutationConflict):
        kit.decide(other)
    kit.requested(c.agent, "r-2")
    with pytest.raises(errors.MutationConflict):
        kit.decide(c.admin, kit.verdict("r-2", decision_id="d-r-1"))
    assert kit.fresh("r-2").state == "pending"


@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["agent", "system", "worker", "api_app", "mcp_client"])
def test_approvals_08_only_people_decide(time: Time, kind: str) -> None:
    c = kit.cast()
    kit.requested(c.agent)
    other = people.other_subject(kind)
    people.give(other, "owner")
    with pytest.raises(errors.HumanDecisionRequired):
        kit.decide(other)
    with pytest.raises(errors.HumanDecisionRequired):
        kit.decide(c.agent)
    assert kit.fresh().state == "pending"


@pytest.mark.django_db
def test_approvals_08_nobody_decides_what_they_asked_for(time: Time) -> None:
    c = kit.cast()
    kit.requested(c.agent)
    row = kit.fresh()
    row.pk, row.requested_by_type, row.requested_by_id = "r-2", "user", c.admin.subject_id
    row.save(force_insert=True)
    with pytest.raises(errors.SelfDecisionRejected):
        kit.decide(c.admin, kit.verdict("r-2"))
    owner = people.member("owner", "olga")
    row.pk, row.requested_by_id = "r-3", owner.subject_id
    row.save(force_insert=True)
    with pytest.raises(errors.SelfDecisionRejected):
        kit.decide(owner, kit.verdict("r-3", decision="rejected"))


@pytest.mark.django_db
@pytest.mark.parametrize("role", ["operator", "viewer", None])
def test_approvals_08_a_role_that_does_not_decide(time: Time, role: str | None) -> None:
    c = kit.cast()
    kit.requested(c.agent)
    person = people.account("paul")
    if role:
        people.give(person, role)
    with pytest.raises(errors.ApprovalPolicyDenied):
        kit.decide(person)
    with pytest.raises(errors.ApprovalPolicyDenied):
        kit.decide(c.operator)
    assert kit.fresh().state == "pending"


@pytest.mark.django_db
def test_approvals_09_at_the_moment_it_expires(time: Time) -> None:
    c = kit.cast()
    kit.requested(c.agent)
    kit.requested(c.agent, "r-2")
    kit.requested(c.agent, "r-3")
    kit.decide(c.admin, kit.verdict("r-3", decision="rejected"))
    time.advance(kit.HOUR_MS - 1)
    assert kit.decide(c.admin).state == "approved"
    time.advance(1)
    for id in ("r-2", "r-3"):
        with pytest.raises(errors.RequestExpired):
            kit.decide(c.admin, kit.verdict(id, decision_id="late"))
    assert kit.fresh("r-2").state == "pending"


@pytest.mark.django_db
def test_approvals_09_version_before_state(time: Time) -> None:
    c = kit.cast()
    kit.approved(c)
    with pytest.raises(errors.RequestVersionConflict):
        kit.decide(c.admin, kit.verdict(decision_id="other"))
    with pytest.raises(errors.RequestStateConflict):
        kit.decide(c.admin, kit.verdict(decision_id="other", expected_version=2))
    with pytest.raises(errors.ApprovalRequestNotFound):
        kit.decide(c.admin, kit.verdict("nothing"))


@pytest.mark.django_db(transaction=True)
def test_approvals_10_two_decide_at_once(seeded: None) -> None:
    c = kit.cast()
    second = people.member("owner", "olga")
    for round in range(8):
        id = f"r-{round}"
        kit.requested(c.agent, id)
        outcomes = race(
            [
                lambda id=id: kit.outcome(lambda: kit.decide(c.admin, kit.verdict(id))),
                lambda id=id: kit.outcome(
                    lambda: kit.decide(second, kit.verdict(id, decision="rejected", decision_id=f"no-{id}"))
                ),
            ]
        )
        assert sorted(outcomes) == ["approval_request_version_conflict", "ok"]
        found = kit.fresh(id)
        assert found.version == 2
        assert found.state == ("approved" if outcomes[0] == "ok" else "rejected")


@pytest.mark.django_db(transaction=True)
def test_approvals_10_the_same_decision_twice_at_once(seeded: None) -> None:
    c = kit.cast()
    for round in range(4):
        id = f"r-{round}"
        kit.requested(c.agent, id)
        outcomes = race([lambda id=id: kit.outcome(lambda: kit.decide(c.admin, kit.verdict(id)))] * 3)
        assert outcomes == ["ok"] * 3
    assert AuditEntry.objects.filter(action="approval.approved").count() == 4


@pytest.mark.django_db
@pytest.mark.parametrize("role", [None, "operator", "owner"])
def test_approvals_11_the_role_changes_in_between(
    time: Time, monkeypatch: pytest.MonkeyPatch, role: str | None
) -> None:
    c = kit.cast()
    kit.requested(c.agent)
    kit.between(monkeypatch, lambda: people.give(c.admin, role, version=2))
    with pytest.raises(errors.PolicyFenceConflict):
        kit.decide(c.admin)
    assert kit.fresh().state == "pending"


@pytest.mark.django_db
def test_approvals_12_what_has_expired_is_shown_and_not_written(time: Time) -> None:
    c = kit.cast()
    kit.requested(c.agent, "pending")
    kit.approved(c, "approved")
    kit.requested(c.agent, "rejected")
    kit.decide(c.admin, kit.verdict("rejected", decision="rejected"))
    kit.services.consume(kit.consumption(kit.approved(c, "consumed")))
    before = list(ApprovalRequest.objects.order_by("pk").values())
    time.advance(kit.HOUR_MS - 1)
    for name in ("pending", "approved", "rejected", "consumed"):
        assert queries.find(name).status == name
    time.advance(1)
    assert [queries.find(name).status for name in ("pending", "approved")] == ["expired", "expired"]
    assert [queries.find(name).status for name in ("rejected", "consumed")] == ["rejected", "consumed"]
    assert list(ApprovalRequest.objects.order_by("pk").values()) == before


@pytest.mark.django_db
def test_approvals_12_no_such_request(time: Time) -> None:
    for name in ("nothing", "", "a b", "x" * 65, "a\n"):
        with pytest.raises(errors.ApprovalRequestNotFound):
            queries.find(name)


# -- beyond the numbers -------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_decision_says_how_sure_the_sign_in_was(time: Time) -> None:
    c = kit.cast()
    kit.requested(c.agent)
    principal = people.principal(c.admin, Assurance.HARDWARE)
    kit.services.decide(principal, kit.verdict(), origin="panel")
    entry = AuditEntry.objects.get(action="approval.approved")
    assert entry.metadata["assurance"] == "hardware" and entry.origin == "panel"
    assert entry.metadata["authenticated_at_ms"] == clock.to_ms(principal.authenticated_at)
    assert (entry.actor_type, entry.actor_id) == ("user", c.admin.subject_id)


@pytest.mark.django_db
def test_a_sign_in_that_ended_decides_nothing(time: Time) -> None:
    c = kit.cast()
    kit.requested(c.agent)
    late = replace(people.principal(c.admin), expires_at=clock.now() + timedelta(milliseconds=1))
    time.advance(1)
    with pytest.raises(PrincipalExpired):
        kit.services.decide(late, kit.verdict(), origin="tests")


@pytest.mark.django_db
def test_an_approval_rings_for_its_consumption(time: Time) -> None:
    c = kit.cast()
    ControlJob.objects.create(name="approvals.consume", due_at=clock.now() + timedelta(hours=1))
    kit.requested(c.agent)
    kit.decide(c.admin, kit.verdict(decision="rejected"))
    assert not Wakeup.objects.filter(cluster="control", answered=False).exists()
    kit.requested(c.agent, "r-2")
    kit.decide(c.admin, kit.verdict("r-2"))
    assert Wakeup.objects.filter(cluster="control", answered=False).exists()
    assert ControlJob.objects.get(name="approvals.consume").due_at == clock.now()


@pytest.mark.django_db
def test_nobody_decides_without_end(time: Time) -> None:
    c = kit.cast()
    for number in range(60):
        kit.outcome(lambda number=number: kit.decide(c.admin, kit.verdict(f"none-{number}")))
    kit.requested(c.agent)
    with pytest.raises(errors.TooManyDecisions) as refused:
        kit.decide(c.admin)
    assert refused.value.status == 429 and refused.value.extra["retry_after"] > 0
    second = people.member("owner", "olga")
    assert kit.decide(second).state == "approved"


@pytest.mark.django_db
def test_raw_words_never_decide_twice() -> None:
    """Even whoever writes SQL cannot take a decision back, give it again or use it again."""
    c = kit.cast()
    kit.requested(c.agent)
    kit.decide(c.admin, kit.verdict(decision="rejected"))
    from django.db import DatabaseError, transaction

    for sql in (
        "UPDATE approval_requests SET state = 'approved', decision = 'approved'",
        "UPDATE approval_requests SET state = 'pending', version = 1, decision = NULL, decision_id = NULL,"
        " decision_reason_code = NULL, decided_by_type = NULL, decided_by_id = NULL, decided_at = NULL",
        "UPDATE approval_requests SET requested_by_id = 'somebody'",
        "UPDATE approval_requests SET action_digest = preview_digest",
        "DELETE FROM approval_requests",
    ):
        with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(sql)
    assert kit.fresh().state == "rejected"
