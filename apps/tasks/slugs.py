"""Short names: made from the name of a task where nobody chose one."""

from __future__ import annotations

import secrets
import string
from collections.abc import Container

from django.utils.text import slugify

from apps.tasks.validation import is_uuid

MAX_SLUG = 64
# Room for the number that tells two tasks of one name apart.
_MAX_BASE = 58


def from_name(name: str) -> str:
    """The base of a short name; `task-` and four letters where nothing of the name can stay."""
    base = slugify(name)[:_MAX_BASE].strip("-_")
    if not base:
        return "task-" + "".join(secrets.choice(string.ascii_lowercase) for _ in range(4))
    return f"task-{base}" if is_uuid(base) else base


def free(base: str, taken: Container[str]) -> str:
    """`base`, or `base-2`, `base-3` … : the first that is not taken."""
    if base not in taken:
        return base
    number = 2
    while f"{base[:_MAX_BASE]}-{number}" in taken:
        number += 1
    return f"{base[:_MAX_BASE]}-{number}"
