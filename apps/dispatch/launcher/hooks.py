"""`before` and `after`: shell text around the body (api.md, Task).

User text is only ever an argument to a fixed program text, never part of one.
"""

from __future__ import annotations

import os
import re

from apps.dispatch.launcher.programs import SHELL, Environment

DUMP_DESCRIPTOR = 9  # the highest number that every POSIX shell can redirect
_DUMP_BYTES_MAX = 8 * 1024 * 1024

# The environment is dumped at the end of the text, and from a trap as well, so that `exit` and `set -e`
# inside it work. A dump begins with two NULs, which no environment contains; the last whole one counts.
_BEFORE = b"""trap 'printf "\\0\\0" >&9; /usr/bin/env -0 >&9' EXIT
eval "$1"
set -- "$?"
printf "\\0\\0" >&9; /usr/bin/env -0 >&9
exit "$1"
"""
# Names the shell keeps for itself: what it makes of them is not what the user exported.
_SHELL_OWN = frozenset({b"PWD", b"OLDPWD", b"SHLVL", b"_"})
_SHELL_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")


def before_argv(text: bytes) -> list[bytes]:
    return [SHELL, b"-c", _BEFORE, b"sh", text]


def after_argv(text: bytes) -> list[bytes]:
    return [SHELL, b"-c", text, b"sh"]


def open_dump() -> int:
    """A memory file for the dump: values stay off the disk, and no reader can be kept waiting."""
    return os.memfd_create("environment", os.MFD_CLOEXEC)


def read_dump(descriptor: int, original: Environment) -> Environment | None:
    """The environment for the body, or None when the hook left none (it replaced its shell, say)."""
    size = min(os.fstat(descriptor).st_size, _DUMP_BYTES_MAX)
    data = os.pread(descriptor, size, 0)
    _, mark, dump = data.rpartition(b"\0\0")
    while mark and not dump:  # a dump cut short right after its mark: the one before it is whole
        data = data[:-2]
        _, mark, dump = data.rpartition(b"\0\0")
    if not mark or not dump.endswith(b"\0"):
        return None
    left: Environment = {}
    for entry in dump[:-1].split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name not in _SHELL_OWN:
            left[name] = value
    for name, value in original.items():
        # Shells drop names they cannot spell; that is no wish of the user.
        if name in _SHELL_OWN or _SHELL_NAME.fullmatch(name) is None:
            left.setdefault(name, value)
    return left
