"""References of secrets: the text that stands where a value would (secrets-and-artifacts.md §3.2)."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext_lazy as _

from apps.core import canonical, ids
from apps.core.errors import InvalidInput
from apps.core.fields import MAX_VERSION

PREFIX = "qlsecret:v1:"
MAX_LENGTH = 512
MAX_NAME = 128
# What API, pages and tasks take; a reference may hold any name without control characters.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ENCODED = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Reference:
    """One secret of one project: the version that is current when it is resolved, or exactly that one.

    Raises InvalidInput for what no secret can be called and for a text beyond 512 characters.
    """

    project_id: str = field(repr=False)
    name: str = field(repr=False)
    version: int | None = None

    def __post_init__(self) -> None:
        check_name(self.project_id, self.name)
        if self.version is not None and not is_version(self.version):
            raise InvalidInput.field("version", _("Not a version."))
        if len(self.text) > MAX_LENGTH:
            raise InvalidInput.field("name", _("The name is too long."))

    @property
    def text(self) -> str:
        """What stands in recipes."""
        document: dict[str, Any] = {"project_id": self.project_id, "name": self.name}
        if self.version is not None:
            document["version"] = self.version
        encoded = base64.urlsafe_b64encode(canonical.ordered(document).encode()).rstrip(b"=")
        return PREFIX + encoded.decode("ascii")


def parse(text: object) -> Reference:
    """The reference of a text; raises InvalidInput for any text but the one that `Reference.text` gives."""
    if not isinstance(text, str) or len(text) > MAX_LENGTH or not text.startswith(PREFIX):
        raise InvalidInput
    encoded = text.removeprefix(PREFIX)
    if _ENCODED.fullmatch(encoded) is None:
        raise InvalidInput
    try:
        document = canonical.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except ValueError:
        raise InvalidInput from None
    if not isinstance(document, dict) or not {"project_id", "name"} <= set(document) <= {
        "project_id", "name", "version",
    }:  # fmt: skip
        raise InvalidInput
    if "version" in document and document["version"] is None:
        raise InvalidInput
    found = Reference(document["project_id"], document["name"], document.get("version"))
    if found.text != text:
        raise InvalidInput
    return found


def check_name(project_id: object, name: object) -> None:
    """Raises InvalidInput unless both are 1–128 characters without control characters."""
    if not ids.is_text_id(project_id, MAX_NAME):
        raise InvalidInput.field("project_id", _("Not a project id."))
    if not ids.is_text_id(name, MAX_NAME):
        raise InvalidInput.field("name", _("1 to 128 characters."))


def is_version(value: object) -> bool:
    """Whether this can be the version of an envelope."""
    return type(value) is int and 1 <= value <= MAX_VERSION
