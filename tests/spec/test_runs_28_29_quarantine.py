"""spec/runs.md §19, scenarios 28 and 29: receipts that nobody believes, and crashes in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apps.core import clock
from apps.dispatch.errors import CompletionSequence, CompletionUnauthorized
from apps.dispatch.fence import LeaseFence, WorkerFence
from apps.dispatch.models import CompletionReceiptJournal
from apps.dispatch.receipts import Receipt, ReceiptStore, quarantine_reference
from apps.dispatch.services import passes, receipts
from apps.dispatch.services.completion import End
from apps.dispatch.services.passes import News
from tests.runs import kit

pytestmark = pytest.mark.django_db
HOUR_MS = 3_600_000


@pytest.fixture
def store(tmp_path: Path) -> ReceiptStore:
    return ReceiptStore(str(tmp_path / "receipts"))


def started() -> tuple[WorkerFence, LeaseFence]:
    fence = kit.worker()
    lease = kit.claimed(fence, kit.run_of(kit.task()))
    kit.advance(fence, lease)
    return fence, lease


def receipt(lease: LeaseFence, **changes: Any) -> Receipt:
    at = clock.now_ms()
    values = {
        "run_id": str(lease.run_id), "attempt_id": str(lease.attempt_id), "callback_sequence": 1,
        "token": kit.TOKEN, "started_at_ms": at, "finished_at_ms": at, "exit_code": 0,
    }  # fmt: skip
    return Receipt(**{**values, **changes})


def settle(fence: WorkerFence, lease: LeaseFence, of: Receipt) -> Any:
    done = passes.store(fence, News(ended=[passes.Ended(lease, End(of))], slots=8), kit.TTL_MS)
    return done.refused.get(lease.attempt_id)


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"token": "x" * 43}, CompletionUnauthorized), ({"callback_sequence": 2}, CompletionSequence)],
)
def test_runs_28_wrong_token_or_sequence(
    time: Any, store: ReceiptStore, changes: dict[str, Any], error: Any
) -> None:
    fence, lease = started()
    name, version = str(lease.attempt_id), kit.fresh(lease.run_id).version
    false = receipt(lease, **changes)
    store.publish(false)
    assert isinstance(settle(fence, lease, false), error)
    assert kit.fresh(lease.run_id).version == version and kit.attempt_of(lease.run_id).status == "running"
    receipts.quarantine(lease.attempt_id, store)
    row = CompletionReceiptJournal.objects.get()
    assert (row.state, row.quarantine_ref) == ("quarantined", f".quarantine/{name[-2:]}/{name}.json")
    assert store.read(name) is None
    time.advance(HOUR_MS - 1)
    assert receipts.scan(kit.NODE, store).resolved == 0
    time.advance(1)
    assert receipts.scan(kit.NODE, store).resolved == 1
    assert not store.purge_quarantine(name) and not CompletionReceiptJournal.objects.exists()


def test_runs_29_replay_after_the_end_was_stored(time: Any, store: ReceiptStore) -> None:
    fence, lease = started()
    word = receipt(lease)
    store.publish(word)
    assert settle(fence, lease, word) is None
    version = kit.fresh(lease.run_id).version
    assert receipts.scan(kit.NODE, store).resolved == 1
    assert store.read(str(lease.attempt_id)) is None
    assert not CompletionReceiptJournal.objects.exists()
    assert kit.fresh(lease.run_id).version == version
    kit.check_history(lease.run_id)


def test_runs_29_a_missing_file_is_waited_for(time: Any, store: ReceiptStore) -> None:
    fence, lease = started()
    settle(fence, lease, receipt(lease))
    time.advance(59_999)
    assert receipts.scan(kit.NODE, store).resolved == 0
    time.advance(1)
    assert receipts.scan("f" * 32, store).resolved == 0
    assert receipts.scan(kit.NODE, store).resolved == 1


def test_runs_29_crash_between_marking_and_moving(time: Any, store: ReceiptStore, tmp_path: Path) -> None:
    _fence, lease = started()
    store.publish(receipt(lease, token="x" * 43))
    now = clock.now()
    receipts.mark_quarantined(
        lease.attempt_id, quarantine_reference(str(lease.attempt_id)), now, now + receipts.QUARANTINE_FOR
    )
    assert store.read(str(lease.attempt_id)) is not None
    time.advance(HOUR_MS)
    assert receipts.scan(kit.NODE, store).resolved == 1
    assert [path for path in (tmp_path / "receipts").rglob("*") if path.is_file()] == []
