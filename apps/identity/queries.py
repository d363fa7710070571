"""Looking people up; what decides access is one query, fails closed (projects-and-identity.md §5.5)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import DatabaseError
from django.db.models import Exists, OuterRef, Subquery
from django.utils.translation import gettext_lazy as _

from apps.core import ids
from apps.core.errors import InvalidInput
from apps.identity.errors import DirectoryUnavailable
from apps.identity.models import IdentityAuthenticationBinding, IdentitySubject, SubjectType

_PROVIDER = re.compile(r"[a-z][a-z0-9_:-]{0,63}")
_PROVIDER_SUBJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass(frozen=True)
class Subject:
    """A subject of the directory, as it was when it was read."""

    type: str
    id: str
    status: str
    version: int


@dataclass(frozen=True)
class Bound:
    """The newest version of the tie between an external identity and a subject."""

    provider: str
    provider_subject: str
    version: int
    state: str
    subject_id: str
    created_at: datetime


def check_provider(provider: str, provider_subject: str) -> None:
    """Raises InvalidInput unless both follow §3.5."""
    if not isinstance(provider, str) or _PROVIDER.fullmatch(provider) is None:
        raise InvalidInput.field("provider", _("Not a provider."))
    if not isinstance(provider_subject, str) or _PROVIDER_SUBJECT.fullmatch(provider_subject) is None:
        raise InvalidInput.field("provider_subject", _("Not a subject of a provider."))


def find_subject(subject_id: str) -> Subject | None:
    """The subject with this id, whatever its status; raises DirectoryUnavailable."""
    if not ids.is_text_id(subject_id, 255):
        return None
    try:
        row = IdentitySubject.objects.filter(pk=subject_id).first()
    except DatabaseError as error:
        raise DirectoryUnavailable from error
    return None if row is None else checked(row.type, row.id, row.status, row.version)


def resolve_authentication_subject(provider: str, provider_subject: str) -> Subject | None:
    """The active user that an external identity stands for now, or None; one query.

    Raises InvalidInput before any query, and DirectoryUnavailable for corrupt or unreachable rows.
    """
    check_provider(provider, provider_subject)
    # Not a join: that would be an inner one, and a binding without its subject would look like no binding.
    person = IdentitySubject.objects.filter(pk=OuterRef("subject_id"))
    columns = {
        f"person_{name}": Subquery(person.values(name)) for name in ("type", "id", "status", "version")
    }
    try:
        row = (
            IdentityAuthenticationBinding.objects.filter(provider=provider, provider_subject=provider_subject)
            .annotate(**columns)
            .order_by("-version")
            .values_list("state", "version", "subject_id", *columns)
            .first()
        )
    except DatabaseError as error:
        raise DirectoryUnavailable from error
    if row is None:
        return None
    state, version, bound_to, *subject = row
    if state not in IdentityAuthenticationBinding.State.values or version < 1 or subject[1] != bound_to:
        raise DirectoryUnavailable
    found = checked(*subject)
    active = state == "active" and found.status == "active" and found.type == SubjectType.USER
    return found if active else None


def current_binding(provider: str, provider_subject: str) -> Bound | None:
    """The newest version of one binding, revoked or not; raises InvalidInput and DirectoryUnavailable."""
    check_provider(provider, provider_subject)
    rows = IdentityAuthenticationBinding.objects.filter(provider=provider, provider_subject=provider_subject)
    try:
        row = rows.order_by("-version").first()
    except DatabaseError as error:
        raise DirectoryUnavailable from error
    return None if row is None else _bound(row)


def bindings_of(subject_id: str) -> list[Bound]:
    """Every way a subject can sign in now, oldest first; raises DirectoryUnavailable."""
    later = IdentityAuthenticationBinding.objects.filter(
        provider=OuterRef("provider"),
        provider_subject=OuterRef("provider_subject"),
        version__gt=OuterRef("version"),
    )
    rows = IdentityAuthenticationBinding.objects.filter(
        ~Exists(later), subject=subject_id, state=IdentityAuthenticationBinding.State.ACTIVE
    )
    try:
        return [_bound(row) for row in rows.order_by("created_at", "id")]
    except DatabaseError as error:
        raise DirectoryUnavailable from error


def _bound(row: IdentityAuthenticationBinding) -> Bound:
    if row.state not in IdentityAuthenticationBinding.State.values or row.version < 1:
        raise DirectoryUnavailable
    return Bound(row.provider, row.provider_subject, row.version, row.state, row.subject_id, row.created_at)


def checked(kind: Any, subject_id: Any, status: Any, version: Any) -> Subject:
    """A subject out of stored columns; raises DirectoryUnavailable where they break their rules."""
    right = (
        kind in SubjectType.values
        and ids.is_text_id(subject_id, 255)
        and status in IdentitySubject.Status.values
        and isinstance(version, int)
        and version >= 1
    )
    if not right:
        raise DirectoryUnavailable
    return Subject(kind, subject_id, status, version)
