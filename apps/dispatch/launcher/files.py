"""The attempt folder: what the script is given and what its shim leaves behind (spec/runs.md §16).

Folders 0700, files 0600, created exclusively and never through a symlink.
"""
# Why not pathlib: flags and modes that pathlib does not offer; the shim also stays small without it.
# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH112, PTH120, PTH208

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress

from apps.artifacts.facts import ensure_private_directory, sync_directory, write_all
from apps.dispatch.launcher import homes
from apps.dispatch.launcher.homes import PASSABLE
from apps.dispatch.launcher.spec import LaunchSpec, RunAs, ScriptBody, ShellBody, to_bytes

INPUT = "input.json"
OUTPUT = "output.json"
STOP_FACT = "stop.json"
LOG_FACT = "log.json"
SHELL_BODY = "body.sh"
# Where the script has a user of its own, all that is its: its TMPDIR, and its output until the shim takes it over.
WORK = "work"
# Values of secrets that the script is given by file; gone with its end.
SECRETS = "secrets"
# What the script leaves in here is kept (collecting.py).
FILES = "artifacts"
OUTPUT_BYTES_MAX = 65_536
# The sticky bit says "prepared, nothing has run"; it goes with `go` and costs no entry of the folder.
PREPARED = 0o1700
# One argument ends at 128 KiB on Linux; longer shell text is read from a file instead.
ARGUMENT_BYTES_MAX = 120_000

# Another shim is about to start the attempt, or has.
HELD = "attempt_active"


class PrepareError(Exception):
    """The start cannot be prepared. `code` and the text are fixed, short and free of values."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class Spare:
    """An empty folder that a warm shim hands on from run to run.

    Making and removing one per run was as dear, on a busy disk, as all its other folders; moving it is not.
    """

    def __init__(self) -> None:
        self._path = ""
        self._uid = -1

    def make(self, path: str, uid: int) -> None:
        """A folder of that user at `path`: what was put by, or a new one. OSError."""
        if self._path and self._uid == uid:
            kept, self._path = self._path, ""
            with suppress(OSError):
                os.rename(kept, path)
                return
        os.mkdir(path, 0o700)

    def put_by(self, path: str, uid: int, place: str) -> bool:
        """Takes the folder out of an ended run's, for the next one; False where it is not as it was made."""
        try:
            found = os.lstat(path)
            if found.st_mode != stat.S_IFDIR | 0o700 or found.st_uid != uid:
                return False
            if os.listdir(path):
                return False
            kept = f"{place}/.spare-{os.getpid()}"
            os.rename(path, kept)
        except OSError:
            return False
        self._path, self._uid = kept, uid
        return True

    def drop(self) -> None:
        """Removes what no run will need."""
        if self._path:
            with suppress(OSError):
                os.rmdir(self._path)
            self._path = ""


SPARE = Spare()


def remove_spares(place: str) -> None:
    """Removes what killed shims had put by; one that lives makes a new one."""
    with suppress(OSError):
        for name in os.listdir(place):
            if name.startswith(".spare-"):
                os.rmdir(f"{place}/{name}")


