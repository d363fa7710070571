"""approvals.md §13, 13–20: using an approval, once."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection
from django.db.models import Model

from apps.approvals import errors, queries, services
from apps.approvals.models import ApprovalRequest, ApprovedActionDispatch, ApprovedActionExecution
from apps.approvals.services import Consumption
from apps.audit.models import AuditEntry
from apps.core import clock, db
from apps.identity.principals import PolicySubject
from apps.projects.models import Project
from tests import people
from tests.approvals import kit
from tests.approvals.kit import ready  # noqa: F401
from tests.conftest import Time
from tests.runs.kit import race, thawed


def archive(version: int = 2) -> None:
    Project.objects.filter(pk="default").update(status="archived", version=version)


@pytest.mark.django_db
def test_approvals_13_consume(time: Time) -> None:
    c = kit.cast()
    request = kit.approved(c)
    time.advance(1_000)
    done = services.consume(kit.consumption(request))
    assert not done.existing
    stored = kit.fresh()
    assert (stored.state, stored.version, stored.consumed_by_type) == ("consumed", 3, "system")
    assert stored.consumed_at == clock.from_ms(time.ms)
    [dispatch] = kit.dispatches()
    assert dispatch.pk == stored.dispatch_id and dispatch.approval_request_version == 3
    assert (dispatch.state, dispatch.created_at) == ("pending", stored.consumed_at)
    assert (dispatch.action_digest, dispatch.requested_by_id) == (stored.action_digest, c.agent.id)
    [execution] = kit.executions()
    assert (execution.status, execution.version, execution.attempt_count, execution.max_attempts) == (
        "pending", 0, 0, 5,
    )  # fmt: skip
    assert execution.eligible_at == execution.created_at == execution.updated_at == stored.consumed_at
    entry = AuditEntry.objects.get(action="approval.consumed")
    assert entry.subject_id == "r-1" and entry.on_behalf_of == f"agent:{c.agent.id}"


@pytest.mark.django_db
def test_approvals_14_with_something_else(time: Time) -> None:
    c = kit.cast()
    request = kit.approved(c)
    other = people.other_subject("agent")
    people.give(other, "operator")
    for changed in (
        {"action": kit.action(preview_digest="a" * 64)},
        {"action": kit.action(action_digest="a" * 64)},
        {"action": kit.action(action_ref="elsewhere:two")},
        {"requested_by": other},
    ):
        with pytest.raises(errors.MutationConflict):
            services.consume(kit.consumption(request, **changed))
    for kind in ("user", "agent", "api_app", "mcp_client"):
        with pytest.raises(errors.ApprovalPolicyDenied):
            services.consume(kit.consumption(request, consumed_by=PolicySubject(kind, "somebody")))
    assert kit.fresh().state == "approved" and not kit.dispatches()


@pytest.mark.django_db
def test_approvals_14_what_is_not_approved(time: Time) -> None:
    c = kit.cast()
    pending = kit.requested(c.agent)
    with pytest.raises(errors.RequestStateConflict):
        services.consume(kit.consumption(pending, expected_version=1))
    with pytest.raises(errors.RequestVersionConflict):
        services.consume(kit.consumption(pending, expected_version=2))
    kit.decide(c.admin, kit.verdict(decision="rejected"))
    with pytest.raises(errors.RequestStateConflict):
        services.consume(kit.consumption(pending, expected_version=2))
    assert not kit.dispatches() and not kit.executions()


@pytest.mark.django_db
def test_approvals_14_what_expires_is_not_used(time: Time) -> None:
    c = kit.cast()
    request = kit.approved(c)
    late = kit.approved(c, "r-2")
    time.advance(kit.HOUR_MS - 1)
    services.consume(kit.consumption(request))
    time.advance(1)
    with pytest.raises(errors.RequestExpired):
        services.consume(kit.consumption(late))


@pytest.mark.django_db
def test_approvals_15_the_same_again(time: Time) -> None:
    c = kit.cast()
    wish = kit.consumption(kit.approved(c))
    first = services.consume(wish)
    time.advance(kit.DAY_MS)
    again = services.consume(wish)
    assert again.existing and again.dispatch == first.dispatch
    assert again.request.consumed_at == first.request.consumed_at
    assert len(kit.dispatches()) == 1
    for changed in (
        {"dispatch_id": "other"},
        {"expected_version": 3},
        {"action": kit.action(preview_digest="a" * 64)},
        {"consumed_by": PolicySubject("worker", "w-1")},
    ):
        with pytest.raises(errors.MutationConflict):
            services.consume(kit.consumption(kit.fresh(), **{"expected_version": 2, **changed}))
    second = kit.approved(c, "r-2")
    with pytest.raises(errors.MutationConflict):
        services.consume(kit.consumption(second, dispatch_id=wish.dispatch_id))
    with pytest.raises(errors.MutationConflict):
        services.consume(kit.consumption(second, consumption_id=wish.consumption_id))
    assert (kit.fresh("r-2").state, kit.fresh("r-2").version) == ("approved", 2)
    assert AuditEntry.objects.filter(action="approval.consumed").count() == 1


@pytest.mark.django_db
def test_approvals_15_the_ids_are_the_same_at_every_try(time: Time) -> None:
    c = kit.cast()
    request, other = kit.approved(c), kit.approved(c, "r-2")
    assert Consumption.of(request) == Consumption.of(kit.fresh())
    ids = {
        getattr(Consumption.of(one), name)
        for one in (request, other)
        for name in ("consumption_id", "dispatch_id")
    }
    assert len(ids) == 4


@pytest.mark.django_db(transaction=True)
def test_approvals_16_all_or_nothing(seeded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    c = kit.cast()
    wish = kit.consumption(kit.approved(c))
    save = Model.save

    def fail(self: Model, *args: Any, **options: Any) -> None:
        if isinstance(self, ApprovedActionExecution):
            raise DatabaseError("no")
        save(self, *args, **options)

    with monkeypatch.context() as broken:
        broken.setattr(Model, "save", fail)
        with pytest.raises(errors.ApprovalUnavailable):
            services.consume(wish)
    assert not kit.dispatches() and not kit.executions()
    assert (kit.fresh().state, kit.fresh().version) == ("approved", 2)
    assert services.consume(wish).request.state == "consumed"


@pytest.mark.django_db(transaction=True)
def test_approvals_17_two_consume_at_once(seeded: None) -> None:
    c = kit.cast()
    for round in range(8):
        request = kit.approved(c, f"r-{round}", action=kit.action(f"n{round}"))
        wishes = [
            kit.consumption(request, consumption_id=f"c-{round}-{n}", dispatch_id=f"x-{round}-{n}")
            for n in range(3)
        ]
        outcomes = race([lambda w=w: kit.outcome(lambda: services.consume(w)) for w in wishes])
        assert outcomes.count("ok") == 1
        assert set(outcomes) == {"ok", "approval_request_version_conflict"}
        assert ApprovedActionDispatch.objects.filter(approval_request=request).count() == 1
    assert len(kit.executions()) == 8


@pytest.mark.django_db(transaction=True)
def test_approvals_17_the_same_consumption_at_once(seeded: None) -> None:
    c = kit.cast()
    for round in range(4):
        wish = kit.consumption(kit.approved(c, f"r-{round}"))
        outcomes = race([lambda w=wish: kit.outcome(lambda: services.consume(w))] * 3)
        assert outcomes == ["ok"] * 3
    assert len(kit.dispatches()) == 4


@pytest.mark.django_db
def test_approvals_18_the_project_is_archived_before(time: Time) -> None:
    c = kit.cast()
    request = kit.approved(c)
    archive()
    with pytest.raises(errors.ApprovalPolicyDenied):
        services.consume(kit.consumption(request))
    assert not kit.dispatches()


@pytest.mark.django_db
@pytest.mark.parametrize("happens", ["archived", "revoked"])
def test_approvals_18_in_between(time: Time, monkeypatch: pytest.MonkeyPatch, happens: str) -> None:
    c = kit.cast()
    request = kit.approved(c)
    change = archive if happens == "archived" else (lambda: people.give(c.agent, None, version=2))
    kit.between(monkeypatch, change)
    with pytest.raises(errors.PolicyFenceConflict):
        services.consume(kit.consumption(request))
    assert not kit.dispatches() and kit.fresh().state == "approved"


@pytest.mark.django_db
def test_approvals_19_a_missing_execution_is_damage(time: Time) -> None:
    c = kit.cast()
    wish = kit.consumption(kit.approved(c))
    services.consume(wish)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM approved_action_executions")
    with pytest.raises(errors.ApprovalUnavailable):
        services.consume(wish)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("times", "ends"), [(4, "ok"), (5, "approval_unavailable")])
def test_approvals_20_a_busy_database(
    seeded: None, monkeypatch: pytest.MonkeyPatch, times: int, ends: str
) -> None:
    c = kit.cast()
    wish = kit.consumption(kit.approved(c))
    waits: list[float] = []
    left = [times]
    once = db._once

    def busy(*args: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OperationalError("database is locked")
        return once(*args, **options)

    monkeypatch.setattr(db, "_once", busy)
    monkeypatch.setattr(db.time, "sleep", waits.append)
    begun = perf_counter()
    assert kit.outcome(lambda: services.consume(wish)) == ends
    assert perf_counter() - begun < 60
    assert waits == [0.001, 0.002, 0.004, 0.008]
    assert len(kit.dispatches()) == (1 if ends == "ok" else 0)


@pytest.mark.django_db
def test_stored_rows_are_checked_at_every_read(time: Time) -> None:
    """A row that no service could have written is damage, for everybody who would act on it."""
    c = kit.cast()
    kit.approved(c)
    with thawed("approval_requests"):
        ApprovalRequest.objects.filter(pk="r-1").update(action_ref="not an identifier")
    for call in (
        lambda: services.create(kit.wish(c.agent)),
        lambda: kit.decide(c.admin),
        lambda: services.consume(
            Consumption("r-1", 2, "c", "d", kit.action(), c.agent, PolicySubject("system", "s"))
        ),
        lambda: queries.find("r-1"),
    ):
        assert kit.outcome(call) == "approval_unavailable"
