"""How the first owner comes in: a one-time challenge from the local console (§3.3, §5.3, §5.4).

Nothing that answers HTTP may call `issue_owner_bootstrap` or build its issuer.
"""

from __future__ import annotations

import functools
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, ParamSpec, TypeVar

from django.db import DatabaseError
from django.utils.translation import gettext_lazy as _

from apps.audit import services as audit
from apps.core import canonical, clock, db, ids
from apps.core.errors import Busy, InvalidInput
from apps.core.fields import MAX_VERSION
from apps.identity.principals import Assurance, PolicySubject, Principal
from apps.projects import queries
from apps.projects.errors import (
    BootstrapChallengeActive,
    BootstrapClaimRejected,
    BootstrapNotPristine,
    BootstrapProjectInactive,
    BootstrapProjectNotFound,
    BootstrapUnauthorized,
    BootstrapUnavailable,
    PolicyUnavailable,
)
from apps.projects.models import Project, ProjectOwnerBootstrapChallenge, ProjectRoleBinding, Role
from apps.projects.services.roles import Binding, append_role_binding, stored_binding

DOMAIN = "qinglong3-owner-bootstrap-v1"
ISSUER = PolicySubject("system", "owner-bootstrap")
DEFAULT_TTL_MS = 600_000
SHORTEST_TTL_MS = 60_000
LONGEST_TTL_MS = 1_800_000
CHALLENGE_ID = re.compile(r"[A-Za-z0-9_-]{22}")
TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_DIGEST = re.compile(r"[0-9a-f]{64}")

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Issued:
    """A fresh challenge. The token exists here and nowhere else; it cannot be shown again."""

    project_id: str
    challenge_id: str
    token: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True)
class Claim:
    """`existing` repeats the historical first-owner fact; it does not prove who is owner now."""

    outcome: Literal["claimed", "existing"]
    binding: Binding


