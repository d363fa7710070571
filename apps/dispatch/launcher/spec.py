"""What a session hands to a shim: the launch specification; `reading` is its strict reading.

It travels as JSON of at most 12 MiB and never touches a disk; only the shim reads it, once. Values that may be
secret stay out of repr.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from apps.dispatch.launcher.anchors import engine_folder

# The largest task that may be saved, with every character of it escaped.
SPEC_BYTES_MAX = 12 * 1024 * 1024
# One argument of a Linux process ends at 128 KiB; a hook is passed as one.
HOOK_BYTES_MAX = 100 * 1024
DURATION_MS_MAX = 366 * 86_400_000
RESERVED_NAMES = frozenset(
    {"input.json", "output.json", "stop.json", "log.json", "body.sh", "work", "secrets", "artifacts"}
)

TOO_LARGE = "specification is larger than 12 MiB"
# What is a run's own comes first; what all runs of a revision have in common follows on a line of its own, so that
# whoever wrote or read that line a moment ago need not do it again. Values that may be secret are a run's own.
OWN = (
    "run_id",
    "attempt_id",
    "callback_sequence",
    "token",
    "env",
    "deadline_at_ms",
    "attempt_dir",
    "input",
    "log",
)
OPTIONAL_OWN = ("mask", "secret_files")
OPTIONAL_COMMON = ("run_as", "limits")
COMMON = ("body", "cwd", "before", "after", "timeout_ms", "grace_ms", "receipts_root", *OPTIONAL_COMMON)
LOG = ("root", "artifact_id", "max_bytes")
RUN_AS = ("uid", "gid", "groups", "home")
LIMITS = ("cpu_seconds", "cpu_percent", "memory_bytes", "processes", "open_files")

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


class SpecError(Exception):
    """The specification cannot be carried out. `str()` names the field, never its value."""

    code = "invalid_spec"


@dataclass(frozen=True, slots=True)
class CommandBody:
    """A program and its arguments, started without a shell."""

    argv: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ShellBody:
    """Text for `/bin/sh -c`; `args` become `$1…`."""

    text: str = field(repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class ScriptBody:
    """A source file for an interpreter: the first candidate whose program is on PATH is used."""

    interpreter: tuple[tuple[str, ...], ...]
    filename: str
    source: str = field(repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class LogSpec:
    """Where the output goes and how many bytes of it are kept (65,536 – 1 GiB)."""

    root: str
    artifact_id: str
    max_bytes: int


@dataclass(frozen=True, slots=True)
class RunAs:
    """Another OS user for the script and the task's own folder, which becomes that user's."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a script may use; None = as much as it gets. A node that cannot hold it to one says so in the log."""

    cpu_seconds: int | None = None
    cpu_percent: int | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    open_files: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """One attempt. Times in milliseconds; `deadline_at_ms` is wall clock, paths are absolute.

    `attempt_dir` is also the script's TMPDIR, or holds it where the script has another user. Without `input` the
    script reads the node's one empty input. `mask` pairs the name of each secret that the script is given with its
    value, at most 256 of them; log and facts may show the name, never the value. `engine` comes with it (anchors.py).
    `secret_files` pairs variables that are to name files with the values that are left there.
    """

    run_id: str
    attempt_id: str
    callback_sequence: int
    token: str = field(repr=False)
    body: CommandBody | ShellBody | ScriptBody
    env: Mapping[str, str] = field(repr=False)
    cwd: str
    attempt_dir: str
    log: LogSpec
    receipts_root: str
    before: str | None = field(default=None, repr=False)
    after: str | None = field(default=None, repr=False)
    timeout_ms: int | None = None
    deadline_at_ms: int | None = None
    grace_ms: int = 10_000
    input: str | None = field(default=None, repr=False)
    mask: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    engine: str | None = None
    secret_files: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    run_as: RunAs | None = None
    limits: Limits | None = None

    def encode(self) -> bytes:
        """Bytes for the shim, whose `parse` says what is wrong in them. SpecError when they are too many."""
        own = _ENCODE(_own(self)).encode()
        data = own[:-1] + b",\n" + _common(*[getattr(self, name) for name in COMMON])
        if len(data) > SPEC_BYTES_MAX:
            raise SpecError(TOO_LARGE)
        return data


def _own(spec: LaunchSpec) -> dict[str, object]:
    plain: dict[str, object] = {name: getattr(spec, name) for name in OWN}
    plain["env"] = dict(spec.env)
    plain["log"] = {name: getattr(spec.log, name) for name in LOG}
    if spec.mask:
        plain["mask"] = {"secrets": spec.mask, "engine": spec.engine or engine_folder()}
    if spec.secret_files:
        plain["secret_files"] = dict(spec.secret_files)
    return plain


@lru_cache(maxsize=64)
def _common(*values: object) -> bytes:
    """What the runs of a revision have in common, without the brace that opens it."""
    plain = dict(zip(COMMON, values, strict=True))
    body, user, limits = plain["body"], plain.pop("run_as"), plain.pop("limits")
    if isinstance(body, CommandBody):
        plain["body"] = {"kind": "command", "argv": body.argv}
    elif isinstance(body, ShellBody):
        plain["body"] = {"kind": "shell", "text": body.text, "args": body.args}
    elif isinstance(body, ScriptBody):
        plain["body"] = {
            "kind": "script",
            "interpreter": body.interpreter,
            "filename": body.filename,
            "source": body.source,
            "args": body.args,
        }
    if user is not None:
        plain["run_as"] = {name: getattr(user, name) for name in RUN_AS}
    if limits is not None:
        plain["limits"] = {name: getattr(limits, name) for name in LIMITS}
    return _ENCODE(plain)[1:].encode()


def to_bytes(text: str) -> bytes:
    """UTF-8; lone surrogates U+DC80–DCFF stand for the raw bytes Python decoded them from."""
    return text.encode("utf-8", "surrogateescape")
