"""Sessions that die at a named step, for tests only: the product knows nothing of this.

A helper process has everything loaded and forks a session for each request, in which the named step is wrapped so
that it kills the process. Requests and answers are JSON lines.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
IDLE_S = 0.1


class Sessions:
    """The helper, as a test sees it."""

    def __init__(self, database: str, home: Path) -> None:
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("QINGLONG_")},
            "DJANGO_SETTINGS_MODULE": "tests.session_settings",
            "TEST_DATABASE": database,
            "QINGLONG_HOME": str(home),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.faults"],
            cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, home: Path, fault: str = "") -> str:
        """One session until it is idle or dead: why it ended, or "killed"."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"home": str(home), "fault": fault}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return "killed" if answer == -signal.SIGKILL else {0: "idle"}.get(answer, f"failed with {answer}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def die() -> None:
    """As `kill -9` would have it."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(fault: str) -> None:
    """Has this process die at the step; unknown names are an error."""
    moment, _, step = fault.partition(" ")
    if moment not in ("before", "after"):
        raise ValueError(fault)
    if step.startswith("commit of "):
        _arm_pass(moment, step.removeprefix("commit of "))
        return
    owner, name = _steps()[step]
    setattr(owner, name, _around(getattr(owner, name), moment))


def _around(function: Callable[..., Any], moment: str) -> Callable[..., Any]:
    def deadly(*args: Any, **options: Any) -> Any:
        if moment == "before":
            die()
        try:
            return function(*args, **options)
        finally:
            die()

    return deadly


def _steps() -> dict[str, tuple[Any, str]]:
    """Where each step that touches files, shims or rows outside a pass is taken."""
    from apps.dispatch import cleanup, preparing
    from apps.dispatch.launcher.client import Launcher, Shim
    from apps.dispatch.receipts import ReceiptStore
    from apps.dispatch.services import adoption, receipts
    from apps.dispatch.source import RunSource

    return {
        "making the folder": (preparing, "make_attempt_folder"),
        "asking for a shim": (Launcher, "launch"),
        "handing the run to a warm shim": (Shim, "again"),
        "saying go": (Shim, "go"),
        "reading the receipt": (ReceiptStore, "read"),
        "marking a receipt as put aside": (receipts, "mark_quarantined"),
        "putting a receipt aside": (ReceiptStore, "quarantine"),
        "purging a receipt": (ReceiptStore, "purge_quarantine"),
        "removing what is empty": (cleanup.Cleaner, "_remove_empty"),
        "removing the folder": (cleanup, "remove_folder"),
        "removing the receipt": (ReceiptStore, "remove_all"),
        "resolving the journal": (receipts, "resolve"),
        "taking the leases over": (adoption, "_take_over"),
        "the commit of the adoption": (adoption, "adopt"),
        "following what was adopted": (RunSource, "_follow"),
    }


def _arm_pass(moment: str, kind: str) -> None:
    """Passes are told apart by what they hold; `before` is with everything written and nothing committed."""
    from apps.dispatch.services import passes

    write, store = passes._Work.write, passes._store

    def holds(news: Any, done: Any) -> bool:
        return bool(
            {
                "a claim": done.claimed,
                "a start": done.go,
                "a beginning": done.running,
                "an end": done.settled,
                "a resolved row": news.consumed,
            }[kind]
        )

    def deadly_write(self: Any) -> None:
        write(self)
        if holds(self.news, self.done):
            die()

    def deadly_store(fence: Any, news: Any, ttl_ms: int) -> Any:
        done = store(fence, news, ttl_ms)
        if holds(news, done):
            die()
        return done

    if moment == "before":
        passes._Work.write = deadly_write  # type: ignore[method-assign]
    else:
        passes._store = deadly_store  # type: ignore[assignment]


def _session(home: Path, fault: str) -> None:
    """In the forked child."""
    from django.conf import settings

    from apps.dispatch import loop
    from apps.dispatch.source import RunSource

    settings.HOME = home
    settings.NODE_DIR = home / "node"
    settings.RUN_DIR = home / "run"
    settings.LOG_ROOT = home / "logs"
    settings.KEYRING_PATH = home / "keyring.json"
    loop.POLL_S = 0.05  # type: ignore[misc]
    if fault:
        arm(fault)
    loop.Loop("runs", [RunSource()], slots=4, idle_s=IDLE_S).run()


def main() -> None:
    import django

    django.setup()
    import apps.dispatch.source  # noqa: F401  - loaded once, for all that are forked

    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.dup2(os.open(request["home"] + "/session.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
                _session(Path(request["home"]), request["fault"])
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
