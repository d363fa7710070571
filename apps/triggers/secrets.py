"""Webhook secrets: only their digest is stored. Keys of signatures are sealed, as they must be read again."""

from __future__ import annotations

import hmac

from apps.core import canonical, ids
from apps.triggers.models import Trigger
from apps.vault import sealing
from apps.vault.models import SealedPayload

PREFIX = "ql3h_"
KEY_PREFIX = "ql3s_"
PURPOSE = sealing.register_purpose("trigger.signing-key")
_SCHEMA = "trigger.signing-key.v1"


def fresh(trigger: Trigger, *, signed: bool) -> tuple[str, str | None]:
    """Gives the trigger a new secret and, if signed, a new key; returns both, to be shown once."""
    secret = PREFIX + ids.token(32)
    trigger.secret_digest = digest(secret)
    trigger.signing_key_ref = None
    if not signed:
        return secret, None
    key = KEY_PREFIX + ids.token(32)
    row = sealing.seal(
        PURPOSE,
        project_id=trigger.project_id,
        holder=("trigger", str(trigger.pk)),
        value=key,
        schema_id=_SCHEMA,
    )
    trigger.signing_key_ref = row.pk
    return secret, key


def forget(trigger: Trigger) -> None:
    """Removes the sealed key."""
    if trigger.signing_key_ref is not None:
        SealedPayload.objects.filter(pk=trigger.signing_key_ref).delete()


def digest(secret: str) -> str:
    """What is stored of a secret."""
    return canonical.sha256(secret)


def signature(trigger: Trigger, body: bytes) -> str:
    """The right signature of a body, `sha256=<hex>`; raises what `sealing.unseal` raises."""
    assert trigger.signing_key_ref is not None
    key = sealing.unseal(
        trigger.signing_key_ref,
        PURPOSE,
        project_id=trigger.project_id,
        holder=("trigger", str(trigger.pk)),
    )
    return "sha256=" + hmac.new(str(key).encode(), body, "sha256").hexdigest()