def create_file(path: str, data: bytes, mode: int = 0o600) -> None:
    """Make a new file with this content; FileExistsError when the name is taken."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def make_attempt_folder(path: str, *, passable: bool = False) -> None:
    """The folder of an attempt that has not started; whoever made it before, it says so. OSError, UnsafeTarget.

    `passable`: the script will be another user's, who has to come through the folder above.
    """
    ensure_private_directory(os.path.dirname(path), PASSABLE if passable else 0o700)
    os.mkdir(path, PREPARED)


class AttemptFolder:
    """Owns `attempt_dir` for the life of a shim, under a lock that ends with the process."""

    def __init__(self, spec: LaunchSpec) -> None:
        self.path = spec.attempt_dir
        self._owner = spec.run_as
        # The node's one empty input lies where only the panel comes.
        self._input = "{}" if spec.input is None and spec.run_as is not None else spec.input
        self._given = [] if self._input is None else [INPUT]
        if isinstance(spec.body, ScriptBody):
            self._given.append(spec.body.filename)
        if needs_file(spec):
            self._given.append(SHELL_BODY)
        # By number: the name of a variable may be none of a file.
        self.secrets = {
            name: f"{SECRETS}/{number}" for number, (name, _value) in enumerate(spec.secret_files)
        }
        self._given.extend(self.secrets.values())
        self._descriptor = -1
        self.found = False

    def prepare(self, spec: LaunchSpec) -> None:
        """Create and fill the folder. PrepareError when the attempt was started before or is being started.

        A folder that is there (`found`), made by the session or left by a shim that died before `go`, is taken over:
        nothing of it has run.
        """
        try:
            self._open()  # a session makes it for a warm shim
            self.found = True
        except FileNotFoundError:
            try:
                make_attempt_folder(self.path, passable=self._owner is not None)
            except FileExistsError:
                self.found = True
            self._open()
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._release()
            raise PrepareError(HELD, "another shim holds this attempt") from None
        if stat.S_IMODE(os.fstat(self._descriptor).st_mode) != PREPARED:
            self._release()
            raise PrepareError("attempt_started", "this attempt was started before")
        if self.found and os.listdir(self._descriptor):
            self._clear()
        if self._input is not None:
            create_file(f"{self.path}/{INPUT}", to_bytes(self._input))
        if isinstance(spec.body, ScriptBody):
            create_file(f"{self.path}/{spec.body.filename}", to_bytes(spec.body.source))
        elif isinstance(spec.body, ShellBody) and needs_file(spec):
            create_file(f"{self.path}/{SHELL_BODY}", to_bytes(spec.body.text))
        if self.secrets:
            # Only the files are the script's: the folder stays ours, so that its user puts nothing in their place.
            os.mkdir(f"{self.path}/{SECRETS}", 0o700)
            os.chmod(f"{self.path}/{SECRETS}", 0o700 if self._owner is None else PASSABLE)
            for name, value in spec.secret_files:
                create_file(f"{self.path}/{self.secrets[name]}", to_bytes(value))
        if self._owner is None:
            SPARE.make(self.files, os.geteuid())
        else:
            self._give(self._owner)

    def _open(self) -> None:
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def _give(self, owner: RunAs) -> None:
        """Hand over what is the script's; the folder and all facts in it stay ours."""
        os.mkdir(f"{self.path}/{WORK}", 0o700)
        SPARE.make(self.files, owner.uid)  # while nobody else comes in there
        for name in (*self._given, f"{WORK}/{FILES}", WORK):
            os.chown(f"{self.path}/{name}", owner.uid, owner.gid, follow_symlinks=False)

    @property
    def input(self) -> str | None:
        """The path of what the script was given; None for nothing."""
        return None if self._input is None else f"{self.path}/{INPUT}"

    @property
    def scratch(self) -> str:
        """The script's TMPDIR, where it also leaves its output."""
        return self.path if self._owner is None else f"{self.path}/{WORK}"

    @property
    def files(self) -> str:
        """Where the script leaves files that are kept."""
        return f"{self.scratch}/{FILES}"

    def put_files_by(self) -> bool:
        """Keeps the folder for the next run of this shim, where this one left nothing in it."""
        uid = os.geteuid() if self._owner is None else self._owner.uid
        return SPARE.put_by(self.files, uid, os.path.dirname(os.path.dirname(self.path)))

    def left_files(self) -> bool:
        """Whether the script left anything there; an empty folder is removed by the question."""
        try:
            os.rmdir(self.files)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def remove_secrets(self) -> None:
        """Takes away what was given by file, once the script has ended."""
        for place in self.secrets.values():
            with suppress(OSError):
                os.unlink(f"{self.path}/{place}")

    def mark_go(self) -> None:
        """Take the mark of a folder whose attempt may still start: from here on it never starts again."""
        os.fchmod(self._descriptor, 0o700 if self._owner is None else PASSABLE)

    def remove(self) -> None:
        """Take everything prepared away again; only for an attempt that never started."""
        if self._descriptor < 0:
            return
        self._clear()
        with suppress(OSError):
            os.rmdir(self.path)
        self._release()

    def close(self) -> None:
        """Let go of the folder and its lock, once the end is published."""
        self._release()

    def leave(self) -> None:
        """Take back what was prepared, but for the folder: whoever comes next reads from it that nothing has run."""
        if self._descriptor >= 0:
            self._clear()
            self._release()

    def write_fact(self, name: str, value: dict[str, object]) -> None:
        """Write a small JSON file atomically and synced, replacing an older one. OSError from the system."""
        self._write(name, json.dumps(value, separators=(",", ":")).encode())

    def _write(self, name: str, data: bytes) -> None:
        temporary = f"{self.path}/.{name}.tmp"
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, f"{self.path}/{name}")
        sync_directory(self.path)

    def sync_output(self) -> None:
        """fsync what the script left as its output, when that is a regular file; take it over from another user."""
        if self._owner is not None:
            with suppress(OSError):
                self._take_output(self._owner.uid)
        path = f"{self.path}/{OUTPUT}"
        if not os.access(path, os.F_OK, follow_symlinks=False):
            return  # as most scripts leave it, and cheaper than an exception
        with suppress(OSError):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(path, flags)
            try:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def mask_output(self, masked: Callable[[bytes], bytes]) -> None:
        """Take secrets out of what the script left as its output; OSError. One too large to be kept is left alone."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(f"{self.path}/{OUTPUT}", flags)
        except FileNotFoundError:
            return
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return
            data = _read_output(descriptor)
        finally:
            os.close(descriptor)
        if len(data) <= OUTPUT_BYTES_MAX and (text := masked(data)) != data:
            self._write(OUTPUT, text)

    def drop_output(self) -> None:
        """Take away what the script left as its output: nothing is better than something with secrets in it."""
        with suppress(OSError):
            os.unlink(f"{self.path}/{OUTPUT}")

    def _take_output(self, uid: int) -> None:
        """Copy the output to where the script cannot reach it; OSError.

        Only a file of that very user: with our rights a link would show more than the script may read. A folder in
        its place tells the reader that it is none.
        """
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(f"{self.path}/{WORK}/{OUTPUT}", flags)
        except FileNotFoundError:
            return
        except OSError:
            os.mkdir(f"{self.path}/{OUTPUT}")
            return
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != uid:
                os.mkdir(f"{self.path}/{OUTPUT}")
                return
            data = _read_output(descriptor)
        finally:
            os.close(descriptor)
        create_file(f"{self.path}/{OUTPUT}", data[: OUTPUT_BYTES_MAX + 1])

    def _clear(self) -> None:
        for name in self._given:
            with suppress(OSError):
                os.unlink(f"{self.path}/{name}")
        with suppress(OSError):
            # All of them: the shim before may have been given others.
            for name in os.listdir(f"{self.path}/{SECRETS}"):
                os.unlink(f"{self.path}/{SECRETS}/{name}")
            os.rmdir(f"{self.path}/{SECRETS}")
        with suppress(OSError):
            os.rmdir(self.files)
        with suppress(OSError):
            os.rmdir(f"{self.path}/{WORK}")

    def _release(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1


def _read_output(descriptor: int) -> bytes:
    """A byte more than may be kept at most, so that it shows."""
    data = b""
    while len(data) <= OUTPUT_BYTES_MAX and (chunk := os.read(descriptor, OUTPUT_BYTES_MAX + 1)):
        data += chunk
    return data


def needs_file(spec: LaunchSpec) -> bool:
    """True for shell text that does not fit into one argument of a process."""
    return isinstance(spec.body, ShellBody) and len(to_bytes(spec.body.text)) > ARGUMENT_BYTES_MAX


def make_working_folder(spec: LaunchSpec) -> None:
    """Create the working folder when it is missing and lies under HOME; a failure shows at the start.

    For another user only the task's own folder: what lies in it is made by the script's process, with its rights.
    """
    if spec.run_as is not None:
        homes.make(spec.run_as)
        return
    home = spec.env.get("HOME", "").rstrip("/")
    inside = home.startswith("/") and f"{spec.cwd}/".startswith(f"{home}/")
    if inside and not os.path.isdir(spec.cwd):
        with suppress(OSError):
            _make_folders(spec.cwd)


def _make_folders(path: str) -> None:
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        _make_folders(parent)
    with suppress(FileExistsError):  # the first runs of a project make its folder at the same time
        os.mkdir(path, 0o700)
