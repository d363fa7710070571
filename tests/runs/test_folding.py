"""Old histories become summaries, through one narrow door that both engines guard (architecture.md §9)."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from apps.artifacts.models import ArtifactRetention, RetentionReceipt
from apps.artifacts.retention import history
from apps.core import clock
from apps.dispatch.models import RunCancellationDispatch, RunDispatchLease
from apps.runs.errors import HistoryRetained, RunNotFound
from apps.runs.models import Run, RunAttempt, RunEvent, RunHold, RunSummary, Skip
from apps.runs.services import folding, holds
from tests.artifacts.retention import kit as logs
from tests.people import grant, member
from tests.runs import kit

pytestmark = pytest.mark.django_db

DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def _rule(settings: Any, tmp_path: Any) -> None:
    settings.LOG_ROOT = tmp_path / "logs"
    (tmp_path / "logs").mkdir(mode=0o700)
    logs.keep(settings, keep_ms=7 * DAY_MS, pressure_ms=DAY_MS, keep_least=0, history_ms=90 * DAY_MS)


def _carried(exit_code: int = 3) -> Run:
    """A run that a worker carried to its end, its receipt consumed."""
    fence = kit.worker()
    run = kit.run_of(kit.task())
    (claim,) = kit.take(fence, 1)
    kit.advance(fence, claim.lease)
    kit.finish(fence, claim.lease, exit_code)
    from apps.dispatch.models import CompletionReceiptJournal
    from apps.runs.services import fold_totals

    CompletionReceiptJournal.objects.all().delete()
    while fold_totals():
        pass
    # No file was ever made of it.
    RunAttempt.objects.filter(run=run).update(log_artifact_id=None)
    from apps.artifacts.models import UnlistedRun

    UnlistedRun.objects.all().delete()
    return kit.fresh(run)


def _fold() -> int:
    return history.fold()[1]


def test_a_history_folds_into_its_summary(time: Any) -> None:
    run = _carried()
    events = RunEvent.objects.filter(run=run).count()
    before = Run.objects.filter(pk=run.pk).values().get()
    time.advance(90 * DAY_MS - 1)
    assert _fold() == 0
    time.advance(DAY_MS)
    assert _fold() == 1
    summary = RunSummary.objects.get(run=run)
    assert (summary.attempts, summary.events, summary.exit_code) == (1, events, 3)
    assert summary.tries[0]["status"] == "failed" and summary.tries[0]["exit_code"] == 3
    assert Run.objects.filter(pk=run.pk).values().get() == before
    for model in (RunAttempt, RunEvent, RunDispatchLease, RunCancellationDispatch):
        assert not model.objects.filter(run_id=run.pk).exists()
    receipt = RetentionReceipt.objects.get(rule="history")
    assert (receipt.items, receipt.files, receipt.project_id) == (1, events + 1, "default")
    assert _fold() == 0


def test_nothing_of_a_history_goes_without_a_summary() -> None:
    run = _carried()
    for table in ("run_events", "run_attempts"):
        with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {table}")
    with pytest.raises(DatabaseError), transaction.atomic():
        RunAttempt.objects.filter(run=run).delete()


def test_no_summary_of_a_run_that_goes_on_or_is_held() -> None:
    held = _carried()
    holds.hold(held.pk, "fork", "1")
    going = kit.run_of(kit.task())
    for run in (going, held):
        with pytest.raises(DatabaseError), transaction.atomic():
            RunSummary.objects.create(run=run, attempts=1, events=1, folded_at=clock.now())


def test_a_summary_never_changes_and_stays(time: Any) -> None:
    _carried()
    time.advance(91 * DAY_MS)
    assert _fold() == 1
    for statement in ("UPDATE run_summaries SET events = 0", "DELETE FROM run_summaries"):
        with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)


def test_what_keeps_a_history(time: Any) -> None:
    """Held by a row or a registered holder, a log still there, a receipt to come."""
    from apps.dispatch.models import CompletionReceiptJournal

    by_row, by_holder, free = _carried(), _carried(), _carried()
    with_log = logs.ended(clock.now(), status="failed")
    receipt = _carried()
    attempt = RunAttempt.objects.get(run=receipt)
    CompletionReceiptJournal.objects.create(
        attempt=attempt, run=receipt, node_id="n", registered_at=clock.now(), updated_at=clock.now()
    )
    kit_events([with_log.run])
    holds.hold(by_row.pk, "checkpoint", "c1")
    holds.register("tests", lambda run_ids: {by_holder.pk} & set(run_ids))
    try:
        time.advance(91 * DAY_MS)
        assert _fold() == 1
        assert set(RunSummary.objects.values_list("run_id", flat=True)) == {free.pk}
    finally:
        del holds._holders["tests"]
    assert holds.release(by_row.pk, "checkpoint", "c1") and not holds.release(by_row.pk, "checkpoint", "c1")
    assert _fold() == 2


def kit_events(runs: list[Run]) -> None:
    """An event for runs that were written straight into the database."""
    for run in runs:
        RunEvent.objects.create(
            run=run, sequence=1, type="run.created", actor_type="system", created_at=run.created_at
        )


def test_a_log_goes_first_and_the_summary_tells_of_it(time: Any) -> None:
    of = logs.ended(clock.now(), status="failed", content=b"x" * 50)
    kit_events([of.run])
    logs.listed(of)
    time.advance(91 * DAY_MS)
    assert _fold() == 0
    from apps.artifacts.retention import sweep

    sweep.cycle(logs.OPTIONS)
    assert _fold() == 1
    summary = RunSummary.objects.get(run=of.run)
    assert summary.log_bytes == 50 and summary.tries[0]["log"] == "deleted"
    assert not ArtifactRetention.objects.exists()
    from apps.artifacts import queries

    found = queries.find("default", of.run_id)
    assert found is not None and found.retention is not None and found.retention.bytes_reclaimed == 50
    assert queries.find("default", of.run_id, 2) is None


def test_windows_walk_on_and_begin_anew(time: Any) -> None:
    runs = [_carried() for _ in range(3)]
    time.advance(91 * DAY_MS)
    cutoff = clock.now()
    first = folding.window(cutoff, size=2)
    assert first.run_ids == [runs[0].pk] and first.after is not None
    seen, after = set(first.run_ids), first.after
    while after is not None:
        found = folding.window(cutoff, after, size=2)
        seen, after = seen | set(found.run_ids), found.after
    assert seen == {run.pk for run in runs}
    assert folding.window(runs[0].created_at - timedelta(milliseconds=1)).run_ids == []


def test_folding_asks_a_fixed_number_of_queries(time: Any, django_assert_max_num_queries: Any) -> None:
    runs = [_carried() for _ in range(6)]
    time.advance(91 * DAY_MS)
    with django_assert_max_num_queries(40):
        assert len(folding.fold([run.pk for run in runs], clock.now())) == 6


def test_a_pin_and_its_story() -> None:
    who = member("operator")
    run = _carried()
    pin = holds.pin_run(grant(who, "task.update"), run.pk, "for the audit")
    assert holds.pin_run(grant(who, "task.update"), run.pk, "again").pk == pin.pk
    assert holds.held([run.pk]) == {run.pk}
    assert [(one.holder, one.reason) for one in holds.of_run(run.pk)] == [("pin", "for the audit")]
    holds.unpin_run(grant(who, "task.update"), run.pk)
    holds.unpin_run(grant(who, "task.update"), run.pk)
    assert not RunHold.objects.exists()


def test_what_folded_cannot_be_held_any_more(time: Any) -> None:
    run = _carried()
    time.advance(91 * DAY_MS)
    _fold()
    with pytest.raises(HistoryRetained):
        holds.hold(run.pk, "fork")
    with pytest.raises(RunNotFound):
        holds.hold(kit.task().pk, "fork")


def test_records_of_what_did_not_run_go_too(time: Any) -> None:
    task = kit.task()

    def skip(**values: Any) -> Skip:
        return Skip.objects.create(
            project_id="default", task=task, reason="missed", trigger_type="cron", triggered_by_type="system",
            triggered_by_id="s", created_at=clock.now(), **values,
        )  # fmt: skip

    skip()
    still = skip(open=True, trigger_id=task.pk)
    time.advance(91 * DAY_MS)
    young = skip()
    assert history.forget_skips() == 1
    assert set(Skip.objects.values_list("pk", flat=True)) == {still.pk, young.pk}
    assert RetentionReceipt.objects.get(rule="skips").items == 1


@pytest.mark.django_db(transaction=True)
def test_a_hold_and_a_fold_at_the_same_moment(seeded: None, settings: Any) -> None:
    """Whoever is first: the run is held and whole, or folded and the hold refused; never both."""
    for _ in range(4):
        run = _carried()
        logs.keep(settings, history_ms=DAY_MS)
        hold, fold = (
            partial(holds.hold, run.pk, "fork"),
            partial(folding.fold, [run.pk], clock.now() + 2 * logs.DAY),
        )
        results = kit.race([hold, fold])
        folded = RunSummary.objects.filter(run=run).exists()
        assert folded is not RunHold.objects.filter(run=run).exists(), results
        assert folded is not RunEvent.objects.filter(run=run).exists()
        assert isinstance(results[0], HistoryRetained) is folded
