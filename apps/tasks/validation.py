"""The rules for each field of a task, in one table (api.md, "Task").

Bounds that api.md leaves open: description 10,000 characters; `command` and `args` 1,024 texts of 65,536
bytes and 131,072 bytes together; `shell`, `before` and `after` 100 KiB each, since Linux ends one argument of
a process at 128 KiB; `work_dir` 1,024 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from apps.core import ids
from apps.core.errors import InvalidInput
from apps.tasks import limits, placement, retry, secrets
from apps.tasks.execution import (
    DEFAULT_GRACE_MS,
    DEFAULT_LOG_QUOTA,
    LANGUAGES,
    Body,
    Command,
    Script,
    Shell,
)
from apps.tasks.limits import Limits
from apps.tasks.models import MAX_PARALLEL, Task
from apps.tasks.retry import RetryRule, RuleRefused
from apps.tasks.secrets import SecretUses
from apps.vault import recipes

MAX_SOURCE = 1_048_576
MAX_SHELL = 102_400
MAX_ARGS = 1_024
MAX_ARG = 65_536
MAX_ARGS_TOTAL = 131_072
MAX_DESCRIPTION = 10_000
MAX_WORK_DIR = 1_024
MAX_LABELS = 32
MAX_TIMEOUT_MS = 31 * 86_400_000
# Set by the panel for every run; a task's own value would be lost without a word.
RESERVED_NAMES = frozenset(
    {
        "QINGLONG_RUN_ID", "QINGLONG_TASK", "QINGLONG_PROJECT", "QINGLONG_ATTEMPT", "QINGLONG_TRIGGER",
        "QINGLONG_INPUT", "QINGLONG_OUTPUT", "QINGLONG_ARTIFACTS", "QINGLONG_EXIT_CODE", "RUN_FENCE",
    }
)  # fmt: skip
BODY_FIELDS = ("command", "shell", "script")
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?")


class Refused(Exception):
    """A value breaks the rule of its field; carries the sentence."""

    def __init__(self, sentence: str | Promise) -> None:
        self.sentence = sentence
        super().__init__()


Rule = Callable[[Any], Any]


def clean(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values in their stored form, every one checked; null becomes the default of its field.

    Of the three body fields those that are null are dropped. Raises InvalidInput with a sentence for each
    wrong field.
    """
    cleaned: dict[str, Any] = {}
    wrong: dict[str, list[str | Promise]] = {}
    for name, value in values.items():
        rule = RULES.get(name)
        try:
            if rule is None:
                raise Refused(_("There is no such field."))
            if name not in BODY_FIELDS or value is not None:
                cleaned[name] = rule(value)
        except Refused as refused:
            wrong[printable(name)] = [refused.sentence]
    if sum(name in cleaned for name in BODY_FIELDS) > 1:
        wrong["command"] = [_("Give exactly one of command, shell and script.")]
    if wrong:
        raise InvalidInput(fields=wrong)
    return cleaned


def printable(name: str) -> str:
    """The name of a field as an answer may hold it: a name that is no text stands as `_`."""
    return name if ids.is_utf8(name) and "\0" not in name else "_"


def body_of(cleaned: Mapping[str, Any]) -> Body | None:
    """The body among cleaned values, if one was sent."""
    return next((cleaned[name] for name in BODY_FIELDS if name in cleaned), None)


def is_uuid(text: str) -> bool:
    """Whether any spelling of a UUID stands there."""
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def text_of(value: Any, *, longest: int, bytes_: bool = False) -> str:
    """Text without NUL and lone surrogates, of at most `longest` characters or bytes."""
    if not isinstance(value, str):
        raise Refused(_("Text is expected."))
    if "\0" in value:
        raise Refused(_("The text holds a NUL character; no process can be given one."))
    if not ids.is_utf8(value):
        raise Refused(_("The text is not valid Unicode."))
    if bytes_ and len(value.encode()) > longest:
        raise Refused(_("At most %(count)s bytes.") % {"count": f"{longest:,}"})
    if not bytes_ and len(value) > longest:
        raise Refused(_("At most %(count)s characters.") % {"count": f"{longest:,}"})
    return value


def _line(longest: int) -> Rule:
    """One line: no control characters, blanks around it dropped, something left."""

    def rule(value: Any) -> str:
        text = text_of(value, longest=longest).strip()
        if not text or ids.has_control(text):
            raise Refused(_("One line of text is expected."))
        return text

    return rule


