"""Every write of sign-in: accounts, sessions, tokens."""

from __future__ import annotations

from apps.access.services.accounts import create_account, setup_first_account
from apps.access.services.sessions import AUTHENTICATED_AT, is_fresh, sign_in, sign_out
from apps.access.services.tokens import Created, create_token, note_use, revoke_token

__all__ = [
    "AUTHENTICATED_AT",
    "Created",
    "create_account",
    "create_token",
    "is_fresh",
    "note_use",
    "revoke_token",
    "setup_first_account",
    "sign_in",
    "sign_out",
]
