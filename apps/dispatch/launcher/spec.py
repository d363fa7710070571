"""What a session hands to a shim: the launch specification and its strict reading.

It travels as JSON of at most 12 MiB and never touches a disk; only the shim reads it, once. Unknown and
missing keys are refused (those in _OPTIONAL may be missing), and so is NUL in any text: the process API
would cut the value there (lessons D15). Values that may be secret stay out of repr.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from apps.artifacts.facts import LOG_BYTES_MAX, LOG_BYTES_MIN, SAFE_INTEGER_MAX, is_artifact_id, is_uuid7
from apps.artifacts.places import NAMES_MAX
from apps.dispatch.launcher.anchors import engine_folder
from apps.dispatch.receipts import is_token

# The largest task that may be saved, with every character of it escaped.
SPEC_BYTES_MAX = 12 * 1024 * 1024
# One argument of a Linux process ends at 128 KiB; a hook is passed as one.
HOOK_BYTES_MAX = 100 * 1024
DURATION_MS_MAX = 366 * 86_400_000
RESERVED_NAMES = frozenset(
    {"input.json", "output.json", "stop.json", "log.json", "body.sh", "work", "secrets", "artifacts"}
)

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
# Without the search for white space around it that `decode` does with regular expressions.
_READ = json.JSONDecoder().raw_decode
_TOO_LARGE = "specification is larger than 12 MiB"
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


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
        data = _ENCODE(_to_json(self)).encode()
        if len(data) > SPEC_BYTES_MAX:
            raise SpecError(_TOO_LARGE)
        return data


def _to_json(spec: LaunchSpec) -> dict[str, object]:
    plain: dict[str, object] = {name: getattr(spec, name) for name in _TOP}
    body = spec.body
    if isinstance(body, CommandBody):
        plain["body"] = {"kind": "command", "argv": body.argv}
    elif isinstance(body, ShellBody):
        plain["body"] = {"kind": "shell", "text": body.text, "args": body.args}
    else:
        plain["body"] = {
            "kind": "script",
            "interpreter": body.interpreter,
            "filename": body.filename,
            "source": body.source,
            "args": body.args,
        }
    plain["env"] = dict(spec.env)
    plain["log"] = {name: getattr(spec.log, name) for name in _LOG}
    if spec.run_as is not None:
        plain["run_as"] = {name: getattr(spec.run_as, name) for name in _RUN_AS}
    if spec.limits is not None:
        plain["limits"] = {name: getattr(spec.limits, name) for name in LIMITS}
    if spec.mask:
        plain["mask"] = {"secrets": spec.mask, "engine": spec.engine or engine_folder()}
    if spec.secret_files:
        plain["secret_files"] = dict(spec.secret_files)
    return plain


def parse(data: bytes) -> LaunchSpec:
    """Read a specification. SpecError for anything that is not exactly one."""
    if len(data) > SPEC_BYTES_MAX:
        raise SpecError(_TOO_LARGE)
    try:
        text = data.decode("utf-8")
        value, end = _READ(text)
        if end != len(text):
            raise ValueError("more than one value")
    except (ValueError, RecursionError):
        raise SpecError("specification is not JSON") from None
    # Not there for most runs: one without them is read by a launcher of an earlier version too.
    given = {name: value.pop(name, None) for name in _OPTIONAL} if isinstance(value, dict) else {}
    top = _fields("specification", value, _TOP)
    for name in ("run_id", "attempt_id"):
        if not is_uuid7(top[name]):
            raise SpecError(f"{name} is not a UUIDv7")
    if not is_token(top["token"]):
        raise SpecError("token is ill-formed")
    mask, engine = ((), None) if given["mask"] is None else _mask(given["mask"])
    return LaunchSpec(
        run_id=_text("run_id", top["run_id"]),
        attempt_id=_text("attempt_id", top["attempt_id"]),
        callback_sequence=_integer("callback_sequence", top["callback_sequence"], 1, SAFE_INTEGER_MAX),
        token=_text("token", top["token"]),
        body=_body(top["body"]),
        env=_environment(top["env"]),
        cwd=_path("cwd", top["cwd"]),
        attempt_dir=_path("attempt_dir", top["attempt_dir"]),
        log=_log(top["log"]),
        receipts_root=_path("receipts_root", top["receipts_root"]),
        before=_optional_hook("before", top["before"]),
        after=_optional_hook("after", top["after"]),
        timeout_ms=_optional_integer("timeout_ms", top["timeout_ms"], 1, DURATION_MS_MAX),
        deadline_at_ms=_optional_integer("deadline_at_ms", top["deadline_at_ms"], 0, SAFE_INTEGER_MAX),
        grace_ms=_integer("grace_ms", top["grace_ms"], 0, 3_600_000),
        input=None if top["input"] is None else _text("input", top["input"]),
        mask=mask,
        engine=engine,
        secret_files=()
        if given["secret_files"] is None
        else tuple(_environment(given["secret_files"]).items()),
        run_as=None if given["run_as"] is None else _run_as(given["run_as"]),
        limits=None if given["limits"] is None else _limits(given["limits"]),
    )


_TOP = (
    "run_id",
    "attempt_id",
    "callback_sequence",
    "token",
    "body",
    "env",
    "cwd",
    "before",
    "after",
    "timeout_ms",
    "deadline_at_ms",
    "grace_ms",
    "attempt_dir",
    "input",
    "log",
    "receipts_root",
)
_OPTIONAL = ("run_as", "limits", "mask", "secret_files")
_LOG = ("root", "artifact_id", "max_bytes")
_RUN_AS = ("uid", "gid", "groups", "home")
LIMITS = ("cpu_seconds", "cpu_percent", "memory_bytes", "processes", "open_files")
_ID_MAX = 2**32 - 2


def _fields(where: str, value: object, names: tuple[str, ...]) -> dict[str, object]:
    if not isinstance(value, dict) or len(value) != len(names) or not all(map(value.__contains__, names)):
        raise SpecError(f"{where} has wrong keys")
    return value


def _text(where: str, value: object) -> str:
    """Text that a process can receive: no NUL, and either valid or escaped single bytes."""
    if not isinstance(value, str):
        raise SpecError(f"{where} is not text")
    if "\0" in value:
        raise SpecError(f"{where} contains a NUL character")
    if not value.isascii():
        try:
            to_bytes(value)
        except UnicodeEncodeError:
            raise SpecError(f"{where} is not valid Unicode") from None
    return value


def to_bytes(text: str) -> bytes:
    """UTF-8; lone surrogates U+DC80–DCFF stand for the raw bytes Python decoded them from."""
    return text.encode("utf-8", "surrogateescape")


def _texts(where: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise SpecError(f"{where} is not a list")
    return tuple(_text(where, item) for item in value)


def _integer(where: str, value: object, lowest: int, highest: int) -> int:
    if type(value) is not int or not lowest <= value <= highest:
        raise SpecError(f"{where} is out of bounds")
    return value


def _optional_integer(where: str, value: object, lowest: int, highest: int) -> int | None:
    return None if value is None else _integer(where, value, lowest, highest)


def _optional_hook(where: str, value: object) -> str | None:
    if value is None:
        return None
    text = _text(where, value)
    if len(to_bytes(text)) > HOOK_BYTES_MAX:
        raise SpecError(f"{where} is longer than 100 KiB")
    return text


def _path(where: str, value: object) -> str:
    text = _text(where, value)
    if not text.startswith("/") or "/../" in f"{text}/" or (text != "/" and text.endswith("/")):
        raise SpecError(f"{where} is not a plain absolute path")
    return text


def _environment(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise SpecError("env is not an object")
    if _is_plain(value):
        return value
    for name, content in value.items():
        if not _text("a name in env", name) or "=" in name:
            raise SpecError("env has an impossible name")
        _text("a value in env", content)
    return value


def _is_plain(env: dict[str, object]) -> bool:
    """Whether nothing in there needs a closer look, as with nearly all."""
    names = "".join(env)
    try:
        text = names + "".join(env.values())  # type: ignore[arg-type]
    except TypeError:
        return False
    return text.isascii() and "\0" not in text and "=" not in names and "" not in env


def _log(value: object) -> LogSpec:
    found = _fields("log", value, _LOG)
    if not is_artifact_id(found["artifact_id"]):
        raise SpecError("log.artifact_id is ill-formed")
    return LogSpec(
        root=_path("log.root", found["root"]),
        artifact_id=_text("log.artifact_id", found["artifact_id"]),
        max_bytes=_integer("log.max_bytes", found["max_bytes"], LOG_BYTES_MIN, LOG_BYTES_MAX),
    )


def _mask(value: object) -> tuple[tuple[tuple[str, str], ...], str | None]:
    found = _fields("mask", value, ("secrets", "engine"))
    secrets = found["secrets"]
    if not isinstance(secrets, list) or not 1 <= len(secrets) <= NAMES_MAX:
        raise SpecError("mask has too few or too many secrets")
    pairs = [_texts("mask", pair) for pair in secrets]
    if not all(len(pair) == 2 for pair in pairs):
        raise SpecError("mask holds something else than pairs")
    engine = found["engine"]
    return tuple([(name, secret) for name, secret in pairs]), None if engine is None else _path(
        "engine", engine
    )


def _run_as(value: object) -> RunAs:
    found = _fields("run_as", value, _RUN_AS)
    groups = found["groups"]
    if not isinstance(groups, list):
        raise SpecError("run_as.groups is not a list")
    return RunAs(
        uid=_integer("run_as.uid", found["uid"], 1, _ID_MAX),
        gid=_integer("run_as.gid", found["gid"], 0, _ID_MAX),
        groups=tuple([_integer("run_as.groups", group, 0, _ID_MAX) for group in groups]),
        home=_path("run_as.home", found["home"]),
    )


def _limits(value: object) -> Limits:
    found = _fields("limits", value, LIMITS)
    return Limits(
        **{
            name: _optional_integer(f"limits.{name}", given, 1, SAFE_INTEGER_MAX)
            for name, given in found.items()
        }
    )


def _body(value: object) -> CommandBody | ShellBody | ScriptBody:
    kind = value.get("kind") if isinstance(value, dict) else None
    reader = _BODIES.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise SpecError("body has an unknown kind")
    return reader(value)


def _command(value: object) -> CommandBody:
    found = _fields("body", value, ("kind", "argv"))
    argv = _texts("body.argv", found["argv"])
    if not argv or not argv[0]:
        raise SpecError("body.argv names no program")
    return CommandBody(argv)


def _shell(value: object) -> ShellBody:
    found = _fields("body", value, ("kind", "text", "args"))
    return ShellBody(_text("body.text", found["text"]), _texts("body.args", found["args"]))


def _script(value: object) -> ScriptBody:
    found = _fields("body", value, ("kind", "interpreter", "filename", "source", "args"))
    candidates = found["interpreter"]
    if not isinstance(candidates, list) or not candidates:
        raise SpecError("body.interpreter is empty")
    interpreter = tuple(_texts("body.interpreter", candidate) for candidate in candidates)
    if not all(candidate and candidate[0] for candidate in interpreter):
        raise SpecError("body.interpreter names no program")
    filename = _text("body.filename", found["filename"])
    if _FILENAME.fullmatch(filename) is None or filename in RESERVED_NAMES:
        raise SpecError("body.filename is not a plain file name")
    source = _text("body.source", found["source"])
    return ScriptBody(interpreter, filename, source, _texts("body.args", found["args"]))


_BODIES: dict[str, Callable[[object], CommandBody | ShellBody | ScriptBody]] = {
    "command": _command,
    "shell": _shell,
    "script": _script,
}
