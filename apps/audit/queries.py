"""Reading the audit trail: pages newest first, and the proof that nothing was changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime

from django.db.models import Max, QuerySet

from apps.audit.documents import document
from apps.audit.models import AuditChain, AuditEntry
from apps.core import chain, pages

BATCH = 500


@dataclass(frozen=True)
class Wanted:
    """Which entries: of one action, of one actor (its id), from `since` on, before `until`."""

    action: str | None = None
    actor: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def of(self, scope: str) -> QuerySet[AuditEntry]:
        """The entries of a scope."""
        asked = {
            "action": self.action,
            "actor_id": self.actor,
            "occurred_at__gte": self.since,
            "occurred_at__lt": self.until,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        return AuditEntry.objects.filter(scope=scope, **given)

    def named(self) -> dict[str, str]:
        """As a cursor is bound to it."""
        return {name: str(value or "") for name, value in asdict(self).items()}


def page(
    scope: str, wanted: Wanted = Wanted(), *, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None
) -> pages.Page[AuditEntry]:
    """Entries of one scope, newest first; raises `CursorInvalid` and `CursorMismatch`."""
    return pages.paginate(
        wanted.of(scope),
        [pages.Key("sequence", descending=True)],
        kind="audit",
        scope={"scope": scope, **wanted.named()},
        limit=limit,
        cursor=cursor,
    )


def walk(scope: str, wanted: Wanted = Wanted()) -> Iterator[AuditEntry]:
    """Every entry there is now, oldest first; never loads more than a batch, and ends however fast the trail grows."""
    rows = wanted.of(scope)
    return _batched(rows, rows.aggregate(newest=Max("sequence"))["newest"] or 0)


def verify(scope: str) -> chain.Verdict:
    """Walks the whole chain of a scope in batches against its head; never loads more than a batch."""
    # Rows before the head: an append between the two reads then shows in the head, never only in the rows.
    newest = AuditEntry.objects.filter(scope=scope).aggregate(newest=Max("sequence"))["newest"] or 0
    head = AuditChain.objects.filter(scope=scope).values_list("sequence", "hash").first() or (0, None)
    entries = _batched(AuditEntry.objects.filter(scope=scope), max(newest, head[0]))
    links = (chain.Link(one.sequence, one.previous_hash, one.hash, document(one)) for one in entries)
    return chain.verify(links, head)


def _batched(rows: QuerySet[AuditEntry], last: int) -> Iterator[AuditEntry]:
    after = 0
    while batch := list(rows.filter(sequence__gt=after, sequence__lte=last).order_by("sequence")[:BATCH]):
        yield from batch
        after = batch[-1].sequence
