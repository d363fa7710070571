"""Reading request bodies: bounded, strict JSON that both databases can store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from django.conf import settings
from django.utils.translation import gettext_lazy as _
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from apps.core import canonical, ids
from apps.core.errors import TooLarge


class StrictJSONParser(BaseParser):
    """JSON in UTF-8 of at most `DATA_UPLOAD_MAX_MEMORY_SIZE` bytes.

    Duplicate keys, NaN, lone surrogates and U+0000 are refused: each would mean something else, or nothing, on
    one of the databases. Raises ParseError (400 `invalid_json`) and TooLarge.
    """

    media_type = "application/json"
    # A view whose own rules look at every text turns this off, so that its refusal names the field.
    checks_text = True

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        raw = stream.read(limit + 1)
        if len(raw) > limit:
            raise TooLarge
        try:
            value = canonical.loads(raw.decode())
        except (UnicodeDecodeError, canonical.NotCanonical) as error:
            raise ParseError(_("The body is not valid JSON.")) from error
        if self.checks_text and b"\\u" in raw and not _storable(value):
            raise ParseError(_("The body holds characters that are not text."))
        return value


def _storable(value: Any) -> bool:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if "\0" in item or not ids.is_utf8(item):
                return False
        elif isinstance(item, dict):
            waiting.extend(item.keys())
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return True
