"""What a task's processes may use: the limits as a value, with their bounds (api.md, "Task")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

MEMORY_MIN = 16_777_216
MEMORY_MAX = 1_099_511_627_776
# Least and most of each; a hundred percent is one processor.
BOUNDS = {
    "cpu_seconds": (1, 31 * 86_400),
    "cpu_percent": (1, 100_000),
    "memory_bytes": (MEMORY_MIN, MEMORY_MAX),
    "processes": (1, 100_000),
    "open_files": (16, 1_048_576),
}


class LimitsRefused(Exception):
    """Limits that no task may have; carries the sentence."""

    def __init__(self, sentence: str | Promise) -> None:
        self.sentence = sentence
        super().__init__()


@dataclass(frozen=True)
class Limits:
    """None = no limit. `cpu_seconds` is of each process; the others are of all of a run's together where the node
    has control groups, and of each process or user where not.
    """

    cpu_seconds: int | None = None
    cpu_percent: int | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    open_files: int | None = None

    def document(self) -> dict[str, int | None]:
        """All of them, as the API shows them."""
        return asdict(self)

    def template(self) -> dict[str, int]:
        """Those that are set, in their fixed order, as a revision keeps them."""
        return {name: value for name, value in asdict(self).items() if value is not None}


NAMES = tuple(item.name for item in fields(Limits))
NONE = Limits()


def read(value: Any) -> Limits:
    """The limits of a document; what is left out or null is none. Raises LimitsRefused."""
    if not isinstance(value, Mapping) or not set(value) <= set(NAMES):
        raise LimitsRefused(
            _("An object with these fields is expected: %(names)s.") % {"names": ", ".join(NAMES)}
        )
    for name, given in value.items():
        least, most = BOUNDS[name]
        if given is not None and (type(given) is not int or not least <= given <= most):
            raise LimitsRefused(
                _("%(name)s is a whole number from %(least)s to %(most)s.")
                % {"name": name, "least": f"{least:,}", "most": f"{most:,}"}
            )
    return Limits(**value)
