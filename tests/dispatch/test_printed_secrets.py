"""What becomes of a run that printed a secret: on record with its end, in the API, beside its log (lessons, idea 6)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.artifacts import places
from apps.artifacts.facts import artifact_id
from apps.artifacts.retention import files
from apps.artifacts.services import MASKED_MOST, read_log
from apps.dispatch.launcher.client import Handle
from apps.runs import payloads
from apps.runs.models import Run, RunEvent
from apps.vault import services as vault
from tests.dispatch.sessions import Home, wait, wait_for
from tests.runs import kit

VALUE = "hunter2-hunter2"
OTHER = "correct horse battery"
TWICE = {"max_attempts": 3, "retry_on_failure": True}


@pytest.fixture
def secrets(home: Home) -> dict[str, str]:
    """What a task that is to print them says."""
    for name, value in (("api-token", VALUE), ("passphrase", OTHER)):
        vault.put(kit.grant("secret.manage"), name, value, mutation_id=f"m-{name}", expected_version=0)
    return {"A": "api-token", "B": "passphrase"}


def told(run: Run) -> list[Any]:
    events = RunEvent.objects.filter(run_id=run.pk, type="attempt.secrets_printed").order_by("sequence")
    return [(event.payload["attempt"], event.payload["secrets"]) for event in events]


def test_a_run_that_prints_a_secret_says_so(home: Home, secrets: dict[str, str]) -> None:
    run = kit.run_of(kit.task(shell='echo "<$B>"; echo "$B" | base64', secrets=secrets))
    home.session()
    ended = kit.fresh(run)
    assert ended.status == "succeeded"
    assert ended.printed == ["passphrase"]
    assert told(run) == [(1, ["passphrase"])]
    assert home.log_of(run).startswith(b"<***>\n***")
    kit.check_history(run)


def test_a_run_that_prints_none_says_nothing(home: Home, secrets: dict[str, str]) -> None:
    run = kit.run_of(kit.task(shell='echo "${#A}"', secrets=secrets))
    home.session()
    ended = kit.fresh(run)
    assert (ended.status, ended.printed, ended.secrets_printed) == ("succeeded", [], None)
    assert told(run) == []


def test_every_attempt_tells_its_own_and_the_run_all(home: Home, secrets: dict[str, str]) -> None:
    shell = '[ "$QINGLONG_ATTEMPT" = 1 ] && { echo "$A"; exit 1; }; echo "$B $A"'
    run = kit.run_of(kit.task(shell=shell, secrets=secrets, retry=TWICE))
    home.session()
    wait_for(run)
    assert kit.fresh(run).printed == ["api-token", "passphrase"]
    assert told(run) == [(1, ["api-token"]), (2, ["passphrase", "api-token"])]


def test_a_secret_in_the_output_value_is_masked_there(home: Home, secrets: dict[str, str]) -> None:
    shell = 'printf \'{"token": "%s", "n": 1}\' "$A" > "$QINGLONG_OUTPUT"'
    run = kit.run_of(kit.task(shell=shell, secrets=secrets))
    home.session()
    ended = kit.fresh(run)
    assert payloads.open_output(ended) == {"token": "***", "n": 1}
    assert ended.printed == ["api-token"]


def test_a_run_whose_shim_was_killed_tells_what_it_had_printed(home: Home, secrets: dict[str, str]) -> None:
    run = kit.run_of(kit.task(shell='echo "$A"; sleep 60', secrets=secrets))
    with home.session_beside():
        wait_for(run, "running")
        wait(lambda: home.log_of(run) == b"***\n", "the masked line")
        attempt = kit.attempt_of(run)
        assert attempt.executor_handle is not None
        shim = Handle.decode(attempt.executor_handle).pid
        scripts = [int(pid) for pid in Path(f"/proc/{shim}/task/{shim}/children").read_text().split()]
        os.kill(shim, signal.SIGKILL)
        for pid in scripts:
            os.kill(pid, signal.SIGKILL)
        wait_for(run, "lost")
    assert kit.fresh(run).printed == ["api-token"]
    assert told(run) == [(1, ["api-token"])]
    kit.check_history(run)


def test_a_session_that_adopts_the_run_finds_the_same(home: Home, secrets: dict[str, str]) -> None:
    gate = home.path / "gate"
    shell = (
        f'printf %s "$A" | head -c 7; while [ ! -e "{gate}" ]; do sleep 0.05; done; echo "${{A#???????}} $B"'
    )
    run = kit.run_of(kit.task(shell=shell, secrets=secrets))
    worker = home.worker()
    wait_for(run, "running")
    home.kill(worker)
    with home.session_beside():
        gate.touch()
        wait_for(run, "succeeded")
    assert home.log_of(run) == b"*** ***\n"
    assert kit.fresh(run).printed == ["api-token", "passphrase"]


def test_secrets_stay_out_of_the_database_and_the_home(home: Home, secrets: dict[str, str]) -> None:
    run = kit.run_of(
        kit.task(shell='echo "$A $B"; exit 3', secrets=secrets, before='echo "$A"', after='echo "$B"')
    )
    home.session()
    wait_for(run)
    for path in home.path.rglob("*"):
        if path.is_file():
            assert VALUE.encode() not in path.read_bytes(), path
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT * FROM "{table}"')
            assert VALUE not in repr(cursor.fetchall()), table


def test_places_are_given_with_the_range_they_stand_in(home: Home, secrets: dict[str, str]) -> None:
    run = kit.run_of(kit.task(shell='echo "*** $A"; echo "x$B***$A"', secrets=secrets))
    home.session()
    grant = kit.grant("artifact.read")
    whole = read_log(grant, run.pk)
    assert whole.content == b"*** ***\nx*********\n"
    assert whole.masked == (4, 9, 15)
    assert read_log(grant, run.pk, offset=5).masked == (9, 15)
    assert read_log(grant, run.pk, offset=0, length=11).masked == (4,)


def test_places_of_a_range_are_bounded(home: Home, secrets: dict[str, str]) -> None:
    run = kit.run_of(kit.task(shell="for n in $(seq 300); do echo $A; done", secrets=secrets))
    home.session()
    part = read_log(kit.grant("artifact.read"), run.pk)
    assert part.masked == tuple(range(0, 4 * MASKED_MOST, 4))


def test_runs_without_secrets_pay_no_statement(home: Home, secrets: dict[str, str]) -> None:
    counts = []
    for options in ({}, {"shell": 'echo "$A"', "secrets": secrets}):
        run = kit.run_of(kit.task(f"task-{len(counts)}", **options))
        with CaptureQueriesContext(connection) as queries:
            home.session()
        assert kit.fresh(run).status == "succeeded"
        counts.append(sum('"secrets_printed" = v.' in query["sql"] for query in queries))
    assert counts == [0, 1]


@pytest.mark.parametrize(
    "content",
    [b"", b"no line", b"[1]\n" + bytes(8), b"[]\n" + bytes(8), b"{}\n", b'["a"]\n' + bytes(7), b"\xff\n"],
)
def test_a_file_of_places_that_is_none_counts_as_nothing(tmp_path: Path, content: bytes) -> None:
    run = "0198c0de-0000-7000-8000-000000000001"
    artifact = artifact_id(run, "0198c0de-0000-7000-8000-000000000002")
    shard = tmp_path / artifact[6:8]
    shard.mkdir()
    path = shard / f".{artifact}.log.masked"
    assert places.read(str(tmp_path), artifact) is None
    path.write_bytes(content)
    found = places.read(str(tmp_path), artifact)
    assert found is None or found.found == ()
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert places.read(str(tmp_path), artifact) is None
    path.unlink()
    os.mkfifo(path)
    assert places.read(str(tmp_path), artifact) is None


def test_what_is_noted_of_a_log_goes_with_it(home: Home, secrets: dict[str, str]) -> None:
    run = kit.run_of(kit.task(shell='echo "$A"', secrets=secrets))
    home.session()
    artifact = kit.attempt_of(run).log_artifact_id
    assert artifact is not None
    assert [path for path in (home.path / "logs").rglob("*.masked") if artifact in path.name]
    files.retire(artifact)
    assert not [path for path in (home.path / "logs").rglob("*") if artifact in path.name]
