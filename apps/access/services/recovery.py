"""From the console: a way in again for somebody who lost the password or the second factor."""

from __future__ import annotations

from apps.access.backends import PROVIDER
from apps.access.factors import codes, passkeys
from apps.access.models import User
from apps.access.services.bindings import bind_method
from apps.access.services.passwords import encode
from apps.access.services.sessions import end_sessions
from apps.audit import services as audit
from apps.core import db
from apps.identity.principals import PolicySubject

CONSOLE = PolicySubject("system", "console")
ORIGIN = "command"


def reset_password(user: User, password: str, *, forget_factors: bool = False) -> None:
    """A new password for a person, who needs no session for it; every session ends.

    With `forget_factors` app, passkeys and recovery codes are gone too. A person who came by a provider only has
    this as a further way to sign in. For the console alone: no route calls it. Raises InvalidInput.
    """
    _reset(user, encode(user.username, password), forget_factors)


@db.write_transaction
def _reset(user: User, encoded: str, forget_factors: bool) -> None:
    subject = PolicySubject("user", user.subject_id)
    User.objects.filter(pk=user.pk).update(password=encoded)
    bind_method(PROVIDER, str(user.pk), subject, actor=CONSOLE, origin=ORIGIN)
    if forget_factors:
        passkeys.remove_all(user)
        codes.forget_all(user)
    audit.record(
        audit.INSTANCE,
        actor=CONSOLE.pair,
        action="password.reset",
        subject=subject.pair,
        metadata={"factors_forgotten": forget_factors},
        origin=ORIGIN,
    )
    end_sessions(user.subject_id, actor=CONSOLE, origin=ORIGIN)
