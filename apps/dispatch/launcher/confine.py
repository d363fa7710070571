"""What a script may be and use: another OS user, limits, a control group of its own (architecture.md §5).

All of it is done in the child, between fork and exec: the shim keeps its rights, and its next run gets nothing of
this one. A child that cannot be confined as it was asked for runs nothing.
"""
# Why not pathlib: the shim stays small without it.
# ruff: noqa: PTH103

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from contextlib import suppress

from apps.dispatch.launcher import programs, tree
from apps.dispatch.launcher.cgroups import Group
from apps.dispatch.launcher.programs import CannotStart, Environment
from apps.dispatch.launcher.signals import (
    BLOCK,
    DEFAULT,
    SET,
    SIGCHLD,
    SIGINT,
    SIGTERM,
    set_handler,
    set_mask,
)
from apps.dispatch.launcher.spec import Limits, RunAs

# chown, dac_override, fowner, kill, setgid, setuid: to give folders away, read and remove what lies in them, stop
# what runs, and become somebody else.
_NEEDED = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7
_PR_SET_KEEPCAPS = 8
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522
_RLIMIT_CPU, _RLIMIT_DATA, _RLIMIT_NPROC, _RLIMIT_NOFILE = 0, 2, 6, 7
# Between SIGXCPU, which a script may take, and SIGKILL, which it may not.
CPU_GRACE_S = 5

_LIBC = ctypes.CDLL(None, use_errno=True)
_WORDS = ctypes.c_ulong * 2


def may_switch() -> bool:
    """Whether this process holds every capability that RUN_AS takes, as root usually does."""
    with suppress(OSError, ValueError), open("/proc/self/status", "rb") as status:  # noqa: PTH123
        for line in status:
            if line.startswith(b"CapEff:"):
                return int(line.split()[1], 16) & _NEEDED == _NEEDED
    return False


