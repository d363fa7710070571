"""What is executed, as values and as the canonical text that a revision stores (runs.md §12)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from apps.tasks import limits, placement, secrets
from apps.tasks.limits import Limits
from apps.tasks.secrets import SecretUses

LANGUAGES = ("python", "node", "typescript", "shell")
LOCAL_PROCESS = "local_process"
DEFAULT_GRACE_MS = 10_000
DEFAULT_LOG_QUOTA = 16_777_216


@dataclass(frozen=True)
class Command:
    """A program and its arguments, without a shell."""

    argv: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True)
class Shell:
    """Text for `/bin/sh -c`."""

    text: str = field(repr=False)


@dataclass(frozen=True)
class Script:
    """Source for an interpreter; `language` is one of LANGUAGES."""

    language: str
    source: str = field(repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)


Body = Command | Shell | Script


@dataclass(frozen=True)
class Execution:
    """Everything of a task that a process is made of, besides the values of its environment.

    `timeout_ms` None = no deadline. `before` and `after` are shell text. `log_quota_bytes` is what is kept of
    the output. `requires` is the key of the labels that a worker must have (apps.tasks.placement).
    """

    body: Body
    work_dir: str | None = None
    timeout_ms: int | None = None
    kill_grace_ms: int = DEFAULT_GRACE_MS
    log_quota_bytes: int = DEFAULT_LOG_QUOTA
    before: str | None = field(default=None, repr=False)
    after: str | None = field(default=None, repr=False)
    requires: str = placement.ANYWHERE
    limits: Limits = limits.NONE
    secrets: SecretUses = ()


def to_template(execution: Execution) -> dict[str, Any]:
    """The document of an execution in its fixed key order; absent optionals are left out."""
    document: dict[str, Any] = {"body": _body_document(execution.body)}
    for name in ("work_dir", "timeout_ms", "kill_grace_ms", "log_quota_bytes", "before", "after"):
        value = getattr(execution, name)
        if value is not None:
            document[name] = value
    if execution.requires:
        document["requires"] = placement.document(execution.requires)
    if execution.limits != limits.NONE:
        document["limits"] = execution.limits.template()
    if execution.secrets:
        document["secrets"] = secrets.document(execution.secrets)
    return document


def from_template(document: Any) -> Execution:
    """The execution of a stored document; raises ValueError for what `to_template` never writes."""
    if not isinstance(document, dict):
        raise ValueError("not an object")
    values = dict(document)
    body = _read_body(values.pop("body", None))
    for name in ("work_dir", "before", "after"):
        if name in values:
            _text(values[name])
    for name in ("timeout_ms", "kill_grace_ms", "log_quota_bytes"):
        if name in values and type(values[name]) is not int:
            raise ValueError("not a number")
    if "requires" in values:
        try:
            values["requires"] = placement.read(values["requires"])
        except placement.NeedRefused as error:
            raise ValueError("no need") from error
    if "limits" in values:
        try:
            values["limits"] = limits.read(values["limits"])
        except limits.LimitsRefused as error:
            raise ValueError("no limits") from error
    if "secrets" in values:
        try:
            values["secrets"] = secrets.read(values["secrets"])
        except secrets.SecretsRefused as error:
            raise ValueError("no secrets") from error
    try:
        return Execution(body=body, **values)
    except TypeError as error:
        raise ValueError("unknown key") from error


def _body_document(body: Body) -> dict[str, Any]:
    match body:
        case Command(argv):
            return {"kind": "command", "argv": list(argv)}
        case Shell(text):
            return {"kind": "shell", "text": text}
        case Script(language, source, args):
            return {"kind": "script", "language": language, "source": source, "args": list(args)}


def _read_body(value: Any) -> Body:
    match value:
        case {"kind": "command", "argv": [_, *_] as argv}:
            return Command(tuple(_text(item) for item in argv))
        case {"kind": "shell", "text": text}:
            return Shell(_text(text))
        case {"kind": "script", "language": language, "source": source, "args": [*args]} if (
            language in LANGUAGES
        ):
            return Script(language, _text(source), tuple(_text(item) for item in args))
    raise ValueError("unknown body")


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("not text")
    return value
