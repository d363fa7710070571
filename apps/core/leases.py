"""Leases: who may work on a row, until when, and how everybody else is kept out (upper-floors.md §2).

A claim raises the generation, which is never reset; the fence (row, owner, token, generation) is repeated in
the WHERE of every write of its holder. `expires_at <= now` is expired. A model takes part through a `Shape`
that names its columns, so that tables whose spec prescribes other names use the same four operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from django.db import models
from django.db.models import F, Q, QuerySet

from apps.core import bulk, ids

M = TypeVar("M", bound=models.Model)


class Lease(models.Model):
    """The columns of a lease; either all of the last six are set or none."""

    lease_generation = models.BigIntegerField(default=0)
    lease_owner = models.CharField(max_length=512, null=True, editable=False)  # noqa: DJ001
    lease_token = models.CharField(max_length=64, null=True, editable=False)  # noqa: DJ001
    lease_acquired_at = models.DateTimeField(null=True, editable=False)
    lease_renewed_at = models.DateTimeField(null=True, editable=False)
    lease_expires_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        abstract = True


def consistent(name: str) -> models.CheckConstraint:
    """The rule that a lease is whole or absent, and its times in order."""
    columns = ["lease_owner", "lease_token", "lease_acquired_at", "lease_renewed_at", "lease_expires_at"]
    absent = Q(**{f"{column}__isnull": True for column in columns})
    whole = Q(
        **{f"{column}__isnull": False for column in columns},
        lease_acquired_at__lte=F("lease_renewed_at"),
        lease_renewed_at__lt=F("lease_expires_at"),
    )
    return models.CheckConstraint(condition=absent | whole, name=name)


@dataclass(frozen=True)
class Shape:
    """Which columns of a table play which part."""

    generation: str = "lease_generation"
    owner: str = "lease_owner"
    token: str = "lease_token"  # noqa: S105
    acquired_at: str = "lease_acquired_at"
    renewed_at: str = "lease_renewed_at"
    expires_at: str = "lease_expires_at"


SHAPE = Shape()


@dataclass(frozen=True)
class Claim(Generic[M]):
    """What a holder knows; the token stays out of logs."""

    subject: M
    owner: str
    generation: int
    acquired_at: datetime
    expires_at: datetime
    token: str = field(repr=False)


def claim(
    rows: Iterable[M],
    owner: str,
    ttl_ms: int,
    now: datetime,
    *,
    shape: Shape = SHAPE,
    also: Mapping[str, Any] | None = None,
) -> list[Claim[M]]:
    """Takes each row that is free, expired or already the owner's, conditional on the generation seen.

    `also` is stored with it, by column.
    """
    also = also or {}
    rows = list(rows)
    if not rows:
        return []
    model = type(rows[0])
    expires_at = now + timedelta(milliseconds=ttl_ms)
    made = [
        Claim(row, owner, getattr(row, shape.generation) + 1, now, expires_at, ids.token())
        for row in rows
        if _takeable(row, owner, now, shape)
    ]
    taken = bulk.update_rows(
        model,
        ["pk" if model._meta.pk is None else model._meta.pk.attname],
        [
            shape.generation,
            shape.owner,
            shape.token,
            shape.acquired_at,
            shape.renewed_at,
            shape.expires_at,
            *also,
        ],
        [(c.subject.pk, c.generation, owner, c.token, now, now, expires_at, *also.values()) for c in made],
        # The holder may have renewed since the row was read, which leaves the generation as it was.
        condition=f't."{shape.generation}" = v.c1 - 1 AND (t."{shape.expires_at}" IS NULL'
        f' OR t."{shape.expires_at}" <= v.c4 OR t."{shape.owner}" = v.c2)',
    )
    return [claim for claim in made if claim.subject.pk in taken]


def renew(claims: Sequence[Claim[M]], ttl_ms: int, now: datetime, *, shape: Shape = SHAPE) -> list[Claim[M]]:
    """Extends all claims in one statement and returns those that were lost; only while live."""
    if not claims:
        return []
    model = type(claims[0].subject)
    pk = model._meta.pk.attname
    ttl = timedelta(milliseconds=ttl_ms)
    # A clock that was set back must not renew a lease to before it was acquired.
    at = {id(claim): max(now, claim.acquired_at) for claim in claims}
    kept = bulk.update_rows(
        model,
        [pk, shape.owner, shape.token, shape.generation],
        [shape.renewed_at, shape.expires_at],
        [(c.subject.pk, c.owner, c.token, c.generation, at[id(c)], at[id(c)] + ttl) for c in claims],
        condition=f't."{shape.expires_at}" > v.c4',
    )
    return [claim for claim in claims if claim.subject.pk not in kept]


def release(
    claims: Sequence[Claim[M]], *, shape: Shape = SHAPE, also: Mapping[str, Any] | None = None
) -> list[Claim[M]]:
    """Clears the owner of each claim that nobody replaced and returns these; the generation stays.

    `also` is stored with it, by column: for settling, late too.
    """
    if not claims:
        return []
    also = also or {}
    model = type(claims[0].subject)
    cleared = [shape.owner, shape.token, shape.acquired_at, shape.renewed_at, shape.expires_at]
    done = bulk.update_rows(
        model,
        [model._meta.pk.attname, shape.owner, shape.token, shape.generation],
        [*cleared, *also],
        [
            (c.subject.pk, c.owner, c.token, c.generation, *[None] * len(cleared), *also.values())
            for c in claims
        ],
    )
    return [claim for claim in claims if claim.subject.pk in done]


def live(rows: QuerySet[M], held: Claim[M], now: datetime, *, shape: Shape = SHAPE) -> QuerySet[M]:
    """The row, if the claim still stands now: for work."""
    return unreplaced(rows, held, shape=shape).filter(**{f"{shape.expires_at}__gt": now})


def unreplaced(rows: QuerySet[M], held: Claim[M], *, shape: Shape = SHAPE) -> QuerySet[M]:
    """The row, if nobody claimed it since, expired or not: for settling late."""
    return rows.filter(
        pk=held.subject.pk,
        **{shape.owner: held.owner, shape.token: held.token, shape.generation: held.generation},
    )


def _takeable(row: models.Model, owner: str, now: datetime, shape: Shape) -> bool:
    expires_at: datetime | None = getattr(row, shape.expires_at)
    return expires_at is None or expires_at <= now or getattr(row, shape.owner) == owner
