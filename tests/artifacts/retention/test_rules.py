"""What rules let go, and what no rule touches (lessons D23)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from apps.artifacts.models import ArtifactRetention, RetentionReceipt, RetentionRule, StoredTotal
from apps.artifacts.retention import limits, listing, preview, records, rules, sweep
from apps.artifacts.retention.rules import Limits
from apps.core import clock
from apps.core.errors import Forbidden, InvalidInput, NotFound, VersionConflict
from apps.projects.policy import Grant
from apps.runs.services import holds
from apps.tasks.models import Task
from tests.artifacts.retention import kit
from tests.artifacts.retention.kit import DAY, OPTIONS
from tests.tasks.kit import make

pytestmark = pytest.mark.django_db

DAY_MS = 86_400_000
GRANT = Grant.system("default", "project.manage", "tests")


@pytest.fixture(autouse=True)
def _rule(root: Path, settings: Any, time: Any) -> None:
    kit.keep(settings, keep_ms=7 * DAY_MS, pressure_ms=DAY_MS, keep_least=0)


def _all() -> None:
    while sweep.cycle(OPTIONS).swept.status != "complete":
        pass


def _set(limits: Limits, task: Task | None = None) -> None:
    rules.change(GRANT, 0, limits, task.pk if task else None)


def test_without_a_folder_of_logs_nothing_is_removed_and_nothing_put_on_record(root: Path) -> None:
    """A home that nothing has run in yet, or a disk that is not there: the first is in order, the second waits."""
    root.rmdir()
    assert sweep.cycle(OPTIONS).swept.status == "complete" and not root.exists()
    root.mkdir(0o700)
    of = kit.ended(clock.now() - 8 * DAY, status="failed")
    kit.listed(of)
    root.rename(root.with_name("elsewhere"))
    assert [entry.outcome for entry in sweep.cycle(OPTIONS).swept.entries] == ["file_failed"]
    assert not ArtifactRetention.objects.exists()
    root.with_name("elsewhere").rename(root)
    _all()
    assert ArtifactRetention.objects.filter(attempt=of).exists() and kit.on_disk([of]) == []


def test_a_task_before_its_project_before_the_instance() -> None:
    plain, own = make(name="plain"), make(name="own")
    _set(Limits(keep_ms=3 * DAY_MS))
    _set(Limits(keep_ms=20 * DAY_MS), own)
    at = clock.now() - 5 * DAY
    goes, stays = kit.ended(at, task=plain, status="failed"), kit.ended(at, task=own, status="failed")
    kit.listed(goes, stays)
    _all()
    assert kit.on_disk([goes, stays]) == [stays]


def test_pressure_is_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    from apps.artifacts import store
    from apps.artifacts.retention.sweep import Options

    own = make()
    _set(Limits(keep_ms=300 * DAY_MS), own)
    of = kit.ended(clock.now() - 2 * DAY, task=own, status="failed")
    kit.listed(of)
    monkeypatch.setattr(store, "inspect", lambda path: store.Capacity(9, 100))
    sweep.cycle(Options(16, 8, 10))
    assert kit.on_disk([of]) == []
    assert RetentionReceipt.objects.get().rule == "pressure"


def test_the_newest_so_many_stay(settings: Any) -> None:
    kit.keep(settings, keep_least=3)
    made = kit.many(5, clock.now() - 8 * DAY)
    few = kit.many(2, clock.now() - 9 * DAY)
    _all()
    assert kit.on_disk(made) == made[2:] and kit.on_disk(few) == few


def test_the_last_success_stays() -> None:
    task = make()
    old = kit.ended(clock.now() - 30 * DAY, task=task)
    last = kit.ended(clock.now() - 20 * DAY, task=task)
    failed = kit.ended(clock.now() - 10 * DAY, task=task, status="failed")
    kit.listed(old, last, failed)
    _all()
    assert kit.on_disk([old, last, failed]) == [last]


def test_pinned_tasks_and_held_runs_stay() -> None:
    pinned = make(pinned=True)
    of_pinned = kit.ended(clock.now() - 30 * DAY, task=pinned, status="failed")
    pinned_run, forked, free = (kit.ended(clock.now() - 30 * DAY, status="failed") for _ in range(3))
    kit.listed(of_pinned, pinned_run, forked, free)
    holds.pin_run(Grant.system("default", "task.update", "tests"), pinned_run.run_id)
    holds.hold(forked.run_id, "fork", "f1")
    _all()
    assert kit.on_disk([of_pinned, pinned_run, forked, free]) == [of_pinned, pinned_run, forked]
    holds.release(forked.run_id, "fork", "f1")
    _all()
    assert kit.on_disk([forked]) == []


def test_at_most_so_many_of_a_task() -> None:
    task = make()
    made = kit.many(6, clock.now(), task=task)
    other = kit.many(3, clock.now())
    _set(Limits(keep_most=4), task)
    assert [entry.outcome for entry in limits.enforce(8)] == ["deleted", "deleted"]
    assert limits.enforce(8) == []
    assert kit.on_disk(made) == made[2:] and kit.on_disk(other) == other
    assert RetentionReceipt.objects.get().rule == "count"


def test_at_most_so_many_bytes_of_a_project_in_bounded_calls() -> None:
    made = kit.many(6, clock.now(), content=b"x" * 20_000)
    _set(Limits(keep_bytes=70_000))
    assert len(limits.enforce(2)) == 2
    assert len(limits.enforce(2)) == 1
    assert limits.enforce(2) == []
    assert kit.on_disk(made) == made[3:]
    assert listing.usage("default") == listing.Usage(3, 60_000)
    receipt = RetentionReceipt.objects.get()
    assert (receipt.rule, receipt.items, receipt.files, receipt.bytes) == ("bytes", 3, 3, 60_000)


def test_limits_never_take_what_is_kept() -> None:
    task = make()
    made = kit.many(3, clock.now(), task=task)
    good = kit.ended(clock.now() - DAY, task=task)
    kit.listed(good)
    holds.hold(made[0].run_id, "fork")
    _set(Limits(keep_most=1), task)
    while limits.enforce(8):
        pass
    assert kit.on_disk([good, *made]) == [good, made[0]]


def test_usage_follows_listing_and_removal() -> None:
    task = make()
    kit.many(3, clock.now() - 8 * DAY, task=task, content=b"12345")
    assert listing.usage("default", task.pk) == listing.Usage(3, 15)
    _all()
    assert listing.usage("default", task.pk) == listing.Usage(0, 0)
    assert StoredTotal.objects.get().logs == 0


def test_collected_files_go_with_the_log(root: Path) -> None:
    from apps.artifacts import collected

    of = kit.ended(clock.now() - 8 * DAY, status="failed", content=b"12345")
    folder = Path(collected.folder_of(str(root), str(of.log_artifact_id)))
    folder.mkdir(mode=0o700)
    (folder / "1").write_bytes(b"x" * 100)
    (folder / "manifest.json").write_bytes(b"{}")
    kit.listed(of)
    assert listing.usage("default").bytes == 107
    _all()
    assert not folder.exists()
    row = ArtifactRetention.objects.get()
    assert (row.disposition, row.bytes_reclaimed) == ("deleted", 107)


def test_two_bills_of_one_day_are_one_and_the_next_day_has_its_own(time: Any) -> None:
    kit.many(2, clock.now() - 8 * DAY)
    sweep.cycle(OPTIONS)
    kit.many(1, clock.now() - 9 * DAY)
    sweep.cycle(OPTIONS)
    (receipt,) = RetentionReceipt.objects.all()
    assert (receipt.items, receipt.bytes) == (3, 3)
    assert receipt.oldest_at == clock.now() - 9 * DAY and receipt.newest_at == clock.now() - 8 * DAY
    time.advance(DAY_MS)
    kit.many(1, clock.now() - 9 * DAY)
    sweep.cycle(OPTIONS)
    assert RetentionReceipt.objects.count() == 2


def test_a_change_of_a_rule_and_its_refusals() -> None:
    task = make()
    assert rules.find("default").version == 0
    rule = rules.change(GRANT, 0, Limits(keep_ms=DAY_MS))
    assert (rule.version, rules.change(GRANT, 1, Limits(keep_ms=DAY_MS)).version) == (1, 1)
    assert rules.change(GRANT, 1, Limits(keep_most=5)).version == 2
    with pytest.raises(VersionConflict):
        rules.change(GRANT, 1, Limits())
    with pytest.raises(Forbidden):
        rules.change(Grant.system("default", "task.update", "tests"), 2, Limits())
    with pytest.raises(NotFound):
        rules.change(GRANT, 0, Limits(), clock_id())
    assert rules.change(GRANT, 0, Limits(keep_least=1), task.pk).version == 1
    assert RetentionRule.objects.count() == 2
    for wrong in ({"keep_ms": 59_999}, {"keep_ms": 366 * DAY_MS}, {"keep_most": 0}, {"keep_bytes": 1},
                  {"keep_least": 1001}, {"keep_most": True}, {"keep_most": 2, "keep_least": 3}):  # fmt: skip
        with pytest.raises(InvalidInput):
            rules.check(dict(wrong))


def clock_id() -> Any:
    from apps.core import ids

    return ids.uuid7()


def test_a_preview_says_what_the_sweep_then_does() -> None:
    made = kit.many(10, clock.now() - 8 * DAY, content=b"x" * 10)
    young = kit.many(3, clock.now(), content=b"y" * 10)
    found = preview.preview(GRANT)
    assert (found.runs, found.logs, found.files, found.bytes, found.bounded) == (10, 10, 10, 100, False)
    assert found.by_rule == {"age": 10} and found.oldest_kept_at == young[0].finished_at
    assert (found.kept_logs, found.kept_bytes) == (3, 30)
    assert kit.on_disk(made) == made
    _all()
    assert RetentionReceipt.objects.get().bytes == 100
    again = preview.preview(GRANT)
    assert (again.logs, again.oldest_kept_at) == (0, young[0].finished_at)


def test_a_preview_of_another_rule_changes_nothing() -> None:
    kit.many(5, clock.now() - 2 * DAY, content=b"x" * 10)
    assert preview.preview(GRANT).logs == 0
    assert preview.preview(GRANT, Limits(keep_ms=DAY_MS)).by_rule == {"age": 5}
    found = preview.preview(GRANT, Limits(keep_most=2))
    assert found.by_rule == {"count": 3} and found.kept_logs == 2
    assert not RetentionRule.objects.exists()


def test_a_preview_of_a_task_keeps_what_the_sweep_keeps() -> None:
    task = make()
    good = kit.ended(clock.now() - 9 * DAY, task=task)
    bad = kit.ended(clock.now() - 10 * DAY, task=task, status="failed")
    kit.listed(good, bad)
    kit.many(4, clock.now() - 10 * DAY)
    found = preview.preview(GRANT, None, task.pk)
    assert (found.logs, found.oldest_kept_at) == (1, good.finished_at)


def test_a_preview_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from apps.artifacts.retention import candidates

    monkeypatch.setattr(candidates, "CHUNK", 4)
    monkeypatch.setattr(preview, "LOOKED_AT", 8)
    kit.many(12, clock.now() - 8 * DAY)
    found = preview.preview(GRANT)
    assert (found.logs, found.bounded) == (8, True)


def test_a_preview_asks_a_fixed_number_of_queries_per_part(django_assert_max_num_queries: Any) -> None:
    for _ in range(5):
        kit.many(4, clock.now() - 8 * DAY)
    with django_assert_max_num_queries(12):
        preview.preview(GRANT)


def test_what_is_kept_longer_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends after so many rows, whoever they belong to; the next sweep goes on behind them."""
    from apps.artifacts.retention import candidates

    monkeypatch.setattr(candidates, "CHUNK", 4)
    monkeypatch.setattr(candidates, "SCAN", 8)
    own = make()
    _set(Limits(keep_ms=300 * DAY_MS), own)
    kept = kit.many(20, clock.now() - 30 * DAY, task=own)
    goes = kit.many(2, clock.now() - 10 * DAY)
    cycles = 0
    while kit.on_disk(goes):
        sweep.cycle(OPTIONS)
        cycles += 1
        assert cycles < 10
    assert kit.on_disk(kept) == kept


