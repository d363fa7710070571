"""Sessions in the database, under a digest of their key: whoever reads the table can take none over."""

from __future__ import annotations

from typing import Any

from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.utils import timezone

from apps.core import canonical

# What the column holds; 160 bits of a digest of 165 random ones.
STORED_LENGTH = 40


class SessionStore(DatabaseStore):
    """Named by SESSION_ENGINE. The key itself is in the cookie only."""

    def _get_session_from_db(self) -> Any:
        key = self.session_key
        live = self.model.objects.filter(session_key=_stored(key), expire_date__gt=timezone.now())
        found = live.first() if key else None
        if found is None:
            self._session_key = None
        return found

    def create_model_instance(self, data: dict[str, Any]) -> Any:
        """The row of this session."""
        row = super().create_model_instance(data)
        row.session_key = _stored(row.session_key)
        return row

    def exists(self, session_key: str) -> bool:
        """Whether there is a session of this key."""
        return super().exists(_stored(session_key))

    def delete(self, session_key: str | None = None) -> None:
        """Ends the session of this key, or this one."""
        key = session_key or self.session_key
        if key is not None:
            super().delete(_stored(key))


def digest_of(key: str | None) -> str:
    """The digest of a key, as the list of live sessions has it; 64 characters."""
    return canonical.sha256(f"session\0{key}")


def _stored(key: str | None) -> str:
    return digest_of(key)[:STORED_LENGTH]
