"""approvals.md §13, 39–40: a person closes what evidence cannot, and a cycle that cannot look begins nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError, connection
from django.test.utils import CaptureQueriesContext

from apps.access.models import User
from apps.approvals import digests, dispatching, errors, recovery, snapshots
from apps.approvals.contract import holding_control
from apps.approvals.cycle import Bounds, Cycle, Profile
from apps.approvals.models import (
    ApprovedActionDispatch,
    ApprovedActionRecoveryAuthorization,
    ApprovedActionRecoveryResolution,
)
from apps.approvals.services import execution, manual
from apps.approvals.services import recovery as store
from apps.approvals.services.manual import recover
from apps.approvals.services.recovery import Found
from apps.audit.models import AuditEntry
from apps.core import clock
from apps.identity.principals import Assurance, PrincipalExpired
from apps.projects.models import Project
from tests import people
from tests.approvals import action_kit, kit
from tests.approvals.action_kit import OTHER, Effect, action_type
from tests.approvals.kit import ready  # noqa: F401
from tests.conftest import Time
from tests.runs.kit import race, thawed


@pytest.fixture(autouse=True)
def unhurried() -> None:
    manual.recoveries.clear()


def stuck(c: kit.Cast, time: Time, id: str = "r-1") -> ApprovedActionDispatch:
    """Behind the barrier, its process dead, its lease over."""
    dispatch = action_kit.handed_over_elsewhere(c, id)
    action_kit.started(dispatch)
    time.advance(action_kit.LEASE_MS)
    return dispatch


def resolutions() -> int:
    return (
        ApprovedActionRecoveryResolution.objects.count() + ApprovedActionRecoveryAuthorization.objects.count()
    )


@pytest.mark.django_db
@pytest.mark.parametrize("assurance", [Assurance.MULTI_FACTOR, Assurance.HARDWARE, Assurance.LOCAL_CONSOLE])
def test_approvals_39_strong_and_recent(time: Time, assurance: Assurance) -> None:
    c = kit.cast()
    dispatch = stuck(c, time)
    who = action_kit.principal(c.admin, assurance, signed_in_ms_ago=300_000)
    done = recover(who, action_kit.wish(dispatch), origin="tests")
    assert done.status == "resolved"
    fact = ApprovedActionRecoveryAuthorization.objects.get()
    assert (fact.assurance, fact.resolved_by_id) == (str(assurance), c.admin.subject_id)
    assert fact.authorized_at == clock.now()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("assurance", "age_ms"),
    [
        (Assurance.MULTI_FACTOR, 300_001), (Assurance.HARDWARE, 300_001), (Assurance.SINGLE_FACTOR, 0),
        (Assurance.SERVICE, 0),
    ],
)  # fmt: skip
def test_approvals_39_weak_or_old(time: Time, assurance: Assurance, age_ms: int) -> None:
    c = kit.cast()
    dispatch = stuck(c, time)
    wish = action_kit.wish(dispatch)
    who = action_kit.principal(c.admin, assurance, signed_in_ms_ago=age_ms)
    with (
        CaptureQueriesContext(connection) as asked,
        pytest.raises(errors.RecoveryStrongAuthenticationRequired),
    ):
        recover(who, wish, origin="tests")
    assert len(asked) == 0, "nothing is read for it"
    assert action_kit.fresh(dispatch).status == "executing" and resolutions() == 0


@pytest.mark.django_db
def test_approvals_39_who_may_not(time: Time) -> None:
    c = kit.cast()
    dispatch = stuck(c, time)
    wish = action_kit.wish(dispatch)
    stranger = people.account("stranger")
    viewer = people.member("viewer", "vera")
    for who in (c.operator, viewer, stranger):
        with pytest.raises(errors.RecoveryAuthorizationDenied):
            recover(action_kit.principal(who), wish, origin="tests")
    for kind in ("agent", "api_app", "mcp_client"):
        subject = people.other_subject(kind)
        people.give(subject, "owner")
        with CaptureQueriesContext(connection) as asked, pytest.raises(errors.RecoveryHumanRequired):
            recover(action_kit.principal(subject), wish, origin="tests")
        assert len(asked) == 0
    late = action_kit.principal(c.admin, signed_in_ms_ago=3_600_000)
    with pytest.raises(PrincipalExpired):
        recover(late, wish, origin="tests")
    with pytest.raises(errors.RecoveryNotFound):
        recover(action_kit.principal(c.admin), action_kit.wish(dispatch, dispatch_id="none"), origin="tests")
    assert resolutions() == 0


@pytest.mark.django_db
def test_approvals_39_before_the_lease_is_over(time: Time) -> None:
    c = kit.cast()
    dispatch = stuck(c, time)
    time.advance(-1)
    with pytest.raises(errors.RecoveryFenceRejected):
        action_kit.close_by_hand(c.admin, dispatch)
    assert resolutions() == 0
    time.advance(1)
    assert action_kit.close_by_hand(c.admin, dispatch).status == "resolved"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("decision", "status"),
    [("confirm_succeeded", "succeeded"), ("confirm_failed", "failed"), ("abandon_unknown", "blocked")],
)
@pytest.mark.parametrize("control", ["armed", "leased", "manual_required"])
def test_approvals_40_closed_by_hand(time: Time, decision: str, status: str, control: str) -> None:
    c = kit.cast()
    dispatch = stuck(c, time)
    if control != "armed":
        claimed = store.claim(dispatch.pk, "reconciler", "d" * 64, clock.now()).snapshot
        assert claimed is not None
        if control == "manual_required":
            held = holding_control(claimed.control)
            store.record_finding(held, 2, Found("f-1", "conflict", "odd", clock.now()))
    assert action_kit.control(dispatch).status == control
    done = action_kit.close_by_hand(c.admin, dispatch, decision=decision)
    assert done.status == "resolved"
    row, after = action_kit.fresh(dispatch), action_kit.control(dispatch)
    assert (row.status, row.version, row.last_result_code) == (status, 3, "looked_myself")
    assert (after.status, after.resolution_mutation_id, after.execution_version) == ("resolved", "m-1", 3)
    resolution = ApprovedActionRecoveryResolution.objects.get()
    fact = ApprovedActionRecoveryAuthorization.objects.get()
    assert resolution.mutation_id == fact.mutation_id == row.result_mutation_id == "m-1"
    assert (resolution.source, resolution.decision, resolution.resolved_by_type, resolution.resolved_by_id) == (
        "human", decision, "user", c.admin.subject_id,
    )  # fmt: skip
    assert resolution.resolved_at == fact.authorized_at == row.completed_at == clock.now()
    entry = AuditEntry.objects.get(action="approval.closed_by_hand")
    assert entry.metadata["status"] == status
    assert (entry.actor_type, entry.actor_id, entry.origin) == ("user", c.admin.subject_id, "tests")
    time.advance(kit.DAY_MS)
    assert action_kit.recover_all().scanned == action_kit.dispatch_all().scanned == 0


def test_approvals_40_vector() -> None:
    document = {
        "dispatchId": "disp-1", "projectId": "default", "mutationId": "mut-1", "resolvedByType": "user",
        "resolvedById": "u-2", "authenticationId": "auth-1", "assurance": "multi_factor",
        "authenticatedAtMs": 1_000, "projectVersion": 1, "bindingVersion": 1, "authorizedAtMs": 61_000,
    }  # fmt: skip
    expected = "b04a2589bfe81c792b422ffe8aadde65a3c6fb19b7e460b543aaded0ff8404d4"
    assert digests.of(digests.AUTHORIZATION, document) == expected


@pytest.mark.django_db(transaction=True)
def test_approvals_40_all_or_nothing(seeded: None, time: Time) -> None:
    c = kit.cast()
    dispatch = stuck(c, time)
    for model in (ApprovedActionRecoveryResolution, ApprovedActionRecoveryAuthorization):
        with (
            action_kit.failing_to_store(model, DatabaseError("no")),
            pytest.raises(errors.RecoveryRepositoryError),
        ):
            action_kit.close_by_hand(c.admin, dispatch)
        assert action_kit.fresh(dispatch).status == "executing" and resolutions() == 0
        assert action_kit.control(dispatch).status == "armed"
        assert not AuditEntry.objects.filter(action="approval.closed_by_hand").exists()
    assert action_kit.close_by_hand(c.admin, dispatch).status == "resolved"


@pytest.mark.django_db
@pytest.mark.parametrize("happens", ["revoked", "renewed", "archived"])
def test_approvals_40_rights_change_in_between(
    time: Time, monkeypatch: pytest.MonkeyPatch, happens: str
) -> None:
    c = kit.cast()
    dispatch = stuck(c, time)
    wish = action_kit.wish(dispatch)

    def change() -> Any:
        if happens == "archived":
            return Project.objects.filter(pk="default").update(status="archived", version=2)
        return people.give(c.admin, None if happens == "revoked" else "admin", version=2)

    kit.between(monkeypatch, change)
    with pytest.raises(errors.RecoveryFenceRejected):
        recover(action_kit.principal(c.admin), wish, origin="tests")
    assert action_kit.fresh(dispatch).status == "executing" and resolutions() == 0


@pytest.mark.django_db
def test_approvals_40_the_same_again(time: Time) -> None:
    c = kit.cast()
    dispatch = stuck(c, time)
    wish = action_kit.wish(dispatch, evidence_digest="e" * 64)
    first = recover(action_kit.principal(c.admin), wish, origin="tests")
    time.advance(60_000)
    again = recover(action_kit.principal(c.admin), wish, origin="tests")
    assert again.status == "resolved" and first.snapshot is not None and again.snapshot is not None
    assert again.snapshot.resolution is not None and first.snapshot.resolution is not None
    assert again.snapshot.resolution.resolved_at == first.snapshot.resolution.resolved_at
    for changed in (
        {"decision": "confirm_succeeded"}, {"reason_code": "other"}, {"mutation_id": "m-2"},
        {"evidence_digest": None}, {"expected_execution_version": 1},
    ):  # fmt: skip
        altered = action_kit.wish(dispatch, **{**wish.__dict__, **changed})
        assert recover(action_kit.principal(c.admin), altered, origin="tests").status == "already_terminal"
    second = people.member("admin", "ada")
    assert recover(action_kit.principal(second), wish, origin="tests").status == "already_terminal"
    # An old fact is no permit.
    weak = action_kit.principal(c.admin, Assurance.SINGLE_FACTOR)
    with pytest.raises(errors.RecoveryStrongAuthenticationRequired):
        recover(weak, wish, origin="tests")
    people.give(c.admin, "operator", version=2)
    with pytest.raises(errors.RecoveryAuthorizationDenied):
        recover(action_kit.principal(c.admin), wish, origin="tests")
    assert resolutions() == 2


@pytest.mark.django_db
def test_approvals_40_versions_and_ids(time: Time) -> None:
    c = kit.cast()
    dispatch, other = stuck(c, time), stuck(c, time, "r-2")
    for changed in ({"expected_execution_version": 1}, {"expected_recovery_version": 1}):
        with pytest.raises(errors.RecoveryFenceRejected):
            action_kit.close_by_hand(c.admin, dispatch, **changed)
    action_kit.close_by_hand(c.admin, dispatch)
    with pytest.raises(errors.MutationConflict):
        action_kit.close_by_hand(c.admin, other)
    for wrong in (
        {"decision": "retry"}, {"decision": "pending"}, {"reason_code": "a b"}, {"mutation_id": "m\n"},
        {"evidence_digest": "E" * 64}, {"expected_execution_version": -1}, {"expected_recovery_version": 2**31},
        {"expected_execution_version": True},
    ):  # fmt: skip
        with pytest.raises(errors.InvalidInput):
            action_kit.wish(other, **wrong)
    assert action_kit.fresh(other).status == "executing"


@pytest.mark.django_db
def test_approvals_40_what_ended_otherwise_is_never_changed(time: Time) -> None:
    c = kit.cast()
    dispatch = action_kit.handed_over_elsewhere(c)
    snapshot = action_kit.started(dispatch)
    wish = action_kit.wish(dispatch)
    execution.complete(action_kit.held(snapshot), "e-1", "succeeded", "done", clock.now())
    time.advance(action_kit.LEASE_MS)
    done = recover(action_kit.principal(c.admin), wish, origin="tests")
    assert done.status == "already_terminal" and resolutions() == 0
    assert action_kit.fresh(dispatch).status == "succeeded"


@pytest.mark.django_db
def test_approvals_40_an_altered_fact_is_seen(time: Time) -> None:
    c = kit.cast()
    dispatch = stuck(c, time)
    action_kit.close_by_hand(c.admin, dispatch)
    with thawed("approved_action_recovery_authorizations"):
        ApprovedActionRecoveryAuthorization.objects.update(assurance="hardware")
    with pytest.raises(errors.RecoveryRepositoryError):
        snapshots.find(dispatch.pk)


@pytest.mark.django_db(transaction=True)
def test_approvals_40_two_people_at_once(seeded: None, time: Time) -> None:
    c = kit.cast()
    second: User = people.member("admin", "ada")
    for number in range(5):
        dispatch = stuck(c, time, f"r-{number}")
        wishes = [
            (c.admin, action_kit.wish(dispatch, mutation_id=f"a-{number}", decision="confirm_succeeded")),
            (second, action_kit.wish(dispatch, mutation_id=f"b-{number}", decision="confirm_failed")),
        ]
        found = race(
            [
                lambda who=who, wish=wish: recover(action_kit.principal(who), wish, origin="tests").status
                for who, wish in wishes
            ]
        )
        assert sorted(found) == ["already_terminal", "resolved"], found
    assert resolutions() == 10


@pytest.mark.django_db
def test_approvals_40_recovery_fails_and_nothing_begins(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    c = kit.cast()
    effect = Effect()
    asked: list[str] = []
    look = dispatching.dispatch_page

    def fail(*_args: Any) -> Any:
        raise DatabaseError("no")

    def noted(*args: Any) -> Any:
        asked.append("dispatch")
        return look(*args)

    monkeypatch.setattr(dispatching, "dispatch_page", noted)
    with action_type(effect):
        dispatch = action_kit.handed_over_elsewhere(c, action_type=OTHER)
        profile = Profile(2, Bounds(1, 8), Bounds(1, 8))
        with monkeypatch.context() as broken:
            broken.setattr(recovery, "recover_page", fail)
            cycle = Cycle(profile)
            with pytest.raises(DatabaseError):
                cycle.run()
        assert (asked, effect.inspected) == ([], 0)
        assert action_kit.fresh(dispatch).status == "pending"
        done = Cycle(profile).run()
    assert asked == ["dispatch"] and done["dispatch"]["succeeded"] == effect.executed == 1