def _unavailable(function: Callable[P, R]) -> Callable[P, R]:
    """Turns what nobody foresaw in storage into one fixed refusal."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (DatabaseError, Busy, PolicyUnavailable) as error:
            raise BootstrapUnavailable from error

    return run


def token_digest(project_id: str, challenge_id: str, token: str) -> str:
    """The only trace of a token that is stored; lower-case hex SHA-256 (§5.3)."""
    return canonical.domain_digest(DOMAIN, project_id, challenge_id, token)


def console_issuer() -> Principal:
    """The issuer that a command at the local console acts as; good for one minute."""
    now = clock.now()
    return Principal(
        ISSUER, "console:owner-bootstrap", now, now + timedelta(minutes=1), Assurance.LOCAL_CONSOLE
    )


@_unavailable
def issue_owner_bootstrap(project_id: str, issuer: Principal, *, ttl_ms: int = DEFAULT_TTL_MS) -> Issued:
    """Issues a challenge that lives `ttl_ms` milliseconds (60,000 … 1,800,000).

    Raises PrincipalExpired, BootstrapUnauthorized, InvalidInput, BootstrapProjectNotFound,
    BootstrapProjectInactive, BootstrapNotPristine, BootstrapChallengeActive, BootstrapUnavailable.
    """
    _check_project_id(project_id)
    now = clock.now()
    issuer.require_active(now)
    if issuer.subject != ISSUER or issuer.assurance != Assurance.LOCAL_CONSOLE:
        raise BootstrapUnauthorized
    whole = isinstance(ttl_ms, int) and not isinstance(ttl_ms, bool)
    if not whole or not SHORTEST_TTL_MS <= ttl_ms <= LONGEST_TTL_MS:
        raise InvalidInput.field("ttl_ms", _("From 60,000 to 1,800,000 milliseconds."))
    challenge_id, token = ids.token(16), ids.token(32)
    expires_at = now + timedelta(milliseconds=ttl_ms)
    _issue(project_id, challenge_id, token_digest(project_id, challenge_id, token), now, expires_at)
    return Issued(project_id, challenge_id, token, expires_at)


@db.write_transaction
def _issue(
    project_id: str, challenge_id: str, digest: str, issued_at: datetime, expires_at: datetime
) -> None:
    _active_project(project_id)
    if not queries.is_claimable(project_id):
        raise BootstrapNotPristine
    latest = queries.latest_challenge(project_id)
    if latest is not None:
        _check_stored(latest)
        if latest.consumed_at is not None:
            raise BootstrapNotPristine
        if latest.expires_at > issued_at:
            raise BootstrapChallengeActive
    version = 1 if latest is None else latest.version + 1
    if version > MAX_VERSION:
        raise BootstrapUnavailable
    ProjectOwnerBootstrapChallenge.objects.create(
        project_id=project_id,
        version=version,
        challenge_id=challenge_id,
        token_digest=digest,
        issued_at=issued_at,
        expires_at=expires_at,
    )
    audit.record(
        project_id,
        actor=ISSUER.pair,
        action="owner-bootstrap.issued",
        subject=("project", project_id),
        metadata={"version": version, "challenge_id": challenge_id},
        origin="console",
    )


@_unavailable
def claim_owner_bootstrap(project_id: str, challenge_id: str, token: str, principal: Principal) -> Claim:
    """Makes the principal's subject the first owner; the subject comes from nowhere else.

    A repeated claim by the same subject is `existing`, also after expiry. Raises InvalidInput,
    PrincipalExpired, BootstrapUnauthorized (not a user), BootstrapProjectNotFound, BootstrapProjectInactive,
    BootstrapClaimRejected (never says why), BootstrapNotPristine, BootstrapUnavailable.
    """
    _check_project_id(project_id)
    if not isinstance(token, str) or TOKEN.fullmatch(token) is None:
        raise InvalidInput.field("token", _("Not a set-up token."))
    if not isinstance(challenge_id, str) or CHALLENGE_ID.fullmatch(challenge_id) is None:
        raise InvalidInput.field("challenge_id", _("Not a set-up token."))
    now = clock.now()
    principal.require_active(now)
    if principal.subject.type != "user":
        raise BootstrapUnauthorized
    digest = token_digest(project_id, challenge_id, token)
    return _claim(project_id, challenge_id, digest, principal.subject, now)


@db.write_transaction
def _claim(project_id: str, challenge_id: str, digest: str, subject: PolicySubject, now: datetime) -> Claim:
    _active_project(project_id)
    latest = queries.latest_challenge(project_id)
    if latest is None:
        raise BootstrapClaimRejected
    _check_stored(latest)
    same = hmac.compare_digest(bytes.fromhex(latest.token_digest), bytes.fromhex(digest))
    if not same or latest.challenge_id != challenge_id:
        raise BootstrapClaimRejected
    if latest.consumed_at is not None:
        return _replayed(latest, subject)
    if not latest.issued_at <= now < latest.expires_at:
        raise BootstrapClaimRejected
    if not queries.is_claimable(project_id):
        raise BootstrapNotPristine
    return _consume(latest, subject, now)


def _consume(latest: ProjectOwnerBootstrapChallenge, subject: PolicySubject, now: datetime) -> Claim:
    changed = ProjectOwnerBootstrapChallenge.objects.filter(
        pk=latest.pk, version=latest.version, challenge_id=latest.challenge_id, consumed_at=None
    ).update(consumed_at=now, claimed_subject_type=subject.type, claimed_subject_id=subject.id)
    if changed != 1:
        raise BootstrapUnavailable
    owner = Binding(
        latest.project_id, subject, 1, str(Role.OWNER), _mutation_id(latest.challenge_id), ISSUER, now
    )
    append_role_binding(0, owner)
    audit.record(
        latest.project_id,
        actor=subject.pair,
        action="owner-bootstrap.claimed",
        subject=("project", latest.project_id),
        metadata={"version": latest.version, "challenge_id": latest.challenge_id},
        origin="bootstrap",
    )
    return Claim("claimed", owner)


def _replayed(latest: ProjectOwnerBootstrapChallenge, subject: PolicySubject) -> Claim:
    if (latest.claimed_subject_type, latest.claimed_subject_id) != subject.pair:
        raise BootstrapClaimRejected
    row = ProjectRoleBinding.objects.filter(
        project=latest.project_id, mutation_id=_mutation_id(latest.challenge_id)
    ).first()
    owner = None if row is None else stored_binding(row)
    if owner is None or owner.subject != subject or owner.role != Role.OWNER:
        raise BootstrapUnavailable
    return Claim("existing", owner)


def _active_project(project_id: str) -> None:
    project = db.lock(Project.objects.filter(pk=project_id)).first()
    if project is None:
        raise BootstrapProjectNotFound
    if project.status != Project.Status.ACTIVE:
        raise BootstrapProjectInactive


def _check_stored(row: ProjectOwnerBootstrapChallenge) -> None:
    claim = (row.consumed_at, row.claimed_subject_type, row.claimed_subject_id)
    sound = (
        row.version >= 1
        and CHALLENGE_ID.fullmatch(row.challenge_id) is not None
        and _DIGEST.fullmatch(row.token_digest) is not None
        and row.expires_at > row.issued_at
        and (all(part is None for part in claim) or all(part is not None for part in claim))
    )
    if not sound:
        raise BootstrapUnavailable


def _check_project_id(project_id: str) -> None:
    if not ids.is_text_id(project_id, 128):
        raise InvalidInput.field("project_id", _("Not a project id."))


def _mutation_id(challenge_id: str) -> str:
    return f"owner-bootstrap:{challenge_id}"
