"""What becomes of an identity that a provider vouched for: a session, an account, another way in, the right roles.

projects-and-identity.md §6.4: the key is issuer and `sub`; names and addresses decide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError
from django.http import HttpRequest

from apps.access.errors import BoundElsewhere, InvitationRefused, SignInRefused, UsernameTaken
from apps.access.models import Invitation, User
from apps.access.names import is_name, normal
from apps.access.oidc import masks, providers, tokens
from apps.access.oidc.backend import Identity
from apps.access.oidc.errors import CannotLink, NoAccount, NotBegunHere, NotRecent, SingleSignOnFailed
from apps.access.oidc.flow import Flow
from apps.access.oidc.models import KnownIssuer, ProviderSignIn, UsedOnce
from apps.access.queries import find_account
from apps.access.services.bindings import bind_method
from apps.access.services.invitations import accept_with_identity
from apps.access.services.sessions import end_provider_sessions, is_fresh, session_of, sign_in
from apps.audit import services as audit
from apps.core import canonical, clock, db, ids
from apps.core.errors import NotFound, VersionConflict
from apps.identity import services as directory
from apps.identity.principals import PolicySubject
from apps.identity.queries import current_binding, resolve_authentication_subject
from apps.projects import queries as projects
from apps.projects.models import Role
from apps.projects.services import Followed, follow_roles
from qinglong.single_sign_on import Provider

METHOD = "oidc"
ORIGIN = "oidc"
LEEWAY = timedelta(seconds=60)
KEPT = 50
_RANK = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)


@dataclass(frozen=True)
class Completed:
    """A finished flow: whose account it is now, and what happened to the roles."""

    username: str
    linked: bool
    roles: Sequence[Followed]


@db.write_transaction
def use_once(kind: str, value: str, expires_at: datetime) -> bool:
    """Whether `value` was never used before; it is remembered until `expires_at`."""
    UsedOnce.objects.filter(expires_at__lte=clock.now()).delete()
    try:
        with db.savepoint():
            UsedOnce.objects.create(digest=canonical.sha256(f"{kind}\0{value}"), expires_at=expires_at)
    except IntegrityError:
        return False
    return True


def begun(flow: Flow) -> None:
    """Takes the flow's one use; raises NotBegunHere for a second."""
    ends = clock.from_ms(flow.began_ms) + timedelta(minutes=15)
    if not use_once("flow", flow.state, ends):
        raise NotBegunHere("state_used")


def complete(request: HttpRequest, flow: Flow, identity: Identity) -> Completed:
    """Signs the person in, or adds the identity to the account whose session began the flow.

    A new person whom an invitation lets in gets what it promises before the roles of the groups are looked at.

    Raises NoAccount, NotRecent, CannotLink, InvitationRefused, and what `sign_in` and `follow_roles` raise.
    """
    _require_known_issuer(identity.provider)
    asked_at = clock.from_ms(flow.began_ms)
    if flow.fresh and identity.authenticated_at < asked_at - LEEWAY:
        raise NotRecent("authenticated_before")
    if flow.link:
        return _link(request, flow, identity)
    subject = _invited(identity, UUID(flow.invitation)) if flow.invitation else _subject(identity)
    roles = _follow(identity, subject)
    try:
        row = sign_in(
            request,
            subject,
            METHOD,
            identity.assurance,
            provider=identity.provider.key,
            provider_subject=identity.subject,
            authenticated_at=identity.authenticated_at,
            expires_at=clock.now() + timedelta(hours=settings.SINGLE_SIGN_ON.session_hours),
            provider_session=identity.session,
        )
    except SignInRefused:
        raise NoAccount("disabled_meanwhile") from None
    return Completed(row.user.username, False, roles)


