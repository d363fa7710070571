"""`up` as a tree of real processes: refusals, restarts, drains, and what is left when it is killed."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from apps.core import runtime
from tests.e2e.furnished import furnish
from tests.e2e.person import Api, set_up
from tests.e2e.up_kit import Up, database, eventually

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def db() -> Iterator[dict[str, str]]:
    with database() as extra:
        yield extra


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, db: dict[str, str]) -> Iterator[Up]:
    """One tree for the tests that leave it running."""
    up = Up(tmp_path_factory.mktemp("up") / "home", **db).wait_ready()
    yield up
    up.stop()


def execute(home: Path, own: dict[str, str], sql: str) -> None:
    """On the database of a home that nobody uses."""
    if url := own.get("DATABASE_URL"):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql)
        return
    file = sqlite3.connect(home / "db.sqlite3", isolation_level=None)
    file.execute(sql)
    file.close()


def refused(up: Up, code: str, status: int = 78) -> str:
    try:
        assert up.process.wait(30) == status, up.output
    finally:
        up.stop()
    lines = up.output.strip().splitlines()
    assert lines[-1].startswith("qinglong: ") and lines[-1].endswith(f"[{code}]"), up.output
    assert "Traceback" not in up.output
    return lines[-1]


def test_a_port_in_use(home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        up = Up(home, port=other.getsockname()[1])
        refused(up, "port_in_use")
    assert not (home / "db.sqlite3").exists() and not (home / "node").exists()


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(Up(tmp_path / "file" / "home"), "home_not_writable")


def test_logs_that_cannot_be_written(tmp_path: Path, home: Path) -> None:
    (tmp_path / "file").touch()
    refused(Up(home, QINGLONG_LOGS=str(tmp_path / "file" / "logs")), "logs_not_writable")
    assert not (home / "db.sqlite3").exists()


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("mysql://ql@127.0.0.1/ql", "database_url_invalid"),
        ("postgresql://ql:hunter2@127.0.0.1:1/ql", "database_unreachable"),
    ],
)
def test_a_broken_database_url(home: Path, url: str, code: str) -> None:
    up = Up(home, DATABASE_URL=url)
    refused(up, code)
    assert "hunter2" not in up.output
    assert not (home / "keyring.json").exists()


def test_a_setting_that_does_not_exist(home: Path) -> None:
    refused(Up(home, QINGLONG_HOMEE="x"), "unknown_setting")
    assert not home.exists()


def test_a_database_of_another_version(home: Path) -> None:
    """One that a later version was at work on, and one whose tables an earlier one made: nothing is started."""
    with database() as own:
        furnish(home, **own)
        later = (
            "INSERT INTO django_migrations (app, name, applied) VALUES ('runs', '0099_later', '2030-01-01')"
        )
        execute(home, own, later)
        assert "runs.0099_later" in refused(Up(home, **own), "schema_newer")
        execute(home, own, "DELETE FROM django_migrations WHERE name = '0099_later'")
        execute(home, own, "ALTER TABLE workers RENAME COLUMN roles TO tasks")
        assert "workers.roles" in refused(Up(home, **own), "schema_mismatch")


def test_it_says_where_it_is_and_how_to_set_it_up(shared: Up) -> None:
    assert f"http://127.0.0.1:{shared.port}/\n" in shared.output
    links = [line for line in shared.output.splitlines() if "/setup?token=" in line]
    assert len(links) == 1
    assert (shared.home / "run" / "setup").read_text().strip() == links[0].partition("token=")[2]


def test_it_is_set_up_by_commands_while_it_runs(shared: Up, db: dict[str, str]) -> None:
    token = set_up(shared.home, **db)
    assert Api(shared.port, token).ok("GET", "/me")["subject"]
    assert not (shared.home / "run" / "setup").exists()


def test_what_lies_in_the_home_is_private(shared: Up) -> None:
    for path in [shared.home, *shared.home.rglob("*")]:
        assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0 or path.is_socket(), path


def test_everything_but_the_launcher_is_in_one_session_and_group(shared: Up) -> None:
    pids = shared.parts().values()
    assert {os.getpgid(pid) for pid in pids} == {shared.process.pid}
    launcher = shared.launcher()
    assert launcher is not None and os.getsid(launcher) == launcher


def test_the_launcher_knows_nothing_of_us(shared: Up) -> None:
    assert Path(f"/proc/{shared.launcher()}/environ").read_bytes().strip(b"\0") in (b"", b"LC_CTYPE=C.UTF-8")


def test_a_second_up_on_the_same_home(shared: Up, db: dict[str, str]) -> None:
    begun = time.monotonic()
    refused(Up(shared.home, **db), "already_running")
    assert time.monotonic() - begun < 10
    assert shared.status("/livez") == 200


@pytest.mark.parametrize(
    "name",
    [
        "ql scheduler", "ql web worker", "ql web",
        "ql control push", "ql control moni", "ql control work", "ql control",
        "ql runs pusher", "ql runs worker", "ql runs",
    ],
)  # fmt: skip
def test_a_killed_part_comes_back(shared: Up, name: str) -> None:
    shared.wait_ready()
    before = shared.parts()
    os.kill(before[name], signal.SIGKILL)
    eventually(lambda: shared.parts().get(name, before[name]) != before[name], f"{name} again")
    shared.wait_ready()


def test_a_killed_launcher_comes_back(shared: Up) -> None:
    before = shared.launcher()
    assert before is not None
    os.kill(before, signal.SIGKILL)
    eventually(lambda: shared.launcher() not in (None, before), "launcher again")


@pytest.mark.parametrize("name", ["ql control work", "ql control moni"])
def test_a_frozen_cluster_still_hears(shared: Up, name: str) -> None:
    """Who waits holds the lock of a queue: after its death nothing may wait for that lock."""
    shared.wait_ready()
    before = shared.parts()
    os.kill(before[name], signal.SIGKILL)
    eventually(lambda: shared.parts().get("ql control", 0) not in (0, before["ql control"]), "a new cluster")
    shared.wait_ready()


def test_sigterm_drains(home: Path, db: dict[str, str]) -> None:
    with database() as own:
        furnish(home, **own)
        up = Up(home, **own).wait_ready()
        try:
            begun = time.monotonic()
            assert up.terminate() == 0, up.output
            assert time.monotonic() - begun < 8
            assert up.parts() == {} and up.launcher() is None
            receipt = runtime.read(home / "node")
            assert receipt is not None
            assert (receipt.state, receipt.process.pid) == ("stopped", up.process.pid)
            assert "ERROR" not in up.output and "CRITICAL" not in up.output, up.output
            again = Up(home, port=up.port, **own).wait_ready()
            assert again.terminate() == 0
        finally:
            up.stop()


def test_a_signal_to_the_whole_group_drains_too(home: Path) -> None:
    with database() as own:
        furnish(home, **own)
        up = Up(home, **own).wait_ready()
        try:
            os.killpg(up.process.pid, signal.SIGTERM)
            assert up.process.wait(20) == 0, up.output
            assert up.parts() == {}
        finally:
            up.stop()


def test_a_signal_to_the_whole_group_finds_a_session_with_a_ring_waiting_behind_it(home: Path) -> None:
    with database() as own:
        token = furnish(home, owned=True, **own)
        up = Up(home, **own).wait_ready()
        try:
            api = Api(up.port, token)
            task = api.make(shell="true", concurrency="parallel", max_parallel=20)
            for _ in range(20):
                api.until(api.start(task))
            os.killpg(up.process.pid, signal.SIGTERM)
            assert up.process.wait(20) == 0, up.output
            assert "not everything ended" not in up.output, up.output
            assert up.parts() == {}
        finally:
            up.stop()


def test_a_second_sigterm_stops_what_does_not_end(home: Path) -> None:
    with database() as own:
        furnish(home, **own)
        up = Up(home, **own).wait_ready()
        try:
            os.kill(up.parts()["ql scheduler"], signal.SIGSTOP)
            up.process.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                up.process.wait(3)
            assert up.terminate(5) == 1, up.output
            assert up.parts() == {} and up.launcher() is None
        finally:
            up.stop()


def test_a_killed_up_leaves_only_the_launcher_and_the_next_one_starts(home: Path) -> None:
    with database() as own:
        furnish(home, **own)
        up = Up(home, **own).wait_ready()
        again = None
        try:
            launcher = up.launcher()
            # A cluster that waits for this one cannot end by itself.
            frozen = up.parts()["ql control moni"]
            os.kill(frozen, signal.SIGSTOP)
            up.process.kill()
            up.process.wait()
            eventually(lambda: set(up.parts()) == {"ql control moni"}, "no orphan but what is frozen")
            os.kill(frozen, signal.SIGCONT)
            # At once, as a service manager would: it waits for those that are still ending.
            again = Up(home, **own)
            eventually(lambda: up.parts() == {}, "no orphans")
            assert launcher is not None
            again.wait_ready()
            assert again.launcher() not in (None, launcher)
            assert again.terminate() == 0, again.output
        finally:
            up.stop()
            if again is not None:
                again.stop()
