"""Every write of sign-in: accounts, sessions, factors, tokens, applications."""

from __future__ import annotations

from apps.access.services.accounts import create_account, provision_person, setup_first_account
from apps.access.services.applications import create_application, update_application
from apps.access.services.bindings import bind_method, revoke_method
from apps.access.services.invitations import Made, accept_with_password, find_open, invite, revoke_invitation
from apps.access.services.passwords import change_password, check_password
from apps.access.services.people import change_person
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
from apps.access.services.tokens import (
    Created,
    create_token,
    exchange,
    find_token,
    note_refusal,
    note_use,
    revoke_token,
    rotate_token,
)

__all__ = [
    "Created",
    "Made",
    "accept_with_password",
    "bind_method",
    "change_password",
    "change_person",
    "check_password",
    "create_account",
    "create_application",
    "create_token",
    "end_provider_sessions",
    "end_session",
    "end_sessions",
    "exchange",
    "find_open",
    "find_token",
    "invite",
    "is_fresh",
    "note_refusal",
    "note_use",
    "provision_person",
    "refresh_session",
    "require_fresh",
    "revoke_invitation",
    "revoke_method",
    "revoke_token",
    "rotate_token",
    "session_of",
    "setup_first_account",
    "sign_in",
    "sign_out",
    "update_application",
]