def sign_out_by_token(provider: Provider, token: object) -> int:
    """Ends the sessions that a provider's logout token names; returns how many.

    Raises SingleSignOnFailed and its kinds for one that is not right, and (`token_used`) for one that came before.
    """
    claims = tokens.verify_logout_token(provider, token)
    expires_at = clock.from_ms(int(claims["exp"] * 1000)) + 2 * LEEWAY
    if not use_once(f"logout:{provider.alias}", claims["jti"], expires_at):
        raise SingleSignOnFailed("token_used")
    subject, session = claims.get("sub"), claims.get("sid")
    return end_provider_sessions(
        provider.key,
        provider_subject=None if subject is None else providers.provider_subject(provider, subject),
        provider_session=None if session is None else providers.named(provider, session),
        origin=ORIGIN,
    )


def note_success(identity: Identity, done: Completed) -> None:
    """Remembers a sign-in that worked for the login doctor."""
    outcome = ProviderSignIn.Outcome.LINKED if done.linked else ProviderSignIn.Outcome.SIGNED_IN
    _note(identity.provider, outcome, identity, username=done.username, roles=done.roles)


@db.write_transaction
def note_refusal(provider: Provider, failure: SingleSignOnFailed, identity: Identity | None) -> None:
    """Remembers one that did not; whom the provider knows and the panel does not let in is audited too."""
    _note(provider, ProviderSignIn.Outcome.REFUSED, identity, failure=failure)
    if identity is None:
        return
    found = current_binding(provider.key, identity.subject)
    subject = ("identity", identity.subject) if found is None else ("user", found.subject_id)
    audit.record(
        audit.INSTANCE,
        actor=("system", provider.key),
        action="sign_in.refused",
        subject=subject,
        metadata={"method": METHOD, "provider": provider.key, "reason": failure.reason},
        origin=ORIGIN,
    )


@db.write_transaction
def _note(
    provider: Provider,
    outcome: str,
    identity: Identity | None,
    *,
    failure: SingleSignOnFailed | None = None,
    username: str = "",
    roles: Sequence[Followed] = (),
) -> None:
    """One row; 50 that worked and 50 that did not are kept for each provider."""
    ProviderSignIn.objects.create(
        provider=provider.key,
        outcome=outcome,
        reason="" if failure is None else failure.reason[:64],
        reference="" if failure is None else failure.reference,
        username=username,
        skew_ms=getattr(failure, "skew_ms", None) if identity is None else identity.skew_ms,
        claims={} if identity is None else masks.masked(identity.provider, identity.claims),
        roles=[
            {"project": one.project_id, "role": one.role, "previous": one.previous, "changed": one.changed}
            for one in roles
        ],
    )
    rows = ProviderSignIn.objects.filter(provider=provider.key)
    refused = ProviderSignIn.Outcome.REFUSED
    rows = rows.filter(outcome=refused) if outcome == refused else rows.exclude(outcome=refused)
    old = list(rows.order_by("-at", "-id").values_list("pk", flat=True)[KEPT : KEPT * 2])
    ProviderSignIn.objects.filter(pk__in=old).delete()


@db.write_transaction
def accept_issuer(provider: Provider, *, actor: PolicySubject, origin: str) -> None:
    """Says that the people of a provider keep their `sub` under the issuer that is set up now."""
    KnownIssuer.objects.update_or_create(provider=provider.key, defaults={"issuer": provider.issuer})
    audit.record(
        audit.INSTANCE,
        actor=actor.pair,
        action="provider.issuer_accepted",
        subject=("provider", provider.key),
        metadata={"issuer": provider.issuer},
        origin=origin,
    )


def _require_known_issuer(provider: Provider) -> None:
    """Raises SingleSignOnFailed (`issuer_changed`) where the bindings are of people of another issuer."""
    if not KnownIssuer.objects.filter(pk=provider.key).exists():
        _note_issuer(provider)
    if not KnownIssuer.objects.filter(pk=provider.key, issuer=provider.issuer).exists():
        raise SingleSignOnFailed("issuer_changed")


