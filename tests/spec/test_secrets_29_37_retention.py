"""secrets-and-artifacts.md §14, scenarios 28 to 37: what retention removes, in which order, and what not."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from apps.artifacts import facts, reader, services, store
from apps.artifacts.errors import LogRetained, MetadataCorrupt, RetentionConflict
from apps.artifacts.models import ArtifactMaintenanceCursor, ArtifactRetention, StoredLog
from apps.artifacts.retention import candidates, files, records, rules, sweep
from apps.artifacts.retention.records import Record
from apps.artifacts.retention.sweep import Options
from apps.core import clock, ids
from apps.dispatch.models import CompletionReceiptJournal
from apps.runs.models import RunAttempt
from tests.artifacts.kit import GRANT, log_path, publish
from tests.artifacts.retention import kit
from tests.artifacts.retention.kit import DAY, OPTIONS

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _rule(root: Path, settings: Any, time: Any) -> None:
    kit.keep(settings, keep_ms=7 * 86_400_000, pressure_ms=86_400_000, keep_least=0)


@pytest.fixture
def root(tmp_path: Path, settings: Any) -> Path:
    settings.LOG_ROOT = tmp_path / "logs"
    (tmp_path / "logs").mkdir(mode=0o700)
    return tmp_path / "logs"


def _record(of: RunAttempt, **changes: Any) -> Record:
    assert of.finished_at is not None and of.log_artifact_id is not None
    values: dict[str, Any] = {
        "attempt_id": of.pk, "log_artifact_id": of.log_artifact_id, "finished_at": of.finished_at,
        "eligible_at": of.finished_at, "disposition": "deleted", "bytes_reclaimed": 1, "recorded_at": clock.now(),
        "project_id": "default", "rule": "age",
    }  # fmt: skip
    return Record(**{**values, **changes})


def _page(pressure: bool = False) -> set[Any]:
    found = candidates.page(rules.load(pressure=pressure), clock.now(), None, 64)
    return {one.attempt_id for one in found.candidates}


def test_secrets_28_a_record_makes_a_log_gone_without_a_look_at_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = kit.ended(clock.now() - 8 * DAY)
    kit.listed(of)
    records.record([_record(of)])
    with monkeypatch.context() as patch:
        patch.setattr(reader, "read", lambda *args: pytest.fail("the file was touched"))
        with pytest.raises(LogRetained) as caught:
            services.read_log(GRANT, of.run_id)
    assert (caught.value.status, caught.value.code) == (410, "log_retained")


def test_secrets_28_a_record_between_the_look_and_the_open_is_found_by_the_second_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = kit.ended(clock.now() - 8 * DAY)
    kit.listed(of)
    real = reader.read

    def meanwhile(*args: Any) -> Any:
        assert files.retire(str(of.log_artifact_id)).disposition == "deleted"
        records.record([_record(of)])
        return real(*args)

    monkeypatch.setattr(reader, "read", meanwhile)
    with pytest.raises(LogRetained):
        services.read_log(GRANT, of.run_id)


def test_secrets_29_a_record_of_another_end_is_corrupt() -> None:
    of = kit.ended(clock.now() - 8 * DAY)
    records.record([_record(of, finished_at=of.finished_at - timedelta(milliseconds=1))])
    with pytest.raises(MetadataCorrupt):
        services.read_log(GRANT, of.run_id)


def test_secrets_29_a_record_of_another_artifact_is_corrupt() -> None:
    of = kit.ended(clock.now() - 8 * DAY)
    records.record([_record(of, log_artifact_id="local-" + "0" * 30)])
    with pytest.raises(MetadataCorrupt):
        services.read_log(GRANT, of.run_id)


def test_secrets_30_the_cutoff_to_the_millisecond() -> None:
    cutoff = clock.now() - 7 * DAY
    at, later = (
        kit.ended(cutoff, status="failed"),
        kit.ended(cutoff + timedelta(milliseconds=1), status="failed"),
    )
    kit.listed(at, later)
    assert _page() == {at.pk}


@pytest.mark.parametrize("pressure", [False, True])
def test_secrets_30_what_is_never_a_candidate(pressure: bool) -> None:
    old = clock.now() - 100 * DAY
    good = kit.ended(old, status="failed")
    running = kit.ended(old, status="running")
    lost = kit.ended(old, status="failed", attempt_status="lost")
    run_lost = kit.ended(old, status="lost", attempt_status="lost")
    legacy = kit.ended(old, status="failed", execution_owner="legacy")
    pending, quarantined = kit.ended(old, status="failed"), kit.ended(old, status="failed")
    for one, state in ((pending, "pending"), (quarantined, "quarantined")):
        values = {"quarantine_ref": "q", "purge_after": old} if state == "quarantined" else {}
        CompletionReceiptJournal.objects.create(
            attempt=one,
            run_id=one.run_id,
            node_id="n",
            state=state,
            registered_at=old,
            updated_at=old,
            **values,
        )
    retained = kit.ended(old, status="failed")
    kit.listed(good, running, lost, run_lost, legacy, pending, quarantined, retained)
    ArtifactRetention.objects.create(
        attempt=retained, log_artifact_id=retained.log_artifact_id, finished_at=old, eligible_at=old,
        disposition="deleted", bytes_reclaimed=1, recorded_at=clock.now(),
    )  # fmt: skip
    assert _page(pressure) == {good.pk}


def test_secrets_31_pages_and_the_budget_of_deletions() -> None:
    made = kit.many(20, clock.now() - 8 * DAY)
    first = sweep.cycle(OPTIONS)
    assert (first.swept.status, first.action, first.swept.attempted) == (
        "deletion_budget_exhausted",
        "advanced",
        8,
    )
    assert sweep.load().position == (made[7].finished_at, made[7].pk)
    second = sweep.cycle(OPTIONS)
    assert (second.swept.status, second.swept.attempted) == ("deletion_budget_exhausted", 8)
    assert sweep.load().position == (made[15].finished_at, made[15].pk)
    third = sweep.cycle(OPTIONS)
    assert (third.swept.status, third.action, third.swept.attempted) == ("complete", "cleared", 4)
    assert sweep.load().position is None
    assert ArtifactRetention.objects.count() == 20
    assert kit.on_disk(made) == [] and kit.stored() == 0


def test_secrets_32_a_fifo_that_is_none_stops_the_removal_until_it_is_mended(root: Path) -> None:
    of = kit.ended(clock.now() - 8 * DAY, status="failed")
    kit.listed(of)
    fifo = log_path(of).with_name(f".{log_path(of).name}.fifo")
    fifo.write_text("not a fifo")
    found = sweep.cycle(OPTIONS)
    assert [entry.outcome for entry in found.swept.entries] == ["file_failed"]
    assert log_path(of).exists() and not ArtifactRetention.objects.exists()
    fifo.unlink()
    os.mkfifo(fifo)
    assert [entry.outcome for entry in sweep.cycle(OPTIONS).swept.entries] == ["deleted"]
    assert not fifo.exists() and not log_path(of).exists()


def test_secrets_32_all_that_stands_beside_a_log_goes_with_it(root: Path) -> None:
    of = kit.ended(clock.now() - 8 * DAY, status="failed")
    publish(of, True)
    paths = facts.log_paths(str(root), str(of.log_artifact_id))
    for path in (paths.places, paths.fact_temporary):
        Path(path).write_bytes(b"1")
    kit.listed(of)
    sweep.cycle(OPTIONS)
    assert list(Path(paths.shard).iterdir()) == []


def test_secrets_33_killed_between_the_file_and_its_record() -> None:
    of = kit.ended(clock.now() - 8 * DAY, status="failed", content=b"x" * 100)
    kit.listed(of)
    # What a kill at that point leaves; tests/chaos kills a real process there.
    log_path(of).unlink()
    found = sweep.cycle(OPTIONS).swept
    assert [(entry.outcome, entry.bytes) for entry in found.entries] == [("already_absent", 0)]
    row = ArtifactRetention.objects.get()
    assert (row.disposition, row.bytes_reclaimed) == ("already_absent", 0)


def test_secrets_34_a_log_that_cannot_be_removed_keeps_its_fact(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = kit.ended(clock.now() - 8 * DAY, status="failed")
    publish(of, True)
    kit.listed(of)
    real = os.unlink

    def refuse(path: Any, **options: Any) -> None:
        if str(path).endswith(".log"):
            raise PermissionError
        real(path, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    assert [entry.outcome for entry in sweep.cycle(OPTIONS).swept.entries] == ["file_failed"]
    monkeypatch.undo()
    fact = facts.read_fact(str(root), str(of.log_artifact_id))
    assert fact is not None and fact.quota_reached
    assert not ArtifactRetention.objects.exists()


def test_secrets_35_one_of_two_runners_moves_the_checkpoint() -> None:
    kit.many(20, clock.now() - 8 * DAY)
    before = sweep.load()
    first = sweep.cycle(OPTIONS, before)
    second = sweep.cycle(OPTIONS, before)
    assert {first.action, second.action} == {"advanced", "fenced"}
    assert sweep.load().version == before.version + 1


def test_secrets_35_an_idle_cycle_writes_nothing(time: Any) -> None:
    kit.many(1, clock.now() - 8 * DAY)
    sweep.cycle(Options(1, 1, 0))
    kit.many(2, clock.now() - 8 * DAY)
    sweep.cycle(Options(2, 1, 0)), sweep.cycle(Options(2, 1, 0))
    row = ArtifactMaintenanceCursor.objects.get()
    time.advance(60_000)
    assert sweep.cycle(OPTIONS).action == "unchanged"
    again = ArtifactMaintenanceCursor.objects.get()
    assert (again.version, again.updated_at) == (row.version, row.updated_at)


@pytest.mark.parametrize(("available", "pressure"), [(999, True), (1000, False)])
def test_secrets_36_pressure_begins_one_byte_below_the_reserve(
    monkeypatch: pytest.MonkeyPatch, available: int, pressure: bool
) -> None:
    monkeypatch.setattr(store, "inspect", lambda path: store.Capacity(available, 10**12))
    of = kit.ended(clock.now() - 2 * DAY, status="failed")
    kit.listed(of)
    found = sweep.cycle(Options(16, 8, 1000)).swept
    assert found.pressure is pressure
    assert log_path(of).exists() is not pressure


def test_secrets_37_recording_twice_and_recording_something_else() -> None:
    of = kit.ended(clock.now() - 8 * DAY, status="failed")
    assert records.record([_record(of)]) == ["inserted"]
    assert records.record([_record(of, disposition="already_absent", bytes_reclaimed=0)]) == ["existing"]
    row = ArtifactRetention.objects.get()
    assert (row.disposition, row.bytes_reclaimed) == ("deleted", 1)
    with pytest.raises(RetentionConflict):
        records.record([_record(of, log_artifact_id="local-" + "f" * 30)])


@pytest.mark.parametrize(
    "changes",
    [
        {"disposition": "moved"},
        {"bytes_reclaimed": -1},
        {"disposition": "already_absent", "bytes_reclaimed": 1},
        {"eligible_at": clock.from_ms(1)},
        {"recorded_at": clock.from_ms(2)},
    ],
)
def test_secrets_37_a_tombstone_keeps_its_rules(changes: dict[str, Any]) -> None:
    of = kit.ended(clock.now() - 8 * DAY, status="failed")
    with pytest.raises(DatabaseError), transaction.atomic():
        records.record([_record(of, **changes)])


def test_secrets_37_a_tombstone_never_changes_and_stays() -> None:
    of = kit.ended(clock.now() - 8 * DAY, status="failed")
    records.record([_record(of)])
    for statement in (
        "UPDATE artifact_retentions SET bytes_reclaimed = 5",
        "DELETE FROM artifact_retentions",
    ):
        with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)


def test_secrets_31_a_malformed_row_fails_the_whole_page() -> None:
    made = kit.many(2, clock.now() - 8 * DAY)
    StoredLog.objects.filter(pk=made[1].pk).update(log_artifact_id=f"local-{ids.uuid7().hex[:30]}")
    with pytest.raises(Exception, match="retention_page_invalid"):
        sweep.cycle(OPTIONS)
    assert kit.on_disk(made) == made
