"""Which workers may carry a task's runs: the labels they must have, as a value and as its key (api.md, "Task").

The key is the canonical JSON of the labels, empty for none: equal needs have equal keys, on tasks and on runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from apps.core import canonical, ids

ANYWHERE = ""
MAX_LABELS = 16
MAX_VALUE = 256
MAX_KEY_BYTES = 1_024
_NAME = re.compile(r"[a-z0-9][a-z0-9._/-]{0,127}")


class NeedRefused(Exception):
    """A need that no task may have; carries the sentence."""

    def __init__(self, sentence: str | Promise) -> None:
        self.sentence = sentence
        super().__init__()


def read(value: Any) -> str:
    """The key of `{"labels": {name: value}}`; what is left out is nothing. Raises NeedRefused."""
    if not isinstance(value, Mapping) or not set(value) <= {"labels"}:
        raise NeedRefused(_("An object with labels is expected."))
    labels = value.get("labels", {})
    if not isinstance(labels, Mapping) or len(labels) > MAX_LABELS:
        raise NeedRefused(_("labels is an object of at most 16 names and values."))
    for name, content in labels.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise NeedRefused(
                _("The name of a label is 1 to 128 lower-case letters, digits, and . _ / - after the first.")
            )
        if not isinstance(content, str) or len(content) > MAX_VALUE or not ids.is_utf8(content):
            raise NeedRefused(_("The value of a label is text of at most 256 characters."))
        if ids.has_control(content) or content != content.strip() or {",", "，"} & set(content):
            raise NeedRefused(
                _("The value of a label has no comma, no control character, and no blank at its ends.")
            )
    key = key_of(labels)
    if len(key.encode()) > MAX_KEY_BYTES:
        raise NeedRefused(_("The labels have at most 1,024 bytes together."))
    return key


def key_of(labels: Mapping[str, str]) -> str:
    """The key of labels that are known to be good."""
    return canonical.dumps(labels) if labels else ANYWHERE


def labels_of(key: str) -> dict[str, str]:
    """The labels of a key."""
    return json.loads(key) if key else {}


def document(key: str) -> dict[str, Any]:
    """The need as the API shows it."""
    return {"labels": labels_of(key)}


def fits(key: str, offered: Mapping[str, str]) -> bool:
    """Whether a worker with these labels has all that the key asks for."""
    return not key or labels_of(key).items() <= offered.items()
