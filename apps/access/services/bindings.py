"""Ways to sign in that a person adds and takes away; a session ends with the way it came by (§6.3)."""

from __future__ import annotations

from apps.access.errors import BoundElsewhere, LastMethod
from apps.access.services.sessions import end_sessions
from apps.core import db
from apps.core.errors import NotFound
from apps.identity import queries as identity
from apps.identity import services as directory
from apps.identity.principals import PolicySubject
from apps.projects.services import follow_roles
from apps.projects.services.derived import SOURCES


@db.write_transaction
def bind_method(
    provider: str, provider_subject: str, subject: PolicySubject, *, actor: PolicySubject, origin: str
) -> int:
    """Lets an external identity sign in `subject`; again changes nothing. Returns the binding's version.

    Raises BoundElsewhere while it is bound to somebody else, NotFound for an unknown subject.
    """
    current = identity.current_binding(provider, provider_subject)
    if current is not None and current.state == "active":
        if current.subject_id != subject.id:
            raise BoundElsewhere
        return current.version
    return directory.append_authentication_binding(
        provider,
        provider_subject,
        subject.id,
        expected_version=0 if current is None else current.version,
        actor=actor,
        origin=origin,
    )


@db.write_transaction
def revoke_method(
    provider: str,
    provider_subject: str,
    subject: PolicySubject,
    *,
    actor: PolicySubject,
    origin: str,
    even_last: bool = False,
) -> int:
    """Takes a way to sign in from `subject`, the sessions that came by it and the roles that followed from it.

    Returns the new version.

    Raises NotFound unless it is an active one of theirs, and LastMethod for their only one unless `even_last`.
    """
    current = identity.current_binding(provider, provider_subject)
    if current is None or current.state != "active" or current.subject_id != subject.id:
        raise NotFound
    if not even_last and len(identity.bindings_of(subject.id)) < 2:
        raise LastMethod
    version = directory.append_authentication_binding(
        provider,
        provider_subject,
        subject.id,
        expected_version=current.version,
        state="revoked",
        actor=actor,
        origin=origin,
    )
    end_sessions(subject.id, actor=actor, origin=origin, provider=provider, provider_subject=provider_subject)
    if provider.startswith(SOURCES) and all(
        left.provider != provider for left in identity.bindings_of(subject.id)
    ):
        # Nobody would look at them again.
        follow_roles(subject, provider, {})
    return version