@db.write_transaction
def _note_issuer(provider: Provider) -> None:
    row = KnownIssuer(provider=provider.key, issuer=provider.issuer)
    KnownIssuer.objects.bulk_create([row], ignore_conflicts=True)


def _subject(identity: Identity) -> PolicySubject:
    """The person of an identity; a new one only where the provider may bring people in."""
    if (found := _known(identity)) is not None:
        return found
    reason = "revoked_or_disabled"
    if current_binding(identity.provider.key, identity.subject) is None:
        if not identity.provider.provision:
            raise NoAccount("identity_unknown")
        try:
            return _provision(identity)
        except (IntegrityError, VersionConflict):
            reason = "name_taken_meanwhile"
    # At any step another tab of the same new person may have been faster.
    if (found := _known(identity)) is None:
        raise NoAccount(reason)
    return found


def _invited(identity: Identity, invitation_id: UUID) -> PolicySubject:
    """The new person of an invitation; whoever has just become that in another tab is it here too."""
    try:
        user = accept_with_identity(
            invitation_id,
            identity.provider.key,
            identity.subject,
            lambda suggested: _free_name(suggested or identity.username),
        )
    except (InvitationRefused, UsernameTaken, VersionConflict):
        found = _known(identity)
        if found is None or not Invitation.objects.filter(pk=invitation_id, accepted_by=found.id).exists():
            raise
        return found
    return PolicySubject("user", user.subject_id)


def _known(identity: Identity) -> PolicySubject | None:
    found = resolve_authentication_subject(identity.provider.key, identity.subject)
    return None if found is None else PolicySubject(found.type, found.id)


@db.write_transaction
def _provision(identity: Identity) -> PolicySubject:
    """Account, subject and binding, all or nothing; no role comes with them (§6.4.2)."""
    by = PolicySubject("system", identity.provider.key)
    registered = directory.register_subject("user", actor=by, origin=ORIGIN)
    subject = PolicySubject(registered.type, registered.id)
    user = User(id=ids.uuid7(), username=_free_name(identity.username), subject_id=subject.id)
    user.set_unusable_password()
    user.save(force_insert=True)
    directory.append_authentication_binding(
        identity.provider.key, identity.subject, subject.id, expected_version=0, actor=by, origin=ORIGIN
    )
    audit.record(
        audit.INSTANCE,
        actor=by.pair,
        action="account.created",
        subject=subject.pair,
        metadata={"username": user.username, "administrator": False},
        origin=ORIGIN,
    )
    return subject


def _free_name(wanted: str) -> str:
    """The name itself where it is one and nobody has it, else with a few random letters."""
    name = normal(wanted)
    if is_name(name) and find_account(name) is None:
        return name
    stem = name[:48] if is_name(name[:48]) else "user"
    return f"{stem}-{str(ids.uuid7())[-8:]}"


def _link(request: HttpRequest, flow: Flow, identity: Identity) -> Completed:
    row = session_of(request)
    if row is None or str(row.pk) != flow.link or not is_fresh(request):
        raise CannotLink("session_over_or_old")
    subject = PolicySubject("user", row.user.subject_id)
    try:
        bind_method(identity.provider.key, identity.subject, subject, actor=subject, origin=ORIGIN)
    except BoundElsewhere:
        raise CannotLink("bound_elsewhere") from None
    return Completed(row.user.username, True, _follow(identity, subject))


def _follow(identity: Identity, subject: PolicySubject) -> Sequence[Followed]:
    """The roles of the person's groups, as the map has them now; the strongest of several counts."""
    wanted: dict[str, str] = {}
    for group in sorted(identity.groups & identity.provider.role_map.keys()):
        for reference, role in identity.provider.role_map[group].items():
            try:
                pk = projects.find(reference).pk
            except NotFound:
                continue
            wanted[pk] = max(role, wanted.get(pk, role), key=lambda one: _RANK.index(Role(one)))
    return follow_roles(subject, identity.provider.key, wanted)
