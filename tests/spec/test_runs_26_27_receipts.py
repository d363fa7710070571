"""spec/runs.md §19, scenarios 26 and 27: receipts that race and receipts that lie."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
from pathlib import Path

import pytest

from apps.dispatch.receipts import Receipt, ReceiptExists, ReceiptInvalid, ReceiptStore, serialise

RUN = "0198c0de-0000-7000-8000-000000000001"
ATTEMPT = "0198c0de-0000-7000-8000-000000000002"
OTHER = "0198c0de-0000-7000-8000-000000000003"


def receipt(code: int, attempt: str = ATTEMPT) -> Receipt:
    return Receipt(RUN, attempt, 1, "t" * 43, 1, 2, code)


def race(root: str, code: int, start: object, results: object) -> None:
    reservation = ReceiptStore(root).reserve(ATTEMPT)
    start.wait()  # type: ignore[attr-defined]
    try:
        reservation.publish(receipt(code))
        results.put(code)  # type: ignore[attr-defined]
    except ReceiptExists:
        results.put(-1)  # type: ignore[attr-defined]


def test_runs_26_publish_race(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(4), context.Queue()
    racers = [context.Process(target=race, args=(str(tmp_path), code, start, results)) for code in range(4)]
    for racer in racers:
        racer.start()
    outcomes = [results.get(timeout=30) for _ in racers]
    for racer in racers:
        racer.join()
    [winner] = [code for code in outcomes if code >= 0]
    store = ReceiptStore(str(tmp_path))
    assert store.read(ATTEMPT) == receipt(winner)
    with pytest.raises(ReceiptExists):
        store.publish(receipt(9))
    assert store.read(ATTEMPT) == receipt(winner)
    [path] = (tmp_path / "02").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_runs_26_killed_between_write_and_link(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        ReceiptStore(str(tmp_path)).publish(receipt(0))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    [left] = (tmp_path / "02").iterdir()
    assert left.name.endswith(".tmp")
    assert ReceiptStore(str(tmp_path)).read(ATTEMPT) is None


GOOD = serialise(receipt(0))
TAMPERED = {
    "4097 bytes": GOOD + b" " * (4097 - len(GOOD)),
    "duplicate key": GOOD.replace(b"{", b'{"exit_code":1,', 1),
    "nested value": GOOD.replace(b'"exit_code":0', b'"exit_code":{"a":0}'),
    "extra key": GOOD.replace(b"{", b'{"note":1,', 1),
    "exit code 256": GOOD.replace(b'"exit_code":0', b'"exit_code":256'),
    "another attempt": serialise(receipt(0, OTHER)),
}


@pytest.mark.parametrize("kind", [*TAMPERED, "symlink", "directory", "fifo"])
def test_runs_27_receipt_tampering(tmp_path: Path, kind: str) -> None:
    store = ReceiptStore(str(tmp_path))
    path = tmp_path / "02" / f"{ATTEMPT}.json"
    path.parent.mkdir()
    if kind == "symlink":
        target = tmp_path / "target"
        target.write_bytes(GOOD)
        path.symlink_to(target)
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.write_bytes(TAMPERED[kind])
    with pytest.raises(ReceiptInvalid):
        store.read(ATTEMPT)
    assert store.quarantine(ATTEMPT) == f".quarantine/02/{ATTEMPT}.json"
    assert not os.path.lexists(path)
    assert store.read(ATTEMPT) is None
    assert store.purge_quarantine(ATTEMPT) is True
