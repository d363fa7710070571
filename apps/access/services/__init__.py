"""Every write of sign-in: accounts, sessions, tokens."""

from __future__ import annotations

from apps.access.services.accounts import create_account, provision_person, setup_first_account
from apps.access.services.bindings import bind_method, revoke_method
from apps.access.services.passwords import check_password, sign_in_with_password
from apps.access.services.sessions import (
    end_provider_sessions,
    end_session,
    end_sessions,
    is_fresh,
    refresh_session,
    require_fresh,
    session_of,
    sign_in,
    sign_out,
)
from apps.access.services.tokens import Created, create_token, note_use, revoke_token

__all__ = [
    "Created",
    "bind_method",
    "check_password",
    "create_account",
    "create_token",
    "end_provider_sessions",
    "end_session",
    "end_sessions",
    "is_fresh",
    "note_use",
    "provision_person",
    "refresh_session",
    "require_fresh",
    "revoke_method",
    "revoke_token",
    "session_of",
    "setup_first_account",
    "sign_in",
    "sign_in_with_password",
    "sign_out",
]
