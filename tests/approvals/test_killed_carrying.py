"""Killed before any statement of carrying out, recovering or closing by hand: one effect at most, always an end."""

from __future__ import annotations

from collections import Counter

import pytest

from apps.approvals.models import (
    ApprovedActionDispatch,
    ApprovedActionRecoveryAuthorization,
    ApprovedActionRecoveryControl,
    ApprovedActionRecoveryResolution,
    ApprovedRunReceipt,
)
from apps.approvals.services import manual
from apps.approvals.services.run_creation import create_approved_run
from apps.audit.queries import verify
from apps.core import clock
from apps.runs.models import Run
from tests.approvals import action_kit, kit
from tests.approvals.test_killed import MOST, killed_before
from tests.conftest import Time
from tests.runs import kit as runs_kit

LONGEST = 4 * MOST


def runs_of(dispatch: ApprovedActionDispatch) -> int:
    found = Run.objects.filter(idempotency_key=dispatch.pk).count()
    assert found == ApprovedRunReceipt.objects.filter(pk=dispatch.pk).count() <= 1
    for run in Run.objects.filter(idempotency_key=dispatch.pk):
        runs_kit.check_history(run)
    return found


def where(dispatch: ApprovedActionDispatch) -> str:
    """In which part of its way the process died."""
    row = action_kit.fresh(dispatch)
    watched = ApprovedActionRecoveryControl.objects.filter(pk=dispatch.pk).exists()
    assert watched == (row.started_at is not None)
    return f"{row.status}, {runs_of(dispatch)} runs"


@pytest.mark.django_db(transaction=True)
def test_carrying_out(seeded: None, time: Time) -> None:
    c = kit.cast()
    task = kit.task(concurrency="parallel", max_parallel=8)
    died: Counter[str] = Counter()
    for number in range(LONGEST):
        dispatch = action_kit.handed_over(c, task, f"r-{number}", input={"n": number})
        killed = killed_before(number, action_kit.dispatch_all)
        place = where(dispatch)
        died[place] += killed
        before = runs_of(dispatch)
        # Others come: as often as they like, when everybody's time is over.
        for _ in range(3):
            time.advance(action_kit.LEASE_MS)
            action_kit.recover_all()
            action_kit.dispatch_all()
        row = action_kit.fresh(dispatch)
        if place == "executing, 0 runs":
            assert (row.status, runs_of(dispatch)) == ("executing", 0), "what was begun is never done again"
            assert action_kit.control(dispatch).last_finding == "missing"
            manual.recoveries.clear()
            action_kit.close_by_hand(c.admin, dispatch, mutation_id=f"m-{number}", decision="abandon_unknown")
            assert action_kit.fresh(dispatch).status == "blocked"
        else:
            assert (row.status, runs_of(dispatch)) == ("succeeded", 1), place
            recovered = ApprovedActionRecoveryResolution.objects.filter(pk=dispatch.pk).exists()
            assert recovered == (place == "executing, 1 runs")
            assert before <= 1
        if not killed:
            break
    else:
        raise AssertionError("it never ended")
    assert set(died) >= {"pending, 0 runs", "leased, 0 runs", "executing, 0 runs", "executing, 1 runs"}, died
    assert verify("default").valid


@pytest.mark.django_db(transaction=True)
def test_recovering_by_evidence(seeded: None, time: Time) -> None:
    c = kit.cast()
    task = kit.task(concurrency="parallel", max_parallel=8)
    for number in range(LONGEST):
        dispatch = action_kit.handed_over(c, task, f"r-{number}")
        create_approved_run(action_kit.started(dispatch), action_kit.plan(dispatch))
        time.advance(action_kit.LEASE_MS)
        killed = killed_before(number, action_kit.recover_all)
        ended = action_kit.fresh(dispatch).status == "succeeded"
        assert ApprovedActionRecoveryResolution.objects.filter(pk=dispatch.pk).exists() == ended
        assert (action_kit.control(dispatch).status == "resolved") == ended
        time.advance(action_kit.LEASE_MS)
        action_kit.recover_all()
        assert action_kit.fresh(dispatch).status == "succeeded" and runs_of(dispatch) == 1
        if not killed:
            break
    else:
        raise AssertionError("it never ended")
    assert number > 5 and verify("default").valid


@pytest.mark.django_db(transaction=True)
def test_closing_by_hand(seeded: None, time: Time) -> None:
    c = kit.cast()
    for number in range(LONGEST):
        manual.recoveries.clear()
        dispatch = action_kit.handed_over_elsewhere(c, f"r-{number}")
        action_kit.started(dispatch)
        time.advance(action_kit.LEASE_MS)
        principal, wish = (
            action_kit.principal(c.admin),
            action_kit.wish(dispatch, mutation_id=f"m-{number}"),
        )
        killed = killed_before(number, lambda p=principal, w=wish: manual.recover(p, w, origin="tests"))
        closed = action_kit.fresh(dispatch).status == "failed"
        for model in (ApprovedActionRecoveryResolution, ApprovedActionRecoveryAuthorization):
            assert model.objects.filter(pk=dispatch.pk).exists() == closed
        assert (action_kit.control(dispatch).status == "resolved") == closed
        # The same word again brings it to its end, or finds it there.
        assert manual.recover(principal, wish, origin="tests").status == "resolved"
        fact = ApprovedActionRecoveryAuthorization.objects.get(pk=dispatch.pk)
        assert fact.authorized_at == clock.now() and action_kit.fresh(dispatch).status == "failed"
        if not killed:
            break
    else:
        raise AssertionError("it never ended")
    assert number > 5 and verify("default").valid
