"""API tokens: made once, shown once, kept as a digest (api.md, tokens)."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.db import DatabaseError
from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _

from apps.access import scopes as scope_rules
from apps.access.addresses import check_networks, lie_in, lies_in
from apps.access.errors import ScopeExceeded
from apps.access.models import ApiToken
from apps.audit import services as audit
from apps.core import canonical, clock, db, ids
from apps.core.errors import Busy, InvalidInput, NotFound, Unauthenticated
from apps.identity import queries as identity
from apps.identity.principals import PolicySubject
from apps.projects.policy import decide

PREFIX = "ql3t_"
CLIENT_PREFIX = "ql3c_"
MAX_LIVE = 100
MAX_ACCESS = 50
ACCESS_LASTS = timedelta(hours=1)
USE_NOTED_EVERY = timedelta(seconds=60)
MAX_OVERLAP = timedelta(days=7)
OVERLAP = timedelta(hours=24)
_KEPT = frozenset({ApiToken.Kind.TOKEN, ApiToken.Kind.CLIENT})


@dataclass(frozen=True)
class Created:
    """A new secret: `ql3t_`, or `ql3c_` for a client, and 43 characters; it exists nowhere else."""

    token: ApiToken
    secret: str = field(repr=False)


@db.write_transaction
def create_token(
    owner: PolicySubject,
    *,
    name: str,
    scopes: Collection[str],
    project_id: str | None = None,
    expires_at: datetime | None = None,
    addresses: Collection[str] = (),
    kind: str = ApiToken.Kind.TOKEN,
    maker: scope_rules.Credential,
    actor: PolicySubject | None = None,
    origin: str,
) -> Created:
    """A token or client secret of `owner`, made with the credential `maker`, which must cover all that it may.

    `addresses` are the only addresses and networks it works from (none: everywhere); `actor` is who makes it,
    where that is not the owner. Raises NotFound for a project the owner has no role in or the maker cannot
    reach, InvalidInput (at most 100 live ones per owner), and ScopeExceeded.
    """
    # First of all: any other refusal would tell a project that exists from one that does not.
    if project_id is not None and (
        maker.project_id not in (None, project_id)
        or decide(owner, project_id, "project.read").effect != "allow"
    ):
        raise NotFound
    if not ids.is_text_id(name, 128) or not name.strip():
        raise InvalidInput.field("name", _("1 to 128 characters without control characters."))
    if kind not in _KEPT:
        raise InvalidInput.field("kind", _("Not a kind of token."))
    wanted = scope_rules.check(scopes)
    networks = check_networks(addresses)
    now = clock.now()
    if expires_at is not None and expires_at <= now:
        raise InvalidInput.field("expires_at", _("Must be in the future."))
    _check_maker(maker, wanted, project_id, expires_at, networks)
    if _live(owner, now).count() >= MAX_LIVE:
        raise InvalidInput(_("You have 100 tokens; revoke one first."))
    secret = _secret(kind)
    token = ApiToken.objects.create(
        subject_id=owner.id,
        kind=kind,
        name=name,
        digest=canonical.sha256(secret),
        scopes=wanted,
        project_id=project_id,
        addresses=networks,
        created_at=now,
        expires_at=expires_at,
    )
    details = {
        "name": name, "kind": kind, "scopes": wanted, "project": project_id, "addresses": networks,
        "owner": owner.id,
    }  # fmt: skip
    _record(actor or owner, "token.created", token, details, origin)
    return Created(token, secret)


@db.write_transaction
def rotate_token(
    owner: PolicySubject,
    token_id: UUID,
    *,
    overlap: timedelta = OVERLAP,
    maker: scope_rules.Credential,
    actor: PolicySubject | None = None,
    origin: str,
) -> Created:
    """A new secret for a token; the one before works for `overlap` more (0 to 7 days), one before that no more.

    All else stays: name, scopes, end. Raises NotFound, InvalidInput, ScopeExceeded.
    """
    if not timedelta(0) <= overlap <= MAX_OVERLAP:
        raise InvalidInput.field("overlap_ms", _("From 0 to 7 days."))
    now = clock.now()
    token = db.lock(_reachable(owner, maker).filter(pk=token_id)).first()
    if token is None or (token.expires_at is not None and token.expires_at <= now):
        raise NotFound
    _check_maker(maker, token.scopes, token.project_id, token.expires_at, token.addresses)
    secret = _secret(token.kind)
    keeps = overlap > timedelta(0)
    token.previous_digest = token.digest if keeps else None
    token.previous_expires_at = now + overlap if keeps else None
    token.digest = canonical.sha256(secret)
    token.save(update_fields=["digest", "previous_digest", "previous_expires_at"])
    details = {"name": token.name, "overlap_ms": int(overlap.total_seconds() * 1000)}
    _record(actor or owner, "token.rotated", token, details, origin)
    return Created(token, secret)


@db.write_transaction
def revoke_token(
    owner: PolicySubject,
    token_id: UUID,
    *,
    maker: scope_rules.Credential,
    actor: PolicySubject | None = None,
    origin: str,
) -> None:
    """Ends a token of `owner`, and what was exchanged for it, at once.

    Raises NotFound for one of somebody else and for one that is ended. A credential that is limited to a project
    ends only tokens of that project.
    """
    token = _reachable(owner, maker).filter(pk=token_id).first()
    now = clock.now()
    ended = ApiToken.objects.filter(pk=token_id, revoked_at=None)
    if token is None or ended.update(revoked_at=now) != 1:
        raise NotFound
    ApiToken.objects.filter(parent=token_id, revoked_at=None).update(revoked_at=now)
    _record(actor or owner, "token.revoked", token, {"name": token.name}, origin)


@db.write_transaction
def exchange(client_id: str, secret: str, scopes: Collection[str] | None, *, address: str) -> Created:
    """An access token of at most an hour for an application's client secret (RFC 6749 §4.4).

    `scopes` None means all that the secret has. Raises Unauthenticated for whatever is wrong with the client, and
    InvalidInput or ScopeExceeded for the scopes. Of more than 50 live ones the oldest ends.
    """
    now = clock.now()
    client = find_token(secret, now) if secret.startswith(CLIENT_PREFIX) else None
    if client is None or not hmac.compare_digest(client.subject_id.encode(), client_id.encode()):
        raise Unauthenticated
    if client.addresses and not lies_in(address, client.addresses):
        raise Unauthenticated
    wanted = client.scopes if scopes is None else scope_rules.check(scopes)
    limits = scope_rules.Credential("token", frozenset(client.scopes), client.project_id)
    if not all(scope in client.scopes or limits.covers(scope) for scope in wanted):
        raise ScopeExceeded
    live = ApiToken.objects.filter(parent=client, revoked_at=None, expires_at__gt=now)
    for extra in live.order_by("-created_at", "-id")[MAX_ACCESS - 1 :]:
        ApiToken.objects.filter(pk=extra.pk).update(revoked_at=now)
    made = PREFIX + ids.token(32)
    ends = now + ACCESS_LASTS
    token = ApiToken.objects.create(
        subject_id=client.subject_id,
        kind=ApiToken.Kind.ACCESS,
        parent=client,
        name=client.name,
        digest=canonical.sha256(made),
        scopes=sorted(wanted),
        project_id=client.project_id,
        addresses=client.addresses,
        created_at=now,
        expires_at=ends if client.expires_at is None else min(ends, client.expires_at),
    )
    _note_use(client.pk, now, address)
    owner = PolicySubject(client.subject.type, client.subject_id)
    _record(owner, "token.exchanged", token, {"client": str(client.pk), "scopes": sorted(wanted)}, "api")
    return Created(token, made)


def find_token(secret: str, now: datetime) -> ApiToken | None:
    """The live token of a secret, with its subject and account, in one query; None for everything else.

    The secret before a rotation finds it too while the overlap lasts. Raises DirectoryUnavailable.
    """
    digest = canonical.sha256(secret)
    rows = ApiToken.objects.select_related("subject__account").filter(
        Q(digest=digest) | Q(previous_digest=digest, previous_expires_at__gt=now)
    )
    token = rows.first()
    if token is None:
        return None
    known = token.digest if token.previous_digest != digest else token.previous_digest
    if not hmac.compare_digest(known, digest):
        return None
    row = token.subject
    subject = identity.checked(row.type, row.id, row.status, row.version)
    dead = token.revoked_at is not None or (token.expires_at is not None and token.expires_at <= now)
    return None if dead or subject.status != "active" else token


@db.write_transaction
def forget_access_tokens(before: datetime, limit: int = 1000) -> int:
    """Deletes exchanged tokens that ended before then; returns how many. The audit trail keeps that they were."""
    rows = ApiToken.objects.filter(kind=ApiToken.Kind.ACCESS, expires_at__lte=before)
    count, _kinds = ApiToken.objects.filter(pk__in=list(rows.values_list("pk", flat=True)[:limit])).delete()
    return count


def note_use(token: ApiToken, now: datetime, address: str) -> None:
    """Remembers that a token is in use; at most one write a minute, and a busy database is no reason to fail."""
    if token.last_used_at is not None and now - token.last_used_at < USE_NOTED_EVERY:
        return
    try:
        _note_use(token.pk, now, address)
    except (DatabaseError, Busy):
        return


@db.write_transaction
def _note_use(token_id: UUID, now: datetime, address: str) -> None:
    stale = Q(last_used_at=None) | Q(last_used_at__lte=now - USE_NOTED_EVERY)
    rows = ApiToken.objects.filter(stale, pk=token_id)
    rows.update(last_used_at=now, last_used_address=address)


def note_refusal(token: ApiToken, now: datetime, address: str) -> None:
    """Remembers for the owner that the right secret came from a wrong address; at most one write a minute."""
    if token.refused_at is not None and now - token.refused_at < USE_NOTED_EVERY:
        return
    try:
        _note_refusal(token.pk, now, address)
    except (DatabaseError, Busy):
        return


@db.write_transaction
def _note_refusal(token_id: UUID, now: datetime, address: str) -> None:
    ApiToken.objects.filter(pk=token_id).update(refused_at=now, refused_address=address)


def _secret(kind: str) -> str:
    return (CLIENT_PREFIX if kind == ApiToken.Kind.CLIENT else PREFIX) + ids.token(32)


def _reachable(owner: PolicySubject, maker: scope_rules.Credential) -> QuerySet[ApiToken]:
    """What `maker` may end or rotate of the owner's; access tokens end by themselves."""
    rows = ApiToken.objects.filter(subject_id=owner.id, revoked_at=None, kind__in=_KEPT)
    return rows if maker.project_id is None else rows.filter(project=maker.project_id)


def _check_maker(
    maker: scope_rules.Credential,
    wanted: list[str],
    project_id: str | None,
    expires_at: datetime | None,
    addresses: list[str],
) -> None:
    if maker.scopes is None:
        return
    outlives = maker.expires_at is not None and (expires_at is None or expires_at > maker.expires_at)
    wider = maker.project_id is not None and project_id != maker.project_id
    further = not lie_in(addresses, maker.addresses)
    if outlives or wider or further or not all(maker.covers(scope) for scope in wanted):
        raise ScopeExceeded


def _live(owner: PolicySubject, now: datetime) -> QuerySet[ApiToken]:
    alive = Q(expires_at=None) | Q(expires_at__gt=now)
    return ApiToken.objects.filter(alive, subject_id=owner.id, revoked_at=None, kind__in=_KEPT)


def _record(
    actor: PolicySubject, action: str, token: ApiToken, metadata: Mapping[str, object], origin: str
) -> None:
    audit.record(
        audit.INSTANCE,
        actor=actor.pair,
        action=action,
        subject=("token", str(token.pk)),
        metadata=metadata,
        origin=origin,
    )
