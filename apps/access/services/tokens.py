"""API tokens: made once, shown once, kept as a digest (api.md, tokens)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.db import DatabaseError
from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _

from apps.access import scopes as scope_rules
from apps.access.errors import ScopeExceeded
from apps.access.models import ApiToken
from apps.audit import services as audit
from apps.core import canonical, clock, db, ids
from apps.core.errors import Busy, InvalidInput, NotFound
from apps.identity.principals import PolicySubject
from apps.projects.policy import decide

PREFIX = "ql3t_"
MAX_LIVE = 100
USE_NOTED_EVERY = timedelta(seconds=60)


@dataclass(frozen=True)
class Created:
    """A new token; `secret` is `ql3t_` and 43 characters, and exists nowhere else."""

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
    maker: scope_rules.Credential,
    origin: str,
) -> Created:
    """A token of `owner`, made with the credential `maker`, which must cover all that the token may.

    Raises NotFound for a project the owner has no role in or the maker cannot reach, InvalidInput (at most 100
    live tokens per owner), and ScopeExceeded.
    """
    # First of all: any other refusal would tell a project that exists from one that does not.
    if project_id is not None and (
        maker.project_id not in (None, project_id)
        or decide(owner, project_id, "project.read").effect != "allow"
    ):
        raise NotFound
    if not ids.is_text_id(name, 128) or not name.strip():
        raise InvalidInput.field("name", _("1 to 128 characters without control characters."))
    wanted = scope_rules.check(scopes)
    now = clock.now()
    if expires_at is not None and expires_at <= now:
        raise InvalidInput.field("expires_at", _("Must be in the future."))
    _check_maker(maker, wanted, project_id, expires_at)
    if _live(owner, now).count() >= MAX_LIVE:
        raise InvalidInput(_("You have 100 tokens; revoke one first."))
    secret = PREFIX + ids.token(32)
    token = ApiToken.objects.create(
        subject_id=owner.id,
        name=name,
        digest=canonical.sha256(secret),
        scopes=wanted,
        project_id=project_id,
        created_at=now,
        expires_at=expires_at,
    )
    _record(owner, "token.created", token, {"name": name, "scopes": wanted, "project": project_id}, origin)
    return Created(token, secret)


@db.write_transaction
def revoke_token(owner: PolicySubject, token_id: UUID, *, maker: scope_rules.Credential, origin: str) -> None:
    """Ends a token of `owner` at once. Raises NotFound for one of somebody else and for one that is ended.

    A credential that is limited to a project ends only tokens of that project.
    """
    mine = ApiToken.objects.filter(subject_id=owner.id, revoked_at=None)
    if maker.project_id is not None:
        mine = mine.filter(project=maker.project_id)
    token = mine.filter(pk=token_id).first()
    if (
        token is None
        or ApiToken.objects.filter(pk=token_id, revoked_at=None).update(revoked_at=clock.now()) != 1
    ):
        raise NotFound
    _record(owner, "token.revoked", token, {"name": token.name}, origin)


def note_use(token: ApiToken, now: datetime) -> None:
    """Remembers that a token is in use; at most one write a minute, and a busy database is no reason to fail."""
    if token.last_used_at is not None and now - token.last_used_at < USE_NOTED_EVERY:
        return
    try:
        _note_use(token.pk, now)
    except (DatabaseError, Busy):
        return


@db.write_transaction
def _note_use(token_id: UUID, now: datetime) -> None:
    stale = Q(last_used_at=None) | Q(last_used_at__lte=now - USE_NOTED_EVERY)
    ApiToken.objects.filter(stale, pk=token_id).update(last_used_at=now)


def _check_maker(
    maker: scope_rules.Credential, wanted: list[str], project_id: str | None, expires_at: datetime | None
) -> None:
    if maker.scopes is None:
        return
    outlives = maker.expires_at is not None and (expires_at is None or expires_at > maker.expires_at)
    wider = maker.project_id is not None and project_id != maker.project_id
    if outlives or wider or not all(maker.covers(scope) for scope in wanted):
        raise ScopeExceeded


def _live(owner: PolicySubject, now: datetime) -> QuerySet[ApiToken]:
    alive = Q(expires_at=None) | Q(expires_at__gt=now)
    return ApiToken.objects.filter(alive, subject_id=owner.id, revoked_at=None)


def _record(
    owner: PolicySubject, action: str, token: ApiToken, metadata: dict[str, object], origin: str
) -> None:
    audit.record(
        audit.INSTANCE,
        actor=owner.pair,
        action=action,
        subject=("token", str(token.pk)),
        metadata=metadata,
        origin=origin,
    )
