"""Removes what a settled attempt left on disk: at once where that is next to nothing, else beside the loop.

Files cost a busy disk more than rows a database, and a script may leave a million of them. Most leave none: two
system calls are cheaper than waking a thread, with which the loop would then share its interpreter.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from uuid import UUID

from apps.core import ids
from apps.dispatch.carried import remove_folder
from apps.dispatch.receipts import ReceiptStore

logger = logging.getLogger("qinglong.dispatch")

_BATCH = 64
_PATIENCE_S = 1.0


class Cleaner:
    """One thread that touches files only; a crash leaves files that the next session's reconciling removes."""

    def __init__(self, receipts: ReceiptStore) -> None:
        self._receipts = receipts
        self._waiting: queue.SimpleQueue[tuple[UUID | None, str] | None] = queue.SimpleQueue()
        self._removed: queue.SimpleQueue[UUID] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, attempt_id: UUID | None, folder: str) -> None:
        """Takes over the receipt and the folder of an attempt whose end is on record; without an id the folder only."""
        if self._remove_empty(attempt_id, folder):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="cleaner", daemon=True)
            self._thread.start()
        self._waiting.put((attempt_id, folder))

    def removed(self) -> list[UUID]:
        """Attempts whose receipts are gone since the last call: their journal rows may go."""
        found = []
        while not self._removed.empty():
            found.append(self._removed.get())
        return found

    def close(self) -> None:
        """Waits a moment for what was taken over; what is left then is the next session's to reconcile."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(_PATIENCE_S)
            self._thread = None

    def _remove_empty(self, attempt_id: UUID | None, folder: str) -> bool:
        try:
            os.rmdir(folder)  # noqa: PTH106
            if attempt_id is not None and self._receipts.remove_all([ids.text(attempt_id)]):
                self._removed.put(attempt_id)
        except OSError:
            return False
        return True

    def _work(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first]
            while len(batch) < _BATCH and not self._waiting.empty():
                more = self._waiting.get()
                if more is None:
                    self._waiting.put(None)
                    break
                batch.append(more)
            self._remove(batch)

    def _remove(self, batch: list[tuple[UUID | None, str]]) -> None:
        for _attempt_id, folder in batch:
            remove_folder(folder)
        try:
            gone = self._receipts.remove_all([str(attempt_id) for attempt_id, _folder in batch if attempt_id])
        except OSError as error:
            logger.warning("receipts could not be removed: %s", type(error).__name__)
            return
        for attempt_id, _folder in batch:
            if attempt_id and str(attempt_id) in gone:
                self._removed.put(attempt_id)
