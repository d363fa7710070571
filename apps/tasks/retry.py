"""What of a task's runs is tried again by itself: the rule as a value, with its bounds (runs.md §3.4, api.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

MAX_ATTEMPTS = 16
MAX_BACKOFF_MS = 86_400_000
MAX_EXIT_CODES = 32
SAFETIES = ("unknown", "idempotent", "deduplicated")


class RuleRefused(Exception):
    """A rule that no run may get; carries the sentence."""

    def __init__(self, sentence: str | Promise) -> None:
        self.sentence = sentence
        super().__init__()


@dataclass(frozen=True)
class RetryRule:
    """At most `max_attempts` in all; a lost attempt is followed by another only where `safety` is known.

    `retry_exit_codes` narrows what is tried again after a failure; none = any exit code but 0. Waits double from
    `backoff_base_ms` up to `backoff_max_ms`.
    """

    max_attempts: int = 1
    retry_on_lost: bool = False
    safety: str = "unknown"
    backoff_base_ms: int = 0
    backoff_max_ms: int = 0
    retry_on_failure: bool = False
    retry_exit_codes: tuple[int, ...] = ()

    def document(self) -> dict[str, Any]:
        """The rule as the API shows it and a task keeps it."""
        return asdict(self) | {"retry_exit_codes": list(self.retry_exit_codes)}


NAMES = tuple(item.name for item in fields(RetryRule))


def read(value: Any) -> RetryRule:
    """The rule of a document; what is left out has its default. Raises RuleRefused."""
    if not isinstance(value, Mapping) or not set(value) <= set(NAMES):
        raise RuleRefused(
            _("An object with these fields is expected: %(names)s.") % {"names": ", ".join(NAMES)}
        )
    rule = RetryRule(**(dict(value) | {"retry_exit_codes": _exit_codes(value.get("retry_exit_codes", []))}))
    if type(rule.max_attempts) is not int or not 1 <= rule.max_attempts <= MAX_ATTEMPTS:
        raise RuleRefused(_("max_attempts is a whole number from 1 to 16."))
    if not isinstance(rule.retry_on_lost, bool) or not isinstance(rule.retry_on_failure, bool):
        raise RuleRefused(_("retry_on_lost and retry_on_failure are true or false."))
    if not isinstance(rule.safety, str) or rule.safety not in SAFETIES:
        raise RuleRefused(_("safety is unknown, idempotent or deduplicated."))
    waits = (rule.backoff_base_ms, rule.backoff_max_ms)
    if any(type(wait) is not int for wait in waits) or not 0 <= waits[0] <= waits[1] <= MAX_BACKOFF_MS:
        raise RuleRefused(
            _("The waits are whole numbers from 0 to 86,400,000, the first not above the longest.")
        )
    if rule.retry_on_lost and rule.max_attempts > 1 and rule.safety == "unknown":
        raise RuleRefused(
            _(
                "A lost run is only tried again where running it twice is safe: say idempotent or deduplicated."
            )
        )
    return rule


def _exit_codes(value: Any) -> tuple[int, ...]:
    if (
        not isinstance(value, list | tuple)
        or len(value) > MAX_EXIT_CODES
        or any(type(code) is not int or not 1 <= code <= 255 for code in value)
    ):
        raise RuleRefused(_("retry_exit_codes are at most 32 whole numbers from 1 to 255."))
    return tuple(sorted(set(value)))
