"""The supervised tree: forks its parts from one loaded parent, restarts what ends, and drains when told.

The parent holds no connection and no thread, so that what it loaded stays shared with every part. Signals go
to the main process of a part only, never to the group (dispatch-notes.md, "django-q2, tried").
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from apps.core import logs
from apps.dispatch.supervisor import process

BACKOFF_MIN_S = 0.5
BACKOFF_MAX_S = 30.0
SETTLED_S = 60.0
DRAIN_S = 30.0
# How long a part told to end gets before its processes are killed: one that stands still will not use it.
END_S = 10.0
REPLACE_S = 1.5
# A watched part that says nothing for so long is frozen; it speaks every two seconds.
SILENT_S = 12.0
BEAT = "."

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)

logger = logging.getLogger("qinglong.up")


class Stage(Enum):
    SERVING = "serving"
    DRAINING = "draining"
    STOPPING = "stopping"


@dataclass
class Part:
    """One main process. `run` is called in it and returns its exit code.

    `apart` marks the launcher: it leaves our session, outlives us when we are killed, and is ended last. One that
    is `watched` says BEAT through the pipe of requests, and is started anew when it no longer does.
    """

    name: str
    run: Callable[[], int]
    apart: bool = False
    watched: bool = False
    heard_at: float = 0.0
    pid: int = 0
    started_at: float = 0.0
    start_at: float = 0.0
    backoff_s: float = field(default=BACKOFF_MIN_S)
    kill_at: float | None = None


class Tree:
    """Starts its parts in the given order and keeps them running until SIGTERM or SIGINT."""

    def __init__(
        self,
        parts: list[Part],
        requests: int | None = None,
        on_drain: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_drain` is called once, when it begins to end."""
        self._parts = parts
        self._on_drain: Callable[[], None] | None = on_drain
        self._requests = requests
        self._stage = Stage.SERVING
        self._drain_until = 0.0
        self._wake, self._woken_by = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def serve(self) -> int:
        """Returns 0 after a drain in which every part ended by itself, 1 when some had to be killed."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(self._woken_by, warn_on_full_buffer=False)
        while self._living() or self._stage is Stage.SERVING:
            self._start_due()
            self._wait()
            self._collect()
            self._replace_silent()
            self._kill_due()
        return 0 if self._stage is Stage.DRAINING else 1

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGCHLD:
            return
        if self._stage is Stage.SERVING:
            self._stage = Stage.DRAINING
            self._drain_until = time.monotonic() + DRAIN_S
            for part in self._living():
                if not part.apart:
                    process.kill(part.pid, signal.SIGTERM)
        else:
            self._stage = Stage.STOPPING

    def _start_due(self) -> None:
        if self._stage is not Stage.SERVING:
            if self._on_drain is not None:
                self._on_drain()
                self._on_drain = None
            self._finish()
            return
        now = time.monotonic()
        for part in self._parts:
            if not part.pid and part.start_at <= now:
                self._fork(part)

    def _finish(self) -> None:
        """While draining: the launcher goes when everything else is gone, and everything when time is up."""
        living = self._living()
        if self._stage is Stage.DRAINING and time.monotonic() >= self._drain_until:
            logger.warning("not everything ended within %d s", DRAIN_S)
            self._stage = Stage.STOPPING
        if self._stage is Stage.STOPPING:
            self._kill([part for part in living if not part.apart])
        if all(part.apart for part in living):
            for part in living:
                self._end(part, END_S)

    def _fork(self, part: Part) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        # A signal between the fork and the child's own handlers would be taken for ours.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        pid = os.fork()
        if pid == 0:
            self._become(part, parent)
        part.pid, part.started_at = pid, time.monotonic()
        part.heard_at = part.started_at
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _become(self, part: Part, parent: int) -> None:
        """In the child; never returns."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            for descriptor in (self._wake, self._woken_by):
                os.close(descriptor)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            if part.apart:
                os.setsid()
            else:
                process.end_with_parent(parent)
            process.name(f"ql {part.name}")
            logs.speak_as(part.name)
            gc.enable()
            code = part.run()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BaseException as error:
            logger.error("%s ended with %s", part.name, type(error).__name__, exc_info=True)
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _wait(self) -> None:
        now = time.monotonic()
        times = [part.start_at for part in self._parts if not part.pid and self._stage is Stage.SERVING]
        times += [part.kill_at for part in self._parts if part.kill_at is not None]
        times += [part.heard_at + SILENT_S for part in self._watched()]
        if self._stage is Stage.DRAINING:
            times.append(self._drain_until)
        elif self._stage is Stage.STOPPING:
            times.append(now + 0.2)
        # Nothing due and nobody ended: there is nothing to look at.
        limit = None if not times else max(min(times) - now, 0.01)
        sources = [self._wake] if self._requests is None else [self._wake, self._requests]
        ready = select.select(sources, [], [], limit)[0]
        if self._wake in ready:
            os.read(self._wake, 4096)
        if self._requests in ready and self._requests is not None:
            words = os.read(self._requests, 4096).decode("ascii", "replace").split()
            if BEAT in words:
                for part in self._watched():
                    part.heard_at = time.monotonic()
            self._replace([part for part in self._living() if part.name in words])

    def _watched(self) -> list[Part]:
        """The parts whose silence means something."""
        if self._stage is not Stage.SERVING:
            return []
        return [part for part in self._living() if part.watched and part.kill_at is None]

    def _replace_silent(self) -> None:
        silent_since = time.monotonic() - SILENT_S
        self._replace([part for part in self._watched() if part.heard_at <= silent_since])

    def _replace(self, parts: list[Part]) -> None:
        """Ends parts, so that they start anew."""
        for part in parts:
            if part.kill_at is None:
                logger.error("%s is started anew", part.name)
                self._end(part, REPLACE_S)

    def _end(self, part: Part, grace_s: float) -> None:
        if part.kill_at is None:
            part.kill_at = time.monotonic() + grace_s
            process.kill(part.pid, signal.SIGTERM)

    def _collect(self) -> None:
        with contextlib.suppress(ChildProcessError):
            # All of them: as the first process of a container we inherit orphans that are nobody's part.
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                for part in self._living():
                    if part.pid == ended[0]:
                        self._ended(part, os.waitstatus_to_exitcode(ended[1]))

    def _ended(self, part: Part, code: int) -> None:
        now = time.monotonic()
        part.pid, part.kill_at = 0, None
        if self._stage is not Stage.SERVING:
            return
        if now - part.started_at >= SETTLED_S:
            part.backoff_s = BACKOFF_MIN_S
        part.start_at = now + part.backoff_s
        # Code 0 is no better than another: nobody asked this part to end.
        logger.error("%s ended with %d; next start in %.1f s", part.name, code, part.backoff_s)
        part.backoff_s = min(part.backoff_s * 2, BACKOFF_MAX_S)

    def _kill_due(self) -> None:
        now = time.monotonic()
        self._kill([part for part in self._living() if part.kill_at is not None and part.kill_at <= now])

    def _kill(self, parts: list[Part]) -> None:
        """A part and all below it, but of the launcher only itself: below it are the shims of running scripts."""
        if not parts:
            return  # to look for what is below means to read about every process of the machine
        below = process.descendants({part.pid for part in parts if not part.apart})
        for pid in [*(part.pid for part in parts), *below]:
            process.kill(pid, signal.SIGKILL)

    def _living(self) -> list[Part]:
        return [part for part in self._parts if part.pid]
