"""The log of one attempt: what the script wrote but for its secrets, up to the quota (secrets-and-artifacts §5.3).

The script is never made to wait for the log and never sees it fail: what cannot be kept is counted and
dropped. The quota is exact to the byte, and counts what is written, marks included.
"""
# Why not pathlib: flags and modes that pathlib does not offer; the shim also stays small without it.
# ruff: noqa: PTH108

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from contextlib import suppress
from functools import cache

from apps.artifacts import places
from apps.artifacts.facts import LogPaths, ensure_private_directory, log_paths
from apps.artifacts.places import MARK
from apps.dispatch.launcher.files import PrepareError
from apps.dispatch.launcher.masker import Masker, Piece
from apps.dispatch.launcher.spec import LaunchSpec

READ_BYTES = 256 * 1024
# Reads in one turn before signals and timers are looked at again: 4 MiB, a few milliseconds.
READS_PER_TURN = 16


class LogSink:
    """Appends to the attempt's log file within its quota and counts what came."""

    def __init__(self, spec: LaunchSpec) -> None:
        """Open or continue the log. PrepareError for an unsafe or over-full file, OSError otherwise."""
        log = spec.log
        self.paths: LogPaths = log_paths(log.root, log.artifact_id)
        ensure_private_directory(log.root)
        ensure_private_directory(self.paths.shard)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor = os.open(self.paths.log, flags, 0o600)
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(self._descriptor)
            raise PrepareError("log_unsafe", "the log is no regular file")
        if found.st_size > log.max_bytes:
            os.close(self._descriptor)
            raise PrepareError("log_quota_exceeded", "the log is over its quota already")
        self._masker: Masker | None = None
        if spec.mask:
            self._masker = Masker(spec.mask, spec.engine)
            self._mark_at = 0
            self._notebook = places.Notebook(log.root, log.artifact_id, self._masker.names)
        self._max_bytes = log.max_bytes
        self._room = log.max_bytes - found.st_size
        self._line_open = False
        self.bytes_seen = 0
        self.bytes_written = 0
        self.quota_reached = False
        self.incomplete = False
        self._blind = False

    def feed(self, chunk: memoryview) -> None:
        """Take output of the script; never raises and never blocks on a full disk."""
        self.bytes_seen += len(chunk)
        self._line_open = chunk[-1] != 10
        if self._blind:
            return
        if self._masker is None or not self._room:
            self._keep(chunk)
            return
        try:
            self._let_out(self._masker.feed(chunk))
        except Exception:
            self._go_blind()

    def _go_blind(self) -> None:
        """What cannot be looked at is not kept; the script goes on, and its end is told all the same."""
        self._blind = self.incomplete = True
        self._keep(memoryview(b"\nqinglong: masking failed; nothing more is kept of this log\n"))

    def say(self, text: str) -> None:
        """Add a line of our own, on a line of its own."""
        line = f"qinglong: {text}\n".encode("utf-8", "backslashreplace")
        self.feed(memoryview(b"\n" + line if self._line_open else line))

    def say_what_shows(self) -> None:
        """Names the secrets that are too short or too plain to be masked, where there are any."""
        if self._masker is not None and self._masker.refused:
            names = ", ".join(self._masker.refused)
            self.say(
                f"too short or too plain to be masked, and so readable here where it is printed: {names}"
            )

    def masked(self, data: bytes) -> bytes:
        """Something else that the script left, with its secrets taken out."""
        if self._masker is None:
            return data
        text, numbers = self._masker.whole(data)
        self._notebook.note([(places.IN_OUTPUT, number) for number in numbers])
        return text

    def _let_out(self, pieces: list[Piece]) -> None:
        parts: list[memoryview | bytes] = []
        noted = []
        at = self._max_bytes - self._room
        for piece in pieces:
            if isinstance(piece, memoryview):
                parts.append(piece)
                at += len(piece)
                continue
            new, number = piece
            if new:
                self._mark_at = at
                parts.append(MARK)
                at += len(MARK)
            if self._mark_at < self._max_bytes:
                noted.append((self._mark_at, number))
        if noted:
            self._notebook.note(noted)
        self._keep(memoryview(parts[0] if len(parts) == 1 else b"".join(parts)))

    def _keep(self, chunk: memoryview) -> None:
        if len(chunk) > self._room:
            self.quota_reached = True
            chunk = chunk[: self._room]
        while chunk:
            try:
                written = os.write(self._descriptor, chunk)
            except OSError:
                # Later chunks are still tried: a disk that was full for a moment costs a gap, not the rest.
                self.incomplete = True
                return
            self._room -= written
            self.bytes_written += written
            chunk = chunk[written:]

    def close(self) -> None:
        """Write what the masker held back, sync and close."""
        if self._masker is not None:
            if not self._blind:
                try:
                    self._let_out(self._masker.flush())
                except Exception:
                    self._go_blind()
            self._notebook.close()
        try:
            if self.bytes_written:
                os.fsync(self._descriptor)
        except OSError:
            self.incomplete = True
        os.close(self._descriptor)

    def discard(self) -> None:
        """Close, and remove the file when nothing was ever written to it."""
        with suppress(OSError):
            if os.fstat(self._descriptor).st_size == 0:
                os.unlink(self.paths.log)
        os.close(self._descriptor)


@cache
def _buffer() -> memoryview:
    """For one run after another. Anonymous pages: scripts that print little never make them real memory."""
    return memoryview(mmap.mmap(-1, READ_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class Pump:
    """The one pipe that carries stdout and stderr, and the copying out of it."""

    def __init__(self, sink: LogSink) -> None:
        self._sink = sink
        self.read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.read_end, False)
        self._capacity = 0
        self._buffer = _buffer()

    def copy(self, limit: int = READ_BYTES * READS_PER_TURN) -> None:
        """Copy what is there now, at most about `limit` bytes."""
        while limit > 0:
            try:
                count = os.readv(self.read_end, [self._buffer])
            except BlockingIOError:
                return
            if count == 0:
                return
            if not self._capacity:
                self._widen()
            self._sink.feed(self._buffer[:count])
            limit -= count

    def close(self) -> None:
        """Both ends: whatever still holds one must not write into a later run's log."""
        os.close(self.read_end)
        os.close(self.write_end)

    def drain(self) -> None:
        """Copy what a process that has just ended can have left: never more than the pipe holds."""
        self.copy(self._capacity or READ_BYTES)

    def _widen(self) -> None:
        """Only for a script that says something; those that are silent are many."""
        try:
            self._capacity = fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, READ_BYTES)
        except OSError:  # the user's share of pipe memory may be used up; the default size works too
            self._capacity = fcntl.fcntl(self.write_end, fcntl.F_GETPIPE_SZ)
