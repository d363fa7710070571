"""Texts of forms as values, and values as texts."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.core.errors import InvalidInput

_LARGEST = 10**15
NO_NUMBER = gettext_lazy("A number is expected.")
NO_OBJECT = gettext_lazy("A JSON object is expected.")


def scaled(text: str, factor: int) -> int | None:
    """`1.5` times a factor as a whole number, None for no text; raises ValueError for what is no number."""
    if not text.strip():
        return None
    try:
        number = Decimal(text.strip()) * factor
    except InvalidOperation:
        raise ValueError from None
    if not number.is_finite() or abs(number) > _LARGEST:
        raise ValueError
    return int(number.to_integral_value())


def unscaled(value: int | None, factor: int) -> str:
    """The text that `scaled` reads as this value; none for None."""
    if value is None:
        return ""
    return f"{Decimal(value) / factor:f}".rstrip("0").rstrip(".") if value % factor else str(value // factor)


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object of a text, None for no text; raises ValueError for anything else."""
    if not text.strip():
        return None
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError from None
    if not isinstance(value, dict):
        raise ValueError
    return value


def version(request: HttpRequest) -> int:
    """The version a form was opened with; raises InvalidInput."""
    text = request.POST.get("version", "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidInput.field("version", _("The form is not complete; reload the page."))
    return int(text)
