"""Codes: those an app shows for half a minute, and those on paper that work once."""

from __future__ import annotations

import base64
import hmac
import re
import secrets
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar
from urllib.parse import quote, urlencode

from django_otp.oath import hotp
from django_otp_webauthn.models import WebAuthnCredential

from apps.access.errors import FactorPresent, SignInRefused, TooManyAttempts
from apps.access.models import CodeApp, RecoveryCode, User
from apps.audit import services as audit
from apps.core import canonical, clock, db
from apps.core.errors import NotFound
from apps.identity.models import IdentitySubject
from apps.vault import sealing
from apps.vault.models import SealedPayload

PURPOSE = sealing.register_purpose("second-factor")
STEP_S = 30
TOLERANCE = 1
RECOVERY_CODES = 10
ENROLMENT_MAX = timedelta(minutes=30)
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
_CODE = re.compile(r"[0-9]{6}")
_RECOVERY = re.compile(rf"[{_ALPHABET}]{{16}}")
_INSTANCE = "instance"
ORIGIN = "panel"

T = TypeVar("T")


@dataclass(frozen=True)
class Enrolment:
    """A new key that is not yet in use; shown once, in the page that made it."""

    secret: str = field(repr=False)
    uri: str = field(repr=False)


@db.write_transaction
def begin_code_app(user: User, host: str) -> Enrolment:
    """A new key for a person's app; it counts from the first right code on. Raises FactorPresent."""
    _lock(user)
    current = CodeApp.objects.filter(user=user).first()
    if current is not None:
        if current.confirmed:
            raise FactorPresent
        _drop(current)
    secret = base64.b32encode(secrets.token_bytes(20)).decode("ascii")
    sealed = sealing.seal(
        PURPOSE, project_id=_INSTANCE, holder=_holder(user), value=secret, schema_id="code-app.v1"
    )
    CodeApp.objects.create(user=user, name="", confirmed=False, key=sealed, created_at=clock.now())
    return Enrolment(secret, _uri(user, host, secret))


def pending_code_app(user: User, host: str) -> Enrolment | None:
    """The key that was made within 30 minutes and is not in use yet, to be shown again; None without one."""
    app = _begun(user)
    if app is None:
        return None
    secret = sealing.unseal(app.key_id, PURPOSE, project_id=_INSTANCE, holder=_holder(user))
    return Enrolment(secret, _uri(user, host, secret))


def confirm_code_app(user: User, code: str) -> list[str]:
    """Puts the new key to use; returns recovery codes where the person has none, each shown only here.

    Raises NotFound without a begun enrolment of the last 30 minutes, SignInRefused for a wrong code,
    TooManyAttempts.
    """
    return _raised(_confirm(user, code))


@db.write_transaction
def _confirm(user: User, code: str) -> list[str] | Exception:
    _lock(user)
    app = _begun(user)
    if app is None:
        raise NotFound
    refusal = _take(app, code)
    if refusal is not None:
        return refusal
    CodeApp.objects.filter(pk=app.pk).update(confirmed=True)
    _record(user, "factor.added", {"kind": "code_app"})
    return first_recovery_codes(user)


def use_code(user: User, text: str) -> str:
    """Takes a code of the app or a recovery code, each at most once; returns which (`code`, `recovery`).

    Raises SignInRefused and TooManyAttempts; the wait after wrong codes doubles with each.
    """
    plain = re.sub(r"[\s-]", "", text[:64]).lower()
    return _raised(_use(user, plain))


@db.write_transaction
def _use(user: User, plain: str) -> str | Exception:
    if _RECOVERY.fullmatch(plain):
        rows = RecoveryCode.objects.filter(user=user, digest=_digest(user, plain), used_at=None)
        if rows.update(used_at=clock.now()) != 1:
            return SignInRefused()
        _record(user, "factor.recovery_code_used", {"left": recovery_codes_left(user)})
        return "recovery"
    app = db.lock(CodeApp.objects.filter(user=user, confirmed=True)).first()
    if app is None:
        return SignInRefused()
    return _take(app, plain) or "code"


def _take(app: CodeApp, code: str) -> Exception | None:
    """Counts a wrong code and takes a right one; what is raised here would undo the counting."""
    now = clock.now()
    allowed, why = app.verify_is_allowed()
    if not allowed:
        until = (why or {}).get("locked_until", now)
        return TooManyAttempts(retry_after=max(1, round((until - now).total_seconds())))
    key = sealing.unseal(app.key_id, PURPOSE, project_id=_INSTANCE, holder=_holder(app.user))
    step = _matching_step(base64.b32decode(key), code, app.last_step)
    if step is None:
        app.throttling_failure_timestamp = now
        app.throttling_failure_count += 1
        app.save(update_fields=["throttling_failure_timestamp", "throttling_failure_count"])
        return SignInRefused()
    app.throttle_reset(commit=False)
    app.last_step, app.last_used_at = step, now
    app.save(
        update_fields=[
            "last_step",
            "last_used_at",
            "throttling_failure_timestamp",
            "throttling_failure_count",
        ]
    )
    return None


