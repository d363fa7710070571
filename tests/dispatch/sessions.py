"""Real sessions for tests: in this process, in a thread, or as processes that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import patch

from django.db import connection

from apps.artifacts import reader
from apps.dispatch import loop
from apps.dispatch.loop import Loop
from apps.dispatch.source import RunSource
from apps.runs.models import Run
from tests.dispatch.shim_kit import PATIENCE_S, Kit, alive, until
from tests.runs import kit

ROOT = Path(__file__).resolve().parents[2]
ENDED = ("succeeded", "failed", "cancelled", "timed_out", "lost")


class Home:
    """A node for one test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.node = path / "node"
        self.processes: list[subprocess.Popen[bytes]] = []

    def session(self, *, slots: int = 8, poll_s: float = 0.1) -> str:
        """One session in this thread, until it is idle."""
        with patch.object(loop, "POLL_S", poll_s):
            return Loop("runs", [RunSource()], slots=slots, idle_s=0.1).run()

    @contextmanager
    def session_beside(self, *, slots: int = 8) -> Iterator[Loop]:
        """A session in a thread of its own; drained at the end of the block."""
        drain = os.eventfd(0)
        session = Loop("runs", [RunSource()], slots=slots, idle_s=None, max_age_s=None, drain=drain)
        failures: list[BaseException] = []

        def work() -> None:
            try:
                session.run()
            except BaseException as error:
                failures.append(error)
            finally:
                connection.close()

        thread = Thread(target=work)
        thread.start()
        try:
            yield session
        finally:
            os.eventfd_write(drain, 1)
            thread.join(PATIENCE_S)
            os.close(drain)
            assert not thread.is_alive() and not failures, failures

    def worker(self, **environment: str) -> subprocess.Popen[bytes]:
        """`manage.py worker` on this node and the test's database."""
        env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("QINGLONG_")},
            "DJANGO_SETTINGS_MODULE": "tests.session_settings",
            "TEST_DATABASE": str(connection.settings_dict["NAME"]),
            "QINGLONG_HOME": str(self.path),
            **environment,
        }
        log = (self.path / "worker.log").open("ab")
        process = subprocess.Popen(
            [sys.executable, "manage.py", "worker"], cwd=ROOT, env=env, stdout=log, stderr=log
        )
        log.close()
        self.processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait(30)

    def finish(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                self.kill(process)
        launched = Kit(self.path)
        launched.node = self.node
        launched.finish()

    def log_of(self, run: Run) -> bytes:
        artifact = kit.attempt_of(run).log_artifact_id
        assert artifact is not None
        found = reader.read(artifact, 0, 200_000)
        return found.content if isinstance(found, reader.Available) else b""


def wait_for(run: Run, *statuses: str) -> Run:
    """The run, once it is in one of the states."""
    wanted = statuses or ENDED

    def look() -> Run | None:
        found = kit.fresh(run)
        if found.status in wanted:
            return found
        assert found.status not in ENDED, (found.status, found.error_code, found.error_summary)
        return None

    found: Run = until(look, f"run to be {' or '.join(wanted)}")
    return found


def wait(check: Callable[[], Any], what: str) -> Any:
    return until(check, what)


__all__ = ["Home", "alive", "signal", "wait", "wait_for"]