def test_one_record_that_conflicts_spoils_no_other() -> None:
    made = kit.many(3, clock.now() - 8 * DAY)
    now = clock.now()

    def row(of: Any, artifact_id: str) -> records.Record:
        return records.Record(
            of.pk, artifact_id, of.finished_at, of.finished_at, "deleted", 1, now, "default", "age"
        )

    rows = [row(one, str(one.log_artifact_id)) for one in made]
    rows[1] = row(made[1], "local-" + "0" * 30)
    ArtifactRetention.objects.create(
        attempt=made[1], log_artifact_id=made[1].log_artifact_id, finished_at=made[1].finished_at,
        eligible_at=made[1].finished_at, disposition="deleted", bytes_reclaimed=1, recorded_at=clock.now(),
    )  # fmt: skip
    assert list(sweep._record(rows)) == [made[1].pk]
    assert ArtifactRetention.objects.count() == 3


def test_an_end_comes_to_the_list_with_the_totals() -> None:
    """The whole way: a run ends, totals are folded, the job lists its log."""
    from apps.artifacts import jobs
    from apps.artifacts.models import StoredLog
    from apps.runs.models import UncountedRun
    from apps.runs.services import fold_totals

    of = kit.ended(clock.now(), content=b"abc")
    UncountedRun.objects.create(
        run_id=of.run_id, project_id="default", task_id=of.run.task_id, status="succeeded",
        finished_at=of.finished_at, duration_ms=1,
    )  # fmt: skip
    fold_totals()
    jobs.list_ended({})
    row = StoredLog.objects.get()
    assert (row.pk, row.bytes, row.files, row.succeeded) == (of.pk, 3, 1, True)


