"""Starts `up` as a person does, in a home of its own, and looks at its processes from outside."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
# When something that comes by itself is taken as never coming; a busy machine stretches every wait.
PATIENCE_S = 60.0
PARTS = (
    "ql web", "ql web worker", "ql scheduler",
    "ql control", "ql control work", "ql control push", "ql control moni",
    "ql runs", "ql runs worker", "ql runs pusher", "ql runs monitor",
)  # fmt: skip


def environment(home: Path, **extra: str) -> dict[str, str]:
    """What a person's shell would have, without anything of the test run's own."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("QINGLONG_", "DJANGO_"))
    }
    return {**kept, "QINGLONG_HOME": str(home), "QINGLONG_TIME_ZONE": "UTC", **extra}


@contextlib.contextmanager
def database() -> Iterator[dict[str, str]]:
    """On PostgreSQL an empty database of its own, on SQLite nothing: the home brings it."""
    url = os.environ.get("DATABASE_URL")
    if not url:
        yield {}
        return
    import psycopg

    name = f"ql_e2e_{secrets.token_hex(4)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield {"DATABASE_URL": urlsplit(url)._replace(path=f"/{name}").geturl()}
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
    """The first truthy value of `condition`, or a failure that says what was waited for."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s for: {what}")
        time.sleep(0.05)
    return value


class Up:
    """One `up`; `stop()` always, whatever became of it."""

    def __init__(self, home: Path, *arguments: str, port: int | None = None, **extra: str) -> None:
        self.home = home
        self.port = port or free_port()
        # What a person types: the way through a proxy where there is one.
        self.address = extra.get("QINGLONG_BASE_URL") or f"http://127.0.0.1:{self.port}"
        folder = next(path for path in home.parents if path.is_dir())
        self.log = folder / f"{home.name}.{secrets.token_hex(3)}.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", "--port", str(self.port), *arguments],
                cwd=ROOT,
                env=environment(home, **extra),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_ready(self) -> Up:
        def ready() -> bool:
            assert self.process.poll() is None, self.output
            return self.status("/readyz") == 200 and set(self.parts()) == set(PARTS)

        try:
            eventually(ready, "up is ready", 2 * PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.parts()}\n{self.output[-4000:]}") from None
        return self

    def status(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def parts(self) -> dict[str, int]:
        """Name and pid of every living process of the tree's session, `up` itself and the launcher left out."""
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == self.process.pid:
                continue
            with contextlib.suppress(OSError):
                name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
                fields = rest.split()
                if fields[0] not in "ZX" and int(fields[3]) == self.process.pid:
                    found[name] = int(folder.name)
        return found

    def launcher(self) -> int | None:
        """The pid of this home's launcher, if one lives; its shims look like it in every other way."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.home / "node" / "launcher.lock").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if str(self.home / "node").encode() in command:
                return pid
        return None

    def terminate(self, seconds: float = 20) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid in self.parts().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if (pid := self.launcher()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
