"""The journal of receipts: which files may lie on a node's disk, and what becomes of them (runs.md §8.3, §8.5)."""

from __future__ import annotations

import logging
from datetime import timedelta
from uuid import UUID

from apps.artifacts.facts import ArtifactFileError
from apps.core import bulk, clock
from apps.core.db import write_transaction
from apps.dispatch.carried import remove_folder
from apps.dispatch.launching import attempt_folder
from apps.dispatch.models import CompletionReceiptJournal
from apps.dispatch.receipts import ReceiptInvalid, ReceiptStore, quarantine_reference
from apps.runs.machine import ATTEMPT_ENDED

PAGE = 64
QUARANTINE_MS = 3_600_000
TERMINAL_MISSING = timedelta(seconds=60)

logger = logging.getLogger("qinglong.dispatch")


def reconcile(node_id: str, store: ReceiptStore) -> int:
    """Resolves rows of attempts that ended: what a session that died in between left behind.

    Its receipt goes first, then the row; a row without a file is kept for 60 s. Receipts that were put aside an
    hour ago go too. Returns how many were resolved.
    """
    now = clock.now()
    rows = (
        CompletionReceiptJournal.objects.filter(
            node_id=node_id, state="pending", attempt__status__in=sorted(ATTEMPT_ENDED)
        )
        .select_related("attempt")
        .order_by("updated_at", "attempt_id")[:PAGE]
    )
    done = []
    for row in rows:
        attempt = row.attempt
        try:
            if attempt.status == "lost" and _left_a_word(store, str(attempt.pk)):
                # A word that came too late is kept as evidence.
                quarantine(attempt.pk, store)
                continue
            if attempt.status != "lost":
                # It holds what the run was given, in the clear.
                remove_folder(attempt_folder(attempt))
            removed = store.remove(str(attempt.pk))
        except (OSError, ArtifactFileError) as error:
            logger.warning("a receipt could not be put away: %s", type(error).__name__)
            continue
        if removed or (attempt.finished_at or attempt.created_at) <= now - TERMINAL_MISSING:
            done.append(attempt.pk)
    done += _purge(node_id, store)
    resolve(done)
    return len(done)


def _purge(node_id: str, store: ReceiptStore) -> list[UUID]:
    """Removes receipts that lay aside for an hour; the move is made up for where a crash prevented it."""
    due = CompletionReceiptJournal.objects.filter(
        node_id=node_id, state="quarantined", purge_after__lte=clock.now()
    ).order_by("updated_at", "attempt_id")
    purged = []
    for attempt_id in due.values_list("attempt_id", flat=True)[:PAGE]:
        try:
            store.quarantine(str(attempt_id))
            store.purge_quarantine(str(attempt_id))
        except (OSError, ArtifactFileError) as error:
            logger.warning("a receipt could not be purged: %s", type(error).__name__)
            continue
        purged.append(attempt_id)
    return purged


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
    """Puts a receipt aside that no attempt accepts: first on record, then the file moves."""
    _mark_quarantined(attempt_id)
    store.quarantine(str(attempt_id))


@write_transaction
def _mark_quarantined(attempt_id: UUID) -> None:
    now = clock.now()
    CompletionReceiptJournal.objects.filter(attempt_id=attempt_id, state="pending").update(
        state="quarantined",
        quarantine_ref=quarantine_reference(str(attempt_id)),
        purge_after=now + timedelta(milliseconds=QUARANTINE_MS),
        updated_at=now,
    )
