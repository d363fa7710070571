"""Passkeys: adding, using and removing them. Each is a sign-in method of its own with its own binding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError
from django.http import HttpRequest
from django_otp_webauthn.exceptions import OTPWebAuthnApiError
from django_otp_webauthn.helpers import WebAuthnHelper
from django_otp_webauthn.models import WebAuthnAttestation, WebAuthnCredential
from webauthn.helpers.exceptions import WebAuthnException

from apps.access.addresses import host_of, is_address, origin_of
from apps.access.errors import PasskeyRefused
from apps.access.factors import codes
from apps.access.models import User
from apps.access.services.bindings import bind_method, revoke_method
from apps.access.services.sessions import session_of
from apps.audit import services as audit
from apps.core import clock, db, ids
from apps.core.errors import InvalidInput, NotFound
from apps.identity.principals import Assurance, PolicySubject

PROVIDER = "passkey"
MAX_PASSKEYS = 20
ANSWER_WITHIN_MS = 300_000
MAX_ANSWER = 65_536
_STATE = "passkey"


class Helper(WebAuthnHelper):  # type: ignore[misc]
    """The library's ceremonies, with the origin of this installation."""

    def get_allowed_origins(self) -> list[str]:
        """The one origin that people use."""
        return [origin_of(self.request)]


def begin_adding(request: HttpRequest, user: User) -> dict[str, Any]:
    """What the browser needs to make a passkey; the answer is good for five minutes. Raises InvalidInput."""
    if WebAuthnCredential.objects.filter(user=user).count() >= MAX_PASSKEYS:
        raise InvalidInput.field("name", "20")
    options, state = Helper(request).register_begin(user)
    return _remember(request, options, state, "add", user)


def add(request: HttpRequest, user: User, name: str, answer: str) -> list[str]:
    """Stores the passkey that the browser made, and binds it; returns first recovery codes, shown only here.

    Raises PasskeyRefused and InvalidInput.
    """
    label = name.strip()
    if not ids.is_text_id(label, 64):
        raise InvalidInput.field("name", "64")
    state = _recall(request, "add", user)
    data = _read(answer)
    return _add(request, user, label, state, data)


@db.write_transaction
def _add(
    request: HttpRequest, user: User, name: str, state: dict[str, Any], data: dict[str, Any]
) -> list[str]:
    try:
        with db.savepoint():
            made = Helper(request).register_complete(user, state, data)
    except (WebAuthnException, OTPWebAuthnApiError, IntegrityError, ValueError, KeyError, TypeError) as error:
        raise PasskeyRefused from error
    WebAuthnCredential.objects.filter(pk=made.pk).update(name=name)
    subject = PolicySubject("user", user.subject_id)
    bind_method(PROVIDER, made.credential_id_sha256, subject, actor=subject, origin=codes.ORIGIN)
    _record(user, "factor.added", name)
    return codes.first_recovery_codes(user)


def begin_using(request: HttpRequest, user: User | None) -> dict[str, Any]:
    """What the browser needs to use a passkey: one of `user`, or of whoever has one that needs no name.

    Alone it must check the person (PIN, finger); behind a password having it is enough.
    """
    options, state = Helper(request).authenticate_begin(user, require_user_verification=user is None)
    return _remember(request, options, state, "use", user)


def use(request: HttpRequest, user: User | None, answer: str) -> tuple[User, str, Assurance]:
    """The person, the binding's name and how sure it is now; raises PasskeyRefused.

    A passkey that its maker keeps in one device counts as `hardware`, one that is copied between devices as
    `multi_factor`. A counter that goes back is refused: the passkey was copied.
    """
    state = _recall(request, "use", user)
    return _use(request, user, state, _read(answer))


@db.write_transaction
def _use(
    request: HttpRequest, user: User | None, state: dict[str, Any], data: dict[str, Any]
) -> tuple[User, str, Assurance]:
    try:
        used = Helper(request).authenticate_complete(user, state, data)
    except (WebAuthnException, OTPWebAuthnApiError, ValueError, KeyError, TypeError) as error:
        raise PasskeyRefused from error
    sure = Assurance.MULTI_FACTOR if used.backup_eligible else Assurance.HARDWARE
    return used.user, used.credential_id_sha256, sure


@db.write_transaction
def remove(user: User, passkey_id: int) -> None:
    """Takes a passkey away and ends the sessions that came by it. Raises NotFound, LastMethod."""
    found = WebAuthnCredential.objects.filter(pk=passkey_id, user=user).first()
    if found is None:
        raise NotFound
    subject = PolicySubject("user", user.subject_id)
    revoke_method(PROVIDER, found.credential_id_sha256, subject, actor=subject, origin=codes.ORIGIN)
    WebAuthnAttestation.objects.filter(credential=found.pk).delete()
    WebAuthnCredential.objects.filter(pk=found.pk).delete()
    _record(user, "factor.removed", found.name)
    codes.forget_recovery_codes_without_factor(user)


@db.write_transaction
def remove_all(user: User) -> None:
    """Takes every passkey away; the caller has seen to another way to sign in."""
    for one in passkeys_of(user):
        remove(user, one.pk)


def are_possible(request: HttpRequest) -> bool:
    """Whether browsers make passkeys here: they belong to a host name, never to an address."""
    return not is_address(host_of(request))


def are_in_use(request: HttpRequest) -> bool:
    """Whether the door needs to offer them at all."""
    return are_possible(request) and WebAuthnCredential.objects.exists()


def passkeys_of(user: User) -> list[WebAuthnCredential]:
    """A person's passkeys, oldest first."""
    return list(WebAuthnCredential.objects.filter(user=user).order_by("created_at", "pk"))


def _remember(
    request: HttpRequest, options: dict[str, Any], state: dict[str, Any], what: str, user: User | None
) -> dict[str, Any]:
    who = str(user.pk) if user else ""
    if session_of(request) is None:
        # Strangers may ask for one too; what that leaves behind goes soon.
        request.session.set_expiry(2 * ANSWER_WITHIN_MS // 1000)
    request.session[_STATE] = {"state": state, "for": [what, who], "at": clock.now_ms()}
    return options


def _recall(request: HttpRequest, what: str, user: User | None) -> dict[str, Any]:
    """The challenge of this browser, once; raises PasskeyRefused for none, another's or an old one."""
    kept = request.session.pop(_STATE, None)
    if not isinstance(kept, Mapping) or kept.get("for") != [what, str(user.pk) if user else ""]:
        raise PasskeyRefused
    if not 0 <= clock.now_ms() - kept["at"] < ANSWER_WITHIN_MS:
        raise PasskeyRefused
    return dict(kept["state"])


def _read(answer: str) -> dict[str, Any]:
    if len(answer) > MAX_ANSWER:
        raise PasskeyRefused
    try:
        data = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise PasskeyRefused from error
    if not isinstance(data, dict):
        raise PasskeyRefused
    return data


def _record(user: User, action: str, name: str) -> None:
    subject = ("user", user.subject_id)
    metadata = {"kind": PROVIDER, "name": name}
    audit.record(
        audit.INSTANCE, actor=subject, action=action, subject=subject, metadata=metadata, origin=codes.ORIGIN
    )
