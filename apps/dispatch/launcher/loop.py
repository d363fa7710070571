"""The shim's ears: control socket, output pipe, ends of children, signals and time in one poll."""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress

from apps.dispatch.launcher.control import GO, Channel
from apps.dispatch.launcher.output import Pump
from apps.dispatch.launcher.signals import IGNORE, SIGCHLD, SIGINT, SIGTERM, set_handler, set_wakeup

# A machine that sleeps stops the poll's own clock: look at the real one at least this often.
_POLL_MS_MAX = 60_000


def wall_ms() -> int:
    """Now in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def boot_s() -> float:
    """Seconds since boot, time asleep included; it never steps back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _wake(*_: object) -> None:
    """That there is a handler is enough: the number arrives in the wake-up pipe."""


class Loop:
    """Waits for whatever comes next and keeps what it learned."""

    def __init__(self, channel: Channel) -> None:
        """Install handlers, and have SIGINT ignored; from here on SIGTERM is a stop request."""
        self._channel = channel
        self._pump: Pump | None = None
        self._poll = select.poll()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        set_wakeup(self._wake_write, warn_on_full_buffer=False)
        set_handler(SIGINT, IGNORE)
        set_handler(SIGCHLD, _wake)
        set_handler(SIGTERM, self._terminated)
        self._poll.register(self._wake_read, select.POLLIN)
        self._poll.register(channel.descriptor, select.POLLIN)
        self.stop_cause: str | None = None
        self.stop_requested_at_ms = 0
        self.go = False
        self.childless = True
        self.statuses: dict[int, int] = {}

    def watch(self, pump: Pump) -> None:
        self._pump = pump
        self._poll.register(pump.read_end, select.POLLIN)

    def unwatch(self, pump: Pump) -> None:
        """Before the pump is closed."""
        self._pump = None
        self._poll.unregister(pump.read_end)

    def next_spec(self) -> bytes | None:
        """Forget the last run and wait for another one's specification; None when this shim's life is over."""
        self.go = False
        self.statuses.clear()
        while self._channel.open and self.stop_cause is None:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._wake_read:
                    os.read(self._wake_read, 65_536)
                elif (spec := self._channel.take_next_spec()) is not None:
                    self.go = spec.startswith(GO)
                    return spec.removeprefix(GO)
        return None

    def expect(self, pid: int) -> int:
        """Note a child that was started; its wait status will be in `statuses`."""
        self.childless = False
        return pid

    def turn(self, until_s: float | None = None) -> None:
        """Wait for one round of news, at most until that point of `boot_s`."""
        timeout = None
        if until_s is not None:
            timeout = min(_POLL_MS_MAX, max(0, int((until_s - boot_s()) * 1000) + 1))
        for descriptor, _ in self._poll.poll(timeout):
            if descriptor == self._wake_read:
                with suppress(BlockingIOError):
                    os.read(self._wake_read, 65_536)
                self.reap()
            elif self._pump is not None and descriptor == self._pump.read_end:
                self._pump.copy()
            else:
                self._listen()

    def reap(self) -> None:
        """Collect every ended child, adopted orphans too."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self.statuses[pid] = status
        except ChildProcessError:
            self.childless = True

    def _listen(self) -> None:
        # Unregistered before it closes: the number may belong to another file a moment later.
        descriptor = self._channel.descriptor
        for message in self._channel.receive():
            if message == GO:
                self.go = True
            elif message == b"stop" or message.startswith(b"stop:"):
                self._stop("deadline" if message == b"stop:deadline" else "stop")
        if not self._channel.open:
            self._poll.unregister(descriptor)

    def _terminated(self, *_: object) -> None:
        self._stop("stop")

    def _stop(self, cause: str) -> None:
        if self.stop_cause is None:
            self.stop_cause = cause
            self.stop_requested_at_ms = wall_ms()