def become(uid: int, gid: int, groups: tuple[int, ...]) -> None:
    """Make this process that user for good, and see that it is; OSError where it is not.

    Its memory is still the caller's: capabilities go last, since as long as they are there no process of that user
    may look into it, and by then it is not dumpable.
    """
    _checked(_LIBC.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    tree.become_undumpable()
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _checked(_LIBC.capset(header, (ctypes.c_uint32 * 6)()))
    _checked(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if (
        os.getresuid() != (uid, uid, uid)
        or os.getresgid() != (gid, gid, gid)
        or set(os.getgroups()) != set(groups)
    ):
        raise OSError(errno.EPERM, "the switch did not take")
    with suppress(PermissionError):
        os.setresuid(0, 0, 0)
        raise OSError(errno.EBUSY, "the switch can be taken back")


class Confinement:
    """How the processes of one run are started when they are not simply the shim's own kind."""

    def __init__(self, run_as: RunAs | None, limits: Limits | None, group: Group | None, cwd: bytes) -> None:
        self._run_as = run_as
        self._limits = limits
        self._group = group
        self._cwd = cwd

    def start(
        self,
        find: Callable[[], tuple[bytes, list[bytes]]],
        env: Environment,
        output: int,
        extra: tuple[int, int] | None = None,
    ) -> int:
        """As `programs.start`, but what does not start says so itself and ends as a shell's child would.

        The program is looked for, and the working folder entered, with the script's own rights. CannotStart when
        there is no process to be had.
        """
        set_mask(
            BLOCK, (SIGCHLD, SIGINT, SIGTERM)
        )  # one that came now would meet the shim's handlers in the child
        try:
            pid = os.fork()
        except OSError as error:
            set_mask(SET, ())
            said = os.strerror(error.errno or 0)
            raise CannotStart(f"no process to be had: {said}", programs.NOT_EXECUTABLE) from None
        if pid == 0:
            self._become_script(find, env, output, extra)
        set_mask(SET, ())
        return pid

    def _become_script(
        self,
        find: Callable[[], tuple[bytes, list[bytes]]],
        env: Environment,
        output: int,
        extra: tuple[int, int] | None,
    ) -> None:
        """In the child; never returns."""
        code = programs.NOT_EXECUTABLE
        try:
            os.setpgid(0, 0)
            tree.become_ordinary()
            for number in (*programs.IGNORED, SIGCHLD, SIGINT, SIGTERM):
                set_handler(number, DEFAULT)
            null = os.open(os.devnull, os.O_RDONLY)
            for descriptor, number in ((null, 0), (output, 1), (output, 2), *((extra,) if extra else ())):
                os.dup2(descriptor, number)
            if self._group is not None:
                self._group.enter()
            self._limit()
            if self._run_as is not None:
                self._switch(self._run_as)
            set_mask(SET, ())
            self._enter_folder()
            path, argv = find()
            programs.execute(path, argv, env)
        except CannotStart as error:
            _say(error.text)
            code = error.exit_code
        except OSError as error:
            _say(f"the script cannot be confined as asked: {os.strerror(error.errno or 0)}")
        except BaseException as error:
            _say(f"the supervisor failed ({type(error).__name__})")
        finally:
            os._exit(code)

    def _limit(self) -> None:
        limits = self._limits
        if limits is None:
            return
        held = frozenset[str]() if self._group is None else self._group.held
        if limits.cpu_seconds is not None:
            _set_limit(_RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + CPU_GRACE_S)
        if limits.memory_bytes is not None and "memory_bytes" not in held:
            _set_limit(_RLIMIT_DATA, limits.memory_bytes, limits.memory_bytes)
        if limits.processes is not None and "processes" not in held and self._run_as is not None:
            _set_limit(_RLIMIT_NPROC, limits.processes, limits.processes)
        if limits.open_files is not None:
            _set_limit(_RLIMIT_NOFILE, limits.open_files, limits.open_files)

    def _switch(self, run_as: RunAs) -> None:
        try:
            become(run_as.uid, run_as.gid, run_as.groups)
        except OSError as error:
            said = os.strerror(error.errno or 0)
            raise CannotStart(
                f"cannot become the user of QINGLONG_RUN_AS: {said}", programs.NOT_EXECUTABLE
            ) from None

    def _enter_folder(self) -> None:
        try:
            if self._run_as is not None and self._cwd.startswith(os.fsencode(self._run_as.home) + b"/"):
                os.makedirs(self._cwd, 0o700, exist_ok=True)
            os.chdir(self._cwd)
        except OSError as error:
            said = os.strerror(error.errno or 0)
            raise CannotStart(f"the working folder cannot be used: {said}", programs.NOT_EXECUTABLE) from None


def weaker(limits: Limits, held: frozenset[str], other_user: bool) -> list[str]:
    """What of the limits this node cannot keep as they are meant, a line for the log each."""
    lines = []
    if limits.cpu_percent is not None and "cpu_percent" not in held:
        lines.append("this node cannot hold it to cpu_percent: no control group")
    if limits.memory_bytes is not None and "memory_bytes" not in held:
        lines.append(
            "this node holds each process to memory_bytes, not all of them together: no control group"
        )
    if limits.processes is not None and "processes" not in held:
        lines.append(
            "this node counts all scripts of the same user for processes: no control group"
            if other_user
            else "this node cannot hold it to processes: no control group"
        )
    return lines


def _set_limit(which: int, soft: int, hard: int) -> None:
    """Lower a limit; never raised above what the panel itself has, unless the panel may."""
    present = _WORDS()
    _checked(_LIBC.getrlimit(which, present))
    wanted = _WORDS(soft, hard)
    if _LIBC.setrlimit(which, wanted) != 0:
        _checked(_LIBC.setrlimit(which, _WORDS(min(soft, present[1]), min(hard, present[1]))))


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"qinglong: {text}\n".encode("utf-8", "backslashreplace"))


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
