"""Files that scripts left, on record with the end of their attempt."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from django.conf import settings
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.artifacts import collected, tallies
from apps.artifacts.models import Artifact
from apps.core import ids
from apps.dispatch.launcher.collecting import WORDS
from apps.panel import advice
from apps.runs.models import Run, RunEvent
from tests.dispatch.sessions import Home
from tests.runs import kit

LEAVE = "cd $QINGLONG_ARTIFACTS; mkdir out; echo 1 > out/a.csv; printf '{}' > b.json; ln -s b.json c"


def files(run: Run) -> list[tuple[Any, ...]]:
    rows = Artifact.objects.filter(run=run).order_by("attempt__attempt", "position")
    return list(rows.values_list("attempt__attempt", "position", "name", "content_type", "size"))


def told(run: Run) -> list[Any]:
    events = RunEvent.objects.filter(run=run, type__startswith="attempt.").order_by("sequence")
    return [event.payload["files"] for event in events if event.payload and "files" in event.payload]


def test_rows_and_history(home: Home) -> None:
    run = kit.run_of(kit.task(shell=LEAVE))
    home.session()
    assert kit.fresh(run).status == "succeeded"
    assert files(run) == [(1, 1, "b.json", "application/json", 2), (1, 2, "out/a.csv", "text/csv", 2)]
    assert told(run) == [{"kept": 2, "bytes": 4, "left_out": {"symlink": 1}}]
    row = Artifact.objects.get(run=run, position=1)
    assert row.sha256 == hashlib.sha256(b"{}").hexdigest()
    assert b"2 links" not in home.log_of(run) and b"1 links (symlink)" in home.log_of(run)


def test_each_attempt_keeps_its_own(home: Home) -> None:
    task = kit.task(
        shell='cd $QINGLONG_ARTIFACTS; echo $QINGLONG_ATTEMPT > n; test "$QINGLONG_ATTEMPT" = 2',
        retry={"max_attempts": 2, "retry_on_failure": True},
    )
    run = kit.run_of(task)
    for _again in range(3):
        home.session()
    assert kit.fresh(run).status == "succeeded"
    assert [(attempt, name) for attempt, _position, name, _type, _size in files(run)] == [(1, "n"), (2, "n")]


def test_a_manifest_that_cannot_be_read_costs_the_files_only(home: Home) -> None:
    """Here a script writes into what is the panel's, as it can without a user of its own."""
    root = f"{home.path}/logs"
    run = kit.run_of(
        kit.task(
            shell=f"{LEAVE}; (setsid sh -c 'until test -e {root}/*/*.files/manifest.json; do sleep 0.001; done;"
            f' echo "{{}}" > $(echo {root}/*/*.files/manifest.json)\' &) ; true',
            kill_grace_ms=0,
        )
    )
    home.session()
    found = kit.fresh(run)
    assert found.status == "succeeded"
    # Whoever was faster: either all files or a word that they are not there.
    assert len(files(run)) == told(run)[0]["kept"]


@pytest.mark.parametrize(
    "forged", ['{"files":{"kept":3,"left_out":{}}}', '{"files":{"kept":"x"}}', '{"files":[]}', "[]"]
)
def test_a_forged_fact_makes_no_files(home: Home, forged: str) -> None:
    run = kit.run_of(kit.task(shell=f"echo '{forged}' > $TMPDIR/stop.json"))
    home.session()
    assert kit.fresh(run).status == "succeeded"
    assert files(run) == []
    assert told(run) in ([], [{"kept": 0, "bytes": 0, "left_out": {"unreadable": 3}}])


def test_runs_that_leave_nothing_pay_nothing(home: Home) -> None:
    """Not one statement more, whatever their neighbours of the same pass leave."""
    kit.run_of(kit.task(shell="true"))
    with CaptureQueriesContext(
        connection,
    ) as seen:
        home.session()
    assert not [query for query in seen.captured_queries if "run_artifacts" in query["sql"]]


def test_rows_keep_the_rules(home: Home) -> None:
    run = kit.run_of(kit.task(shell=LEAVE))
    home.session()
    attempt = kit.attempt_of(run)
    right = {
        "run_id": run.pk, "attempt_id": attempt.pk, "position": 3, "name": "z", "content_type": "text/plain", "size": 0,
        "sha256": "0" * 64,
    }  # fmt: skip
    for wrong in (
        {"position": 1}, {"position": 0}, {"position": 101}, {"name": "b.json"}, {"name": ""}, {"size": -1},
        {"sha256": "0" * 63},
    ):  # fmt: skip
        with pytest.raises(IntegrityError), transaction.atomic():
            Artifact.objects.create(**{**right, **wrong})
    with pytest.raises(IntegrityError), transaction.atomic():
        Artifact.objects.create(**{**right, "attempt_id": ids.uuid7()})
        connection.check_constraints()
    with pytest.raises(DatabaseError, match="immutable"), transaction.atomic():
        Artifact.objects.filter(run=run).update(size=1)


def test_codes_have_words() -> None:
    assert tuple(WORDS) == collected.LEFT_OUT
    assert settings.LOG_ROOT


def test_a_log_that_was_cut_is_told_and_counted(home: Home) -> None:
    run = kit.run_of(kit.task(shell="head -c 70000 /dev/zero", log_quota_bytes=65_536))
    kit.run_of(kit.task("short", shell="true"))
    home.session()
    assert kit.fresh(run).status == "succeeded"
    [event] = [one for one in RunEvent.objects.filter(run=run) if "log" in one.payload]
    assert (event.type, event.payload["log"]) == ("attempt.succeeded", {"cut": True})
    assert tallies.today() == {"quota_hit": 1.0, "incomplete": 0.0, "missing_read": 0.0}


def test_without_room_for_its_log_a_run_fails_with_a_code(home: Home, settings: Any) -> None:
    settings.LOG_MINIMUM_FREE_BYTES = 1_099_511_627_776
    run = kit.run_of(kit.task(shell=f"touch {home.path}/ran"))
    home.session()
    found = kit.fresh(run)
    assert (found.status, found.error_code, found.error_summary) == (
        "failed", "EXECUTOR_START_FAILED", "local_artifact_capacity_unavailable",
    )  # fmt: skip
    assert not (home.path / "ran").exists()
    assert list((home.path / "logs").iterdir()) == []
    assert "too little room left" in advice.for_run(found, None, "", timeout_ms=None)