def test_the_job_goes_on_soon_while_there_is_more_and_rests_else(
    time: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apps.artifacts import jobs
    from apps.core import control
    from apps.core.models import ControlJob

    monkeypatch.setattr(control, "_jobs", {"artifacts.retain": control._jobs["artifacts.retain"]})
    # One step per call.
    monkeypatch.setattr(jobs, "BUDGET_S", 0.0)
    made = kit.many(20, clock.now() - 8 * DAY)
    control.enrol(clock.now())
    pauses = []
    while kit.on_disk(made):
        assert control.run_due(clock.now()) == 1
        row = ControlJob.objects.get(name="artifacts.retain")
        pauses.append((row.due_at - clock.now()).total_seconds())
        time.advance(int(pauses[-1] * 1000))
    assert len(pauses) == 2 and pauses == [5.0, settings.RETENTION.interval_ms / 1000]
    assert row.cursor == {"busy": False, "failed": 0, "pressure": False}


def test_the_sweep_asks_a_fixed_number_of_queries(
    django_assert_max_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "spent", lambda: False)  # a busy machine gives locks back earlier
    for _ in range(8):
        kit.many(1, clock.now() - 8 * DAY)
    with django_assert_max_num_queries(36):
        assert sweep.cycle(OPTIONS).swept.attempted == 8


def test_bounds_of_the_options() -> None:
    from apps.artifacts.retention.sweep import Options

    for page, most in ((0, 1), (65, 1), (8, 9), (8, 0)):
        with pytest.raises(ValueError, match="bounds"):
            Options(page, most, 0)
    assert timedelta(milliseconds=rules.instance().keep_ms) == 7 * DAY
