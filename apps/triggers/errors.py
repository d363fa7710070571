"""Refusals about triggers and their rules."""

from __future__ import annotations

from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from apps.core.errors import Conflict, DomainError, InvalidInput, NotFound


class ScheduleInvalid(InvalidInput):
    """A rule that is not understood, on purpose.

    `extra` says where and why: `reason` (a stable word), `field` (number of the field as typed, from 1; null for
    the rule as a whole), `offset` and `length` in characters of the text as typed.
    """

    code = "schedule_invalid"
    message = _("The schedule is not understood.")

    def __init__(
        self,
        sentence: str | Promise,
        *,
        reason: str,
        field: int | None = None,
        offset: int = 0,
        length: int = 0,
    ) -> None:
        self.sentence = sentence
        place: dict[str, Any] = {"reason": reason, "field": field, "offset": offset, "length": length}
        super().__init__(fields={"schedule": [sentence]}, **place)


class TriggerNotFound(NotFound):
    pass


class TooManyTriggers(Conflict):
    code = "too_many_triggers"
    message = _("The task has as many triggers as a task may have.")


class HookNotFound(NotFound):
    """No such secret; the answer is the same for one that never was, and one that is gone."""


class HookThrottled(DomainError):
    code = "too_many_requests"
    status = 429
    message = _("Too many calls; wait a moment.")


class SignatureInvalid(DomainError):
    code = "signature_invalid"
    status = 401
    message = _("The signature is missing or does not fit the body.")


class TriggerDisabled(Conflict):
    code = "trigger_disabled"
    message = _("The trigger is disabled.")