def _whole(least: int, most: int) -> Rule:
    def rule(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise Refused(
                _("A whole number from %(least)s to %(most)s.") % {"least": f"{least:,}", "most": f"{most:,}"}
            )
        return value

    return rule


def _default(value: Any, rule: Rule) -> Rule:
    """Null means this value."""
    return lambda given: value if given is None else rule(given)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Refused(_("true or false."))
    return value


def _slug(value: Any) -> str:
    if not isinstance(value, str) or _SLUG.fullmatch(value) is None:
        raise Refused(_("1 to 64 lower-case letters, digits, - and _, with a letter or digit at both ends."))
    if is_uuid(value):
        raise Refused(_("A short name must not look like an id."))
    return value


def _texts(value: Any, *, least: int = 0) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not least <= len(value) <= MAX_ARGS:
        raise Refused(_("A list of texts, at most %(count)s.") % {"count": f"{MAX_ARGS:,}"})
    texts = tuple(text_of(item, longest=MAX_ARG, bytes_=True) for item in value)
    if sum(len(text.encode()) for text in texts) > MAX_ARGS_TOTAL:
        raise Refused(_("At most %(count)s bytes together.") % {"count": f"{MAX_ARGS_TOTAL:,}"})
    return texts


def _command(value: Any) -> Command:
    argv = _texts(value, least=1)
    if not argv[0]:
        raise Refused(_("The first text is the program and must not be empty."))
    return Command(argv)


def _shell(value: Any) -> Shell:
    text = text_of(value, longest=MAX_SHELL, bytes_=True)
    if not text.strip():
        raise Refused(_("There is nothing to run."))
    return Shell(text)


def _script(value: Any) -> Script:
    if not isinstance(value, Mapping) or not {"language", "source"} <= set(value) <= {
        "language",
        "source",
        "args",
    }:
        raise Refused(_("An object with language, source and args is expected."))
    if value["language"] not in LANGUAGES:
        raise Refused(_("The language is python, node, typescript or shell."))
    source = text_of(value["source"], longest=MAX_SOURCE, bytes_=True)
    if not source.strip():
        raise Refused(_("There is nothing to run."))
    args = value.get("args")
    return Script(value["language"], source, _texts([] if args is None else args))


def _hook(value: Any) -> str | None:
    return text_of(value, longest=MAX_SHELL, bytes_=True) or None


def _work_dir(value: Any) -> str:
    text = text_of(value, longest=MAX_WORK_DIR, bytes_=True)
    if not text or ".." in text.split("/"):
        raise Refused(_("An absolute path, or one below the task's own folder without .. in it."))
    return text


def _environment(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > recipes.MAX_BINDINGS:
        raise Refused(_("An object of at most 256 names and texts is expected."))
    for name, content in value.items():
        text_of(content, longest=recipes.MAX_VALUE_BYTES, bytes_=True)
        text_of(name, longest=recipes.MAX_NAME)
        if not name or "=" in name:
            raise Refused(_("A name is 1 to 255 characters without = in it."))
        if name in RESERVED_NAMES:
            raise Refused(_("The panel itself sets one of these names for every run."))
    if sum(len(name.encode()) + len(content.encode()) for name, content in value.items()) > (
        recipes.MAX_TOTAL_BYTES
    ):
        raise Refused(_("At most 262,144 bytes together."))
    return dict(value)


def _labels(value: Any) -> list[str]:
    if not isinstance(value, list | tuple) or len(value) > MAX_LABELS:
        raise Refused(_("A list of at most 32 labels."))
    return list(dict.fromkeys(_line(64)(item) for item in value))


def _concurrency(value: Any) -> str:
    if not isinstance(value, str) or value not in Task.Concurrency.values:
        raise Refused(_("queue, skip, replace or parallel."))
    return value


def _retry(value: Any) -> dict[str, Any] | None:
    """The rule whole, None where nothing is tried again in any other way than by default."""
    try:
        rule = retry.read(value)
    except RuleRefused as refused:
        raise Refused(refused.sentence) from None
    return None if rule == RetryRule() else rule.document()


def _requires(value: Any) -> str:
    try:
        return placement.read(value)
    except placement.NeedRefused as refused:
        raise Refused(refused.sentence) from None


def _limits(value: Any) -> Limits:
    try:
        return limits.read(value)
    except limits.LimitsRefused as refused:
        raise Refused(refused.sentence) from None


def _secrets(value: Any) -> SecretUses:
    try:
        uses = secrets.read(value)
    except secrets.SecretsRefused as refused:
        raise Refused(refused.sentence) from None
    if any({use.variable, use.variable + secrets.FILE} & RESERVED_NAMES for use in uses):
        raise Refused(_("The panel itself sets one of these names for every run."))
    return uses


RULES: dict[str, Rule] = {
    "name": _line(255),
    "slug": _default(None, _slug),
    "description": _default("", lambda value: text_of(value, longest=MAX_DESCRIPTION)),
    "enabled": _default(True, _flag),
    "command": _command,
    "shell": _shell,
    "script": _script,
    "work_dir": _default(None, _work_dir),
    "env": _default({}, _environment),
    "secrets": _default((), _secrets),
    "before": _default(None, _hook),
    "after": _default(None, _hook),
    "timeout_ms": _default(None, _whole(1_000, MAX_TIMEOUT_MS)),
    "kill_grace_ms": _default(DEFAULT_GRACE_MS, _whole(0, 600_000)),
    "log_quota_bytes": _default(DEFAULT_LOG_QUOTA, _whole(65_536, 1_073_741_824)),
    "concurrency": _default(Task.Concurrency.QUEUE.value, _concurrency),
    "max_parallel": _default(1, _whole(1, MAX_PARALLEL)),
    "priority": _default(0, _whole(-1_000, 1_000)),
    "retry": _default(None, _retry),
    "labels": _default([], _labels),
    "requires": _default(placement.ANYWHERE, _requires),
    "limits": _default(limits.NONE, _limits),
    "pinned": _default(False, _flag),
    "requires_approval": _default(False, _flag),
}
