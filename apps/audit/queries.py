"""Reading the audit trail: pages newest first, and the proof that nothing was changed."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Max

from apps.audit.documents import document
from apps.audit.models import AuditChain, AuditEntry
from apps.core import chain, pages

BATCH = 500


def page(
    scope: str,
    *,
    action: str | None = None,
    limit: int = pages.DEFAULT_LIMIT,
    cursor: str | None = None,
) -> pages.Page[AuditEntry]:
    """Entries of one scope, newest first; raises `CursorInvalid` and `CursorMismatch`."""
    rows = AuditEntry.objects.filter(scope=scope)
    if action:
        rows = rows.filter(action=action)
    return pages.paginate(
        rows,
        [pages.Key("sequence", descending=True)],
        kind="audit",
        scope={"scope": scope, "action": action or ""},
        limit=limit,
        cursor=cursor,
    )


def verify(scope: str) -> chain.Verdict:
    """Walks the whole chain of a scope in batches against its head; never loads more than a batch."""
    # Rows before the head: an append between the two reads then shows in the head, never only in the rows.
    newest = AuditEntry.objects.filter(scope=scope).aggregate(newest=Max("sequence"))["newest"] or 0
    head = AuditChain.objects.filter(scope=scope).values_list("sequence", "hash").first() or (0, None)
    return chain.verify(_links(scope, max(newest, head[0])), head)


def _links(scope: str, last: int) -> Iterator[chain.Link]:
    after = 0
    while batch := list(
        AuditEntry.objects.filter(scope=scope, sequence__gt=after, sequence__lte=last).order_by("sequence")[
            :BATCH
        ]
    ):
        for entry in batch:
            yield chain.Link(entry.sequence, entry.previous_hash, entry.hash, document(entry))
        after = batch[-1].sequence
