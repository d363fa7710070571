"""Counts of what should be rare: logs that were cut or have gaps, and reads that found nothing where something was."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

from django.db import DatabaseError

from apps.artifacts.models import ArtifactTally
from apps.core import bulk, clock, ids
from apps.core.db import write_transaction
from apps.core.errors import DomainError

Kind = ArtifactTally.Kind

# What a shim says of a log.
OF_LOG = {"cut": str(Kind.QUOTA_HIT), "incomplete": str(Kind.INCOMPLETE)}

logger = logging.getLogger("qinglong.artifacts")

_ADD = "ON CONFLICT (day, kind) DO UPDATE SET count = artifact_tallies.count + EXCLUDED.count"


def add_later(counts: Mapping[str, int], now: datetime) -> None:
    """Adds to the counts of the day, in the caller's transaction; no statement for none."""
    rows = [(ids.uuid7(), now.date(), kind, count) for kind, count in sorted(counts.items())]
    bulk.insert_or_update_later(ArtifactTally, ["id", "day", "kind", "count"], rows, _ADD)


def missing_read() -> None:
    """Counts a read whose file is gone without a rule that removed it; the reader learns of nothing else."""
    try:
        _add({Kind.MISSING_READ: 1})
    except (DatabaseError, DomainError) as error:
        logger.warning("a missing artifact was not counted: %s", type(error).__name__)


@write_transaction
def _add(counts: Mapping[str, int]) -> None:
    add_later(counts, clock.now())


def today() -> dict[str, float]:
    """The counts of this day (UTC), every kind."""
    rows = ArtifactTally.objects.filter(day=clock.now().date()).values_list("kind", "count")
    found = dict(rows)
    return {str(kind): float(found.get(kind, 0)) for kind in Kind.values}
