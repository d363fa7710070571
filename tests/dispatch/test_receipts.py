"""The receipt file store (spec/runs.md §8.1, §8.2)."""

from __future__ import annotations

import json
import os
import resource
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from apps.dispatch.receipts import (
    Receipt,
    ReceiptExists,
    ReceiptInvalid,
    ReceiptStore,
    UnsafeTarget,
    parse,
    serialise,
)

RUN = "0198c0de-0000-7000-8000-000000000001"
ATTEMPT = "0198c0de-0000-7000-8000-000000000002"
RECEIPT = Receipt(RUN, ATTEMPT, 1, "t" * 43, 1_000, 2_000, 0)


@pytest.fixture
def store(tmp_path: Path) -> ReceiptStore:
    return ReceiptStore(str(tmp_path / "receipts"))


def test_round_trip(store: ReceiptStore, tmp_path: Path) -> None:
    assert store.read(ATTEMPT) is None
    store.publish(RECEIPT)
    assert store.read(ATTEMPT) == RECEIPT
    path = tmp_path / "receipts" / "02" / f"{ATTEMPT}.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == [path.name]
    assert path.stat().st_nlink == 1
    assert store.remove(ATTEMPT) is True
    assert store.remove(ATTEMPT) is False


def test_token_is_not_shown() -> None:
    assert RECEIPT.token not in repr(RECEIPT)


@pytest.mark.parametrize(
    "changes",
    [
        {"exit_code": 256},
        {"exit_code": -1},
        {"exit_code": True},
        {"exit_code": 1.0},
        {"callback_sequence": 0},
        {"token": "t" * 31},
        {"token": "t" * 129},
        {"token": "t" * 40 + "="},
        {"token": "t" * 40 + "\n"},
        {"run_id": RUN.upper()},
        {"attempt_id": "../" + ATTEMPT},
        {"finished_at_ms": 999},
        {"started_at_ms": -1},
        {"finished_at_ms": 2**53},
    ],
)
def test_values_out_of_bounds(changes: dict[str, object], store: ReceiptStore, tmp_path: Path) -> None:
    bad = replace(RECEIPT, **changes)  # type: ignore[arg-type]
    with pytest.raises(ReceiptInvalid):
        store.publish(bad)
    assert not (tmp_path / "receipts").exists()
    with pytest.raises(ReceiptInvalid):
        parse(json.dumps({**json.loads(serialise(RECEIPT)), **changes}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"\xff",
        b"[" * 4000,
        serialise(RECEIPT) + b"x",
        serialise(RECEIPT).replace(b'"exit_code":0', b'"exit_code":0,"exit_code":0'),
        serialise(RECEIPT).replace(b'"exit_code":0', b'"exit_code":0,"more":0'),
        serialise(RECEIPT).replace(b'"exit_code":0', b'"exit_code":[0]'),
        serialise(RECEIPT).replace(b'"exit_code":0', b'"exit_code":NaN'),
        serialise(RECEIPT).replace(b',"exit_code":0', b""),
        serialise(RECEIPT).replace(b'"schema_version":1', b'"schema_version":true'),
        serialise(RECEIPT) + b" " * 4096,
    ],
)
def test_bytes_that_are_no_receipt(data: bytes) -> None:
    with pytest.raises(ReceiptInvalid):
        parse(data)


def test_roots_and_ids_are_checked(store: ReceiptStore) -> None:
    for root in ("relative", "", "/a\0b"):
        with pytest.raises(ValueError):
            ReceiptStore(root)
    for bad in ("", "..", "01/../../x", ATTEMPT.upper(), ATTEMPT + "\n", ATTEMPT.replace("-7", "-4")):
        for call in (store.read, store.remove, store.quarantine, store.purge_quarantine, store.reserve):
            with pytest.raises(ReceiptInvalid):
                call(bad)


def test_reservation_can_be_given_back(store: ReceiptStore, tmp_path: Path) -> None:
    reservation = store.reserve(ATTEMPT)
    shard = tmp_path / "receipts" / "02"
    [temporary] = os.listdir(shard)
    assert (shard / temporary).stat().st_size == 4096
    assert store.read(ATTEMPT) is None
    reservation.discard()
    reservation.discard()
    assert os.listdir(shard) == []


def test_reservation_is_for_its_attempt(store: ReceiptStore) -> None:
    with pytest.raises(ReceiptInvalid):
        store.reserve(RUN).publish(RECEIPT)
    store.publish(RECEIPT)
    with pytest.raises(ReceiptExists):
        store.reserve(ATTEMPT)


def test_shard_that_is_a_symlink_is_refused(store: ReceiptStore, tmp_path: Path) -> None:
    (tmp_path / "receipts").mkdir()
    (tmp_path / "receipts" / "02").symlink_to(tmp_path)
    with pytest.raises(UnsafeTarget):
        store.publish(RECEIPT)


def test_reserved_space_survives_a_size_limit(store: ReceiptStore) -> None:
    """What was reserved can be written when nothing may grow any more; without it, nothing is left behind."""
    reservation = store.reserve(ATTEMPT)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    try:
        reservation.publish(RECEIPT)
        with pytest.raises(OSError, match="File too large"):
            store.reserve(RUN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.read(ATTEMPT) == RECEIPT


def test_quarantine_at_every_crash_point(store: ReceiptStore, tmp_path: Path) -> None:
    root = tmp_path / "receipts"
    reference = f".quarantine/02/{ATTEMPT}.json"
    assert store.quarantine(ATTEMPT) is None
    store.publish(RECEIPT)
    source, target = root / "02" / f"{ATTEMPT}.json", root / reference
    assert store.quarantine(ATTEMPT) == reference
    assert (source.exists(), target.exists()) == (False, True)
    assert stat.S_IMODE(target.parent.stat().st_mode) == 0o700
    assert store.quarantine(ATTEMPT) == reference
    os.link(target, source)  # a crash between link and unlink
    assert store.quarantine(ATTEMPT) == reference
    assert not source.exists()
    source.write_bytes(b"another")  # the first evidence is kept
    assert store.quarantine(ATTEMPT) == reference
    assert target.read_bytes() == serialise(RECEIPT)
    assert store.purge_quarantine(ATTEMPT) is True
    assert store.purge_quarantine(ATTEMPT) is False
