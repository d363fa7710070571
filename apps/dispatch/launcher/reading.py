"""The strict reading of a launch specification, by the shim it is for.

Unknown and missing keys are refused (the optional ones may be missing), and so is NUL in any text: the process API
would cut the value there (lessons D15).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache

from apps.artifacts.facts import LOG_BYTES_MAX, LOG_BYTES_MIN, SAFE_INTEGER_MAX, is_artifact_id, is_uuid7
from apps.artifacts.places import NAMES_MAX
from apps.dispatch.launcher.spec import (
    COMMON,
    DURATION_MS_MAX,
    HOOK_BYTES_MAX,
    LIMITS,
    LOG,
    OPTIONAL_COMMON,
    OPTIONAL_OWN,
    OWN,
    RESERVED_NAMES,
    RUN_AS,
    SPEC_BYTES_MAX,
    TOO_LARGE,
    CommandBody,
    LaunchSpec,
    Limits,
    LogSpec,
    RunAs,
    ScriptBody,
    ShellBody,
    SpecError,
    to_bytes,
)
from apps.dispatch.receipts import is_token

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Without the search for white space around it that `decode` does with regular expressions.
_READ = json.JSONDecoder().raw_decode
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ID_MAX = 2**32 - 2
_KEPT_BYTES = 16_384  # a warm shim keeps no more of the last run than that
_REQUIRED_COMMON = tuple(name for name in COMMON if name not in OPTIONAL_COMMON)


def parse(data: bytes) -> LaunchSpec:
    """Read a specification. SpecError for anything that is not exactly one."""
    if len(data) > SPEC_BYTES_MAX:
        raise SpecError(TOO_LARGE)
    own, line, common = data.partition(b"\n")
    if not line or not own.endswith(b","):
        raise SpecError("specification is not two lines")
    read = _common if len(common) <= _KEPT_BYTES else _common.__wrapped__
    return LaunchSpec(**_own(own[:-1] + b"}"), **read(b"{" + common))


def _own(data: bytes) -> dict[str, Any]:
    document = _object(data)
    mask, secret_files = (document.pop(name, None) for name in OPTIONAL_OWN)
    top = _fields("specification", document, OWN)
    for name in ("run_id", "attempt_id"):
        if not is_uuid7(top[name]):
            raise SpecError(f"{name} is not a UUIDv7")
    if not is_token(top["token"]):
        raise SpecError("token is ill-formed")
    top["callback_sequence"] = _integer("callback_sequence", top["callback_sequence"], 1, SAFE_INTEGER_MAX)
    top["env"] = _environment(top["env"])
    top["attempt_dir"] = _path("attempt_dir", top["attempt_dir"])
    top["log"] = _log(top["log"])
    top["deadline_at_ms"] = _optional_integer("deadline_at_ms", top["deadline_at_ms"], 0, SAFE_INTEGER_MAX)
    if top["input"] is not None:
        _text("input", top["input"])
    if mask is not None:
        top["mask"], top["engine"] = _mask(mask)
    if secret_files is not None:
        top["secret_files"] = tuple(_environment(secret_files).items())
    return top


@lru_cache(maxsize=1)
def _common(data: bytes) -> dict[str, Any]:
    document = _object(data)
    user, limits = (document.pop(name, None) for name in OPTIONAL_COMMON)
    top = _fields("specification", document, _REQUIRED_COMMON)
    return {
        "body": _body(top["body"]),
        "cwd": _path("cwd", top["cwd"]),
        "before": _optional_hook("before", top["before"]),
        "after": _optional_hook("after", top["after"]),
        "timeout_ms": _optional_integer("timeout_ms", top["timeout_ms"], 1, DURATION_MS_MAX),
        "grace_ms": _integer("grace_ms", top["grace_ms"], 0, 3_600_000),
        "receipts_root": _path("receipts_root", top["receipts_root"]),
        "run_as": None if user is None else _run_as(user),
        "limits": None if limits is None else _limits(limits),
    }


def forget() -> None:
    """Keep nothing of what was read: a shim that drops what it inherited copies the pages it lies in."""
    _common.cache_clear()


def _object(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode("utf-8")
        value, end = _READ(text)
        if end != len(text):
            raise ValueError("more than one value")
    except (ValueError, RecursionError):
        raise SpecError("specification is not JSON") from None
    if not isinstance(value, dict):
        raise SpecError("specification is not an object")
    return value


def _fields(where: str, value: object, names: tuple[str, ...]) -> dict[str, Any]:
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
    found = _fields("log", value, LOG)
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
    found = _fields("run_as", value, RUN_AS)
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
