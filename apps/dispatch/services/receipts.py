"""The journal of receipts: which files may lie on a node's disk, and what becomes of them (runs.md §8.3, §8.5)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Q

from apps.artifacts.facts import ArtifactFileError
from apps.core import bulk, clock
from apps.core.db import write_transaction
from apps.core.errors import InvalidInput
from apps.dispatch import predecessors
from apps.dispatch.carried import remove_folder
from apps.dispatch.errors import ReceiptJournalConflict
from apps.dispatch.launching import attempt_folder
from apps.dispatch.models import CompletionReceiptJournal
from apps.dispatch.receipts import QUARANTINE, ReceiptInvalid, ReceiptStore, quarantine_reference
from apps.runs.machine import ATTEMPT_ENDED
from apps.runs.retries import NEVER_STARTED

PAGE = 32
MAX_PAGE = 128
QUARANTINE_FOR = timedelta(minutes=60)
TERMINAL_MISSING = timedelta(seconds=60)

Position = tuple[datetime, UUID]

logger = logging.getLogger("qinglong.dispatch")


@dataclass(frozen=True)
class JournalPage:
    """`next_cursor` stands behind every page that is not empty."""

    rows: tuple[CompletionReceiptJournal, ...] = ()
    truncated: bool = False
    next_cursor: Position | None = None


def list_candidates(
    node_id: str, now: datetime, *, after: Position | None = None, limit: int = PAGE
) -> JournalPage:
    """What is to be put in order on a node, the oldest first, each with its attempt; `limit` is 1–128.

    That are rows of attempts that ended, and what lies aside and is to be purged; rows of attempts that live are
    their sessions'. Raises InvalidInput.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput.field("limit", f"A whole number from 1 to {MAX_PAGE}.")
    rows = CompletionReceiptJournal.objects.filter(
        Q(state="pending", attempt__status__in=sorted(ATTEMPT_ENDED))
        | Q(state="quarantined", purge_after__lte=now),
        node_id=node_id,
    )
    if after is not None:
        rows = rows.filter(Q(updated_at__gt=after[0]) | Q(updated_at=after[0], attempt_id__gt=after[1]))
    found = list(rows.select_related("attempt").order_by("updated_at", "attempt_id")[: limit + 1])
    truncated = len(found) > limit
    del found[limit:]
    cursor = (found[-1].updated_at, found[-1].attempt_id) if found else None
    return JournalPage(tuple(found), truncated, cursor)


@dataclass(frozen=True)
class Scanned:
    """One page of the scanner: how many rows it resolved, and where it goes on; None behind the last page."""

    resolved: int
    next_cursor: Position | None


def scan(node_id: str, store: ReceiptStore, after: Position | None = None) -> Scanned:
    """Puts one page in order: what a session that died in between left behind, and what lay aside for its time.

    A receipt goes first, then its row; a row without a file is kept for 60 s. What cannot be removed costs the
    others nothing: the next page begins behind it.
    """
    now = clock.now()
    page = list_candidates(node_id, now, after=after, limit=MAX_PAGE)
    done = []
    for row in page.rows:
        try:
            resolved = _purge(row, store) if row.state == "quarantined" else _put_away(row, store, now)
        except (OSError, ArtifactFileError) as error:
            logger.warning("a receipt could not be put away: %s", type(error).__name__)
            continue
        if resolved:
            done.append(row.attempt_id)
    resolve(done)
    return Scanned(len(done), page.next_cursor if page.truncated else None)


def _put_away(row: CompletionReceiptJournal, store: ReceiptStore, now: datetime) -> bool:
    attempt = row.attempt
    if attempt.status == "lost" and predecessors.stop_lost(attempt):
        return False
    if attempt.status == "lost" and _left_a_word(store, str(attempt.pk)):
        # A word that came too late is kept as evidence.
        quarantine(attempt.pk, store)
        return False
    if attempt.status != "lost" or attempt.error_code == NEVER_STARTED:
        # It holds what the run was given, in the clear. Of a lost one something may still run in it (orphans.py),
        # but for those of which it is proven that they were never let go.
        remove_folder(attempt_folder(attempt))
    removed = store.remove(str(attempt.pk))
    return removed or (attempt.finished_at or attempt.created_at) <= now - TERMINAL_MISSING


def _purge(row: CompletionReceiptJournal, store: ReceiptStore) -> bool:
    """The move is made up for where a crash prevented it."""
    store.quarantine(str(row.attempt_id))
    store.purge_quarantine(str(row.attempt_id))
    return True


def _left_a_word(store: ReceiptStore, attempt_id: str) -> bool:
    try:
        return store.read(attempt_id) is not None
    except ReceiptInvalid:
        return True


@write_transaction
def resolve(attempt_ids: list[UUID]) -> None:
    """Settles journal rows whose files are gone."""
    if attempt_ids:
        bulk.delete_rows(CompletionReceiptJournal, "attempt_id", attempt_ids)


def quarantine(attempt_id: UUID, store: ReceiptStore) -> None:
    """Puts a receipt aside that no attempt accepts: first on record, then the file moves. Repeatable (§18.11)."""
    now = clock.now()
    try:
        mark_quarantined(attempt_id, quarantine_reference(str(attempt_id)), now, now + QUARANTINE_FOR)
    except ReceiptJournalConflict:
        logger.error("a receipt that nobody accepts has no row in the journal")
    store.quarantine(str(attempt_id))


@write_transaction
def mark_quarantined(attempt_id: UUID, reference: str, updated_at: datetime, purge_after: datetime) -> None:
    """Writes down that a receipt is put aside; a second time changes nothing, its first purge time stays.

    Raises InvalidInput, and ReceiptJournalConflict where the row is missing or names another place.
    """
    inside = reference.startswith(f"{QUARANTINE}/") and len(reference) <= 255
    if not inside or any(part in reference for part in ("..", "\\", "\0")):
        raise InvalidInput.field("quarantine_ref", "A place in the quarantine, at most 255 characters.")
    if purge_after < updated_at:
        raise InvalidInput.field("purge_after", "Not before the receipt was put aside.")
    rows = CompletionReceiptJournal.objects.filter(attempt_id=attempt_id)
    changed = rows.filter(state="pending").update(
        state="quarantined", quarantine_ref=reference, purge_after=purge_after, updated_at=updated_at
    )
    if not changed and not rows.filter(quarantine_ref=reference).exists():
        raise ReceiptJournalConflict