def _matching_step(key: bytes, code: str, last_step: int) -> int | None:
    """The step whose code this is, among the present one and its neighbours that were not used."""
    if _CODE.fullmatch(code) is None:
        return None
    present = clock.now_ms() // (STEP_S * 1000)
    found = None
    for step in range(present - TOLERANCE, present + TOLERANCE + 1):
        right = hmac.compare_digest(f"{hotp(key, step):06d}", code)
        if right and step > last_step and found is None:
            found = step
    return found


@db.write_transaction
def remove_code_app(user: User) -> None:
    """Takes the app away; recovery codes go with the last factor. Raises NotFound."""
    _lock(user)
    app = CodeApp.objects.filter(user=user, confirmed=True).first()
    if app is None:
        raise NotFound
    _drop(app)
    _record(user, "factor.removed", {"kind": "code_app"})
    forget_recovery_codes_without_factor(user)


@db.write_transaction
def renew_recovery_codes(user: User) -> list[str]:
    """Ten new codes in place of all before; raises NotFound without a second factor."""
    _lock(user)
    if not has_second_factor(user):
        raise NotFound
    codes = _new_recovery_codes(user)
    _record(user, "factor.recovery_codes_renewed", {})
    return codes


def first_recovery_codes(user: User) -> list[str]:
    """Codes for somebody whose first factor was just added, inside that transaction; none where there are some."""
    if RecoveryCode.objects.filter(user=user, used_at=None).exists():
        return []
    return _new_recovery_codes(user)


def has_second_factor(user: User) -> bool:
    """Whether the password alone does not sign this person in."""
    passkeys: bool = WebAuthnCredential.objects.filter(user=user, confirmed=True).exists()
    return passkeys or CodeApp.objects.filter(user=user, confirmed=True).exists()


def recovery_codes_left(user: User) -> int:
    """How many recovery codes still work."""
    return RecoveryCode.objects.filter(user=user, used_at=None).count()


def forget_recovery_codes_without_factor(user: User) -> None:
    """Inside a transaction that took a factor away."""
    if not has_second_factor(user):
        RecoveryCode.objects.filter(user=user).delete()


def forget_all(user: User) -> None:
    """Takes app and recovery codes away, inside a transaction of the console's."""
    for app in CodeApp.objects.filter(user=user):
        _drop(app)
    RecoveryCode.objects.filter(user=user).delete()


def _new_recovery_codes(user: User) -> list[str]:
    RecoveryCode.objects.filter(user=user).delete()
    plain = ["".join(secrets.choice(_ALPHABET) for _ in range(16)) for _ in range(RECOVERY_CODES)]
    now = clock.now()
    RecoveryCode.objects.bulk_create(
        [RecoveryCode(user=user, digest=_digest(user, code), created_at=now) for code in plain]
    )
    return ["-".join(code[at : at + 4] for at in range(0, 16, 4)) for code in plain]


def _digest(user: User, plain: str) -> str:
    # 79 random bits each: a plain digest is enough, nobody tries them all.
    return canonical.sha256(f"recovery\0{user.pk}\0{plain}")


def _begun(user: User) -> CodeApp | None:
    since = clock.now() - ENROLMENT_MAX
    found: CodeApp | None = CodeApp.objects.filter(user=user, confirmed=False, created_at__gt=since).first()
    return found


def _uri(user: User, host: str, secret: str) -> str:
    label = quote(f"QingLong:{user.username}@{host}", safe="")
    return f"otpauth://totp/{label}?{urlencode({'secret': secret, 'issuer': 'QingLong'})}"


def _drop(app: CodeApp) -> None:
    CodeApp.objects.filter(pk=app.pk).delete()
    SealedPayload.objects.filter(pk=app.key_id).delete()


def _holder(user: User) -> tuple[str, str]:
    return ("user", user.subject_id)


def _lock(user: User) -> None:
    db.lock(IdentitySubject.objects.filter(pk=user.subject_id)).first()


def _raised(outcome: T | Exception) -> T:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _record(user: User, action: str, metadata: dict[str, object]) -> None:
    subject = ("user", user.subject_id)
    audit.record(
        audit.INSTANCE, actor=subject, action=action, subject=subject, metadata=metadata, origin=ORIGIN
    )
