"""Finding programs and starting them with exactly the world they were given (lessons D15, D16).

Nothing of the shim is inherited: environment, descriptors, signal mask and handlers are set at the start.
"""
# Why not pathlib: the shim stays small without pathlib.
# ruff: noqa: PTH110, PTH113, PTH118

from __future__ import annotations

import errno
import os
import signal

DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"
SHELL = b"/bin/sh"
NOT_FOUND = 127
NOT_EXECUTABLE = 126

Environment = dict[bytes, bytes]
# What launcher and interpreter ignore; a script would inherit that. All others stand at their default.
IGNORED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)
# A shim waits for its turn (tree.py), what it starts does not.
_ORDINARY = {"scheduler": (os.SCHED_OTHER, os.sched_param(0))}
# Reset in a script: all of them, for the C library asks the kernel about each one that is not named.
_RESET = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


class CannotStart(Exception):
    """The program did not start; `text` is the line for the log, `exit_code` what a shell would give."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.text = text
        self.exit_code = exit_code


def find(program: bytes, env: Environment) -> bytes:
    """The path to start, looked up on the environment's own PATH. CannotStart with 126 or 127."""
    shown = os.fsdecode(program)
    if b"/" in program:
        if _executable(program):
            return program
        if not os.path.exists(program):
            raise CannotStart(f"{shown}: no such file", NOT_FOUND)
        raise CannotStart(f"{shown}: not executable", NOT_EXECUTABLE)
    present = False
    for folder in env.get(b"PATH", DEFAULT_PATH).split(b":"):
        path = os.path.join(folder or b".", program)
        if _executable(path):
            return path
        present = present or os.path.isfile(path)
    if present:
        raise CannotStart(f"{shown}: on PATH, but not executable", NOT_EXECUTABLE)
    raise CannotStart(f"{shown}: not found on PATH; install it, or name the program by its path", NOT_FOUND)


def _executable(path: bytes) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def find_first(candidates: list[list[bytes]], env: Environment) -> list[bytes]:
    """The argument list of the first interpreter that exists. CannotStart names all that were tried."""
    for candidate in candidates:
        try:
            return [find(candidate[0], env), *candidate[1:]]
        except CannotStart as error:
            failure = error
    if len(candidates) == 1:
        raise failure
    names = ", ".join(os.fsdecode(candidate[0]) for candidate in candidates)
    raise CannotStart(f"none of {names} was found on PATH; install one of them", failure.exit_code)


def start(
    path: bytes, argv: list[bytes], env: Environment, output: int, extra: tuple[int, int] | None = None
) -> int:
    """Start a program in the current folder; returns its pid. CannotStart when the kernel refuses.

    stdin is /dev/null, stdout and stderr are `output`; `extra` = (descriptor here, number there).
    It leads a process group of its own: a script that signals its group must not reach the shim.
    """
    actions: list[tuple[int, int, int] | tuple[int, int, bytes, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, b"/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
    ]
    if extra is not None:
        actions.append((os.POSIX_SPAWN_DUP2, *extra))
    shown = os.fsdecode(path)
    for program, arguments in ((path, argv), (SHELL, [SHELL, path, *argv[1:]])):
        try:
            return os.posix_spawn(
                program,
                arguments,
                env,
                file_actions=actions,
                setpgroup=0,
                setsigmask=(),
                setsigdef=_RESET,
                **({} if os.sched_getscheduler(0) != os.SCHED_BATCH else _ORDINARY),  # type: ignore[arg-type]
            )
        except OSError as error:
            # Text without a `#!` line is given to the shell, as every shell does it.
            if error.errno != errno.ENOEXEC:
                raise _refused(shown, error) from None
    raise CannotStart(f"{shown}: not a program", NOT_EXECUTABLE)


def execute(path: bytes, argv: list[bytes], env: Environment) -> None:
    """Become a program and so never return, as `start` would start it; CannotStart when the kernel refuses."""
    for program, arguments in ((path, argv), (SHELL, [SHELL, path, *argv[1:]])):
        try:
            os.execve(program, arguments, env)  # noqa: S606
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise _refused(os.fsdecode(path), error) from None
    raise CannotStart(f"{os.fsdecode(path)}: not a program", NOT_EXECUTABLE)


def _refused(shown: str, error: OSError) -> CannotStart:
    if error.errno == errno.ENOENT:
        return CannotStart(f"{shown}: the interpreter in its first line does not exist", NOT_FOUND)
    if error.errno == errno.E2BIG:
        return CannotStart(f"{shown}: arguments and environment are too long", NOT_EXECUTABLE)
    return CannotStart(f"{shown}: {os.strerror(error.errno or 0)}", NOT_EXECUTABLE)


def exit_code(status: int) -> int:
    """0–255 from a wait status; a death by signal n is 128 + n."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
