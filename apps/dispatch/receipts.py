"""Completion receipts: the one file that says how a started process ended (spec/runs.md §8.1, §8.2).

A receipt is written once and never replaced. Standard library only: the supervisor of a script publishes
receipts without Django, the sessions read them.
"""
# Why not pathlib: every call here needs flags, modes or descriptors that pathlib does not offer.
# ruff: noqa: PTH104, PTH106, PTH108, PTH112, PTH114, PTH120

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field

from apps.artifacts.facts import (
    SAFE_INTEGER_MAX,
    UnsafeTarget,
    ensure_private_directory,
    is_uuid7,
    sync_directory,
    write_all,
)
from apps.dispatch.journal import Entry, shard_of

RECEIPT_BYTES_MAX = 4096
QUARANTINE = ".quarantine"

_BASE64URL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
_KEYS = (
    "schema_version",
    "run_id",
    "attempt_id",
    "callback_sequence",
    "token",
    "started_at_ms",
    "finished_at_ms",
    "exit_code",
)


class ReceiptError(Exception):
    """Base of the receipt errors; the text holds neither path nor content."""

    code = "receipt_error"


class ReceiptInvalid(ReceiptError):
    """Bytes, a file or an id that can be no receipt."""

    code = "receipt_invalid"


class ReceiptExists(ReceiptError):
    """The attempt has a receipt already; the first writer wins."""

    code = "receipt_already_exists"


@dataclass(frozen=True, slots=True)
class Receipt:
    """One end. Times are epoch milliseconds; `token` is the clear callback token and hidden from repr."""

    run_id: str
    attempt_id: str
    callback_sequence: int
    token: str = field(repr=False)
    started_at_ms: int
    finished_at_ms: int
    exit_code: int


def is_token(value: object) -> bool:
    """True for 32–128 base64url characters."""
    return isinstance(value, str) and 32 <= len(value) <= 128 and not value.strip(_BASE64URL)


def serialise(receipt: Receipt) -> bytes:
    """Bytes of a receipt, at most 4,096. ReceiptInvalid when a field is outside §8.1."""
    _check(receipt)
    # Checked values need no escapes, and every script would have to load what looks for them.
    return (
        f'{{"schema_version":1,"run_id":"{receipt.run_id}","attempt_id":"{receipt.attempt_id}",'
        f'"callback_sequence":{receipt.callback_sequence},"token":"{receipt.token}",'
        f'"started_at_ms":{receipt.started_at_ms},"finished_at_ms":{receipt.finished_at_ms},'
        f'"exit_code":{receipt.exit_code}}}'
    ).encode()


def parse(data: bytes) -> Receipt:
    """Strict reading (§8.1): exactly the known keys, flat, no duplicates. ReceiptInvalid otherwise."""
    if len(data) > RECEIPT_BYTES_MAX:
        raise ReceiptInvalid("too large")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise ReceiptInvalid("not a JSON object without duplicates") from None
    if not isinstance(value, dict) or set(value) != set(_KEYS):
        raise ReceiptInvalid("wrong keys")
    if type(value["schema_version"]) is not int or value["schema_version"] != 1:
        raise ReceiptInvalid("unknown schema version")
    receipt = Receipt(**{key: value[key] for key in _KEYS[1:]})
    _check(receipt)
    return receipt


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


def _check(receipt: Receipt) -> None:
    if not (is_uuid7(receipt.run_id) and is_uuid7(receipt.attempt_id)):
        raise ReceiptInvalid("bad id")
    if not is_token(receipt.token):
        raise ReceiptInvalid("bad token")
    numbers = (receipt.callback_sequence, receipt.started_at_ms, receipt.finished_at_ms, receipt.exit_code)
    # type() on purpose: JSON's true is an int to Python and a mistake here.
    if any(type(number) is not int or not 0 <= number <= SAFE_INTEGER_MAX for number in numbers):
        raise ReceiptInvalid("bad number")
    if receipt.callback_sequence < 1 or receipt.exit_code > 255:
        raise ReceiptInvalid("number out of bounds")
    if receipt.finished_at_ms < receipt.started_at_ms:
        raise ReceiptInvalid("finished before it started")


class Reservation:
    """A receipt's temporary file with its space taken, so that a full disk cannot swallow an end."""

    def __init__(self, descriptor: int, temporary: str, final: str, attempt_id: str) -> None:
        self._descriptor = descriptor
        self._temporary = temporary
        self._final = final
        self._attempt_id = attempt_id

    def note(self, entry: Entry) -> None:
        """Have the journal say how far the attempt is; a few microseconds, nothing is synced. OSError."""
        os.pwrite(self._descriptor, entry.encode(), 0)

    def publish(self, receipt: Receipt) -> None:
        """Fill, sync and link (§8.2). ReceiptExists, ReceiptInvalid or OSError; the temporary goes."""
        try:
            if receipt.attempt_id != self._attempt_id:
                raise ReceiptInvalid("reserved for another attempt")
            data = serialise(receipt)
            write_all(self._descriptor, data)
            os.ftruncate(self._descriptor, len(data))
            os.fsync(self._descriptor)
            os.link(self._temporary, self._final)
            sync_directory(os.path.dirname(self._final))
        except FileExistsError:
            raise ReceiptExists("the attempt has a receipt") from None
        finally:
            self.discard()

    def discard(self) -> None:
        """Give the space back and leave nothing. Repeatable."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            with suppress(OSError):
                os.unlink(self._temporary)


class ReceiptStore:
    """The receipts under one absolute root; which there are, the database tells."""

    def __init__(self, root: str) -> None:
        if not root.startswith("/") or "\0" in root:
            raise ValueError("the receipt root must be an absolute path")
        self._root = root.rstrip("/") or "/"

    def reserve(self, attempt_id: str) -> Reservation:
        """Create the temporary file with 4,096 bytes of space.

        ReceiptExists when the attempt has ended already, UnsafeTarget for a shard that is no directory,
        OSError (ENOSPC …) from the system.
        """
        final = self._path(attempt_id)
        shard = os.path.dirname(final)
        ensure_private_directory(shard)
        if os.access(final, os.F_OK, follow_symlinks=False):
            raise ReceiptExists("the attempt has a receipt")
        temporary = f"{shard}/.{attempt_id}.{os.urandom(16).hex()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        reservation = Reservation(os.open(temporary, flags, 0o600), temporary, final, attempt_id)
        try:
            os.posix_fallocate(reservation._descriptor, 0, RECEIPT_BYTES_MAX)
        except OSError:
            reservation.discard()
            raise
        return reservation

    def publish(self, receipt: Receipt) -> None:
        """Write a receipt without a reservation made before. Errors as in `Reservation.publish`."""
        serialise(receipt)  # checked before anything is created
        self.reserve(receipt.attempt_id).publish(receipt)

    def read(self, attempt_id: str) -> Receipt | None:
        """The receipt, or None. ReceiptInvalid for symlinks, special files and wrong content."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self._path(attempt_id), flags)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOTDIR):
                raise ReceiptInvalid("not a regular file") from None
            raise
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ReceiptInvalid("not a regular file")
            data = os.read(descriptor, RECEIPT_BYTES_MAX + 1)
            while len(data) < min(found.st_size, RECEIPT_BYTES_MAX + 1):
                chunk = os.read(descriptor, RECEIPT_BYTES_MAX + 1 - len(data))
                if not chunk:
                    break
                data += chunk
        finally:
            os.close(descriptor)
        receipt = parse(data)
        if receipt.attempt_id != attempt_id:
            raise ReceiptInvalid("receipt of another attempt")
        return receipt

    def remove(self, attempt_id: str) -> bool:
        """Unlink a receipt; False when there was none."""
        return _unlink(self._path(attempt_id))

    def remove_all(self, attempt_ids: list[str]) -> set[str]:
        """Unlink receipts; returns those that were there.

        Nothing is synced: what a power loss brings back belongs to an attempt that ended, and is found as an orphan.
        """
        return {attempt_id for attempt_id in attempt_ids if _unlink(self._path(attempt_id), sync=False)}

    def quarantine(self, attempt_id: str) -> str | None:
        """Move an invalid receipt aside; repeatable after a crash at any point (§8.2).

        Returns the reference `.quarantine/<2>/<id>.json`, or None when there is nothing to move.
        A directory under the receipt's name cannot be linked and is renamed instead.
        """
        source = self._path(attempt_id)
        reference = quarantine_reference(attempt_id)
        target = f"{self._root}/{reference}"
        if not os.path.lexists(source):
            return reference if os.path.lexists(target) else None
        ensure_private_directory(f"{self._root}/{QUARANTINE}")
        ensure_private_directory(os.path.dirname(target))
        try:
            os.link(source, target, follow_symlinks=False)
        except FileNotFoundError:
            return reference if os.path.lexists(target) else None
        except FileExistsError:
            pass  # a crash came between link and unlink, or an earlier one is kept as evidence
        except PermissionError:
            if not stat.S_ISDIR(os.lstat(source).st_mode):
                raise
            os.rename(source, target)
        _unlink(source)
        sync_directory(os.path.dirname(target))
        return reference

    def purge_quarantine(self, attempt_id: str) -> bool:
        """Delete a quarantined entry; False when there was none."""
        return _unlink(f"{self._root}/{quarantine_reference(attempt_id)}")

    def _path(self, attempt_id: str) -> str:
        return f"{self._root}/{_place(attempt_id)}"


def quarantine_reference(attempt_id: str) -> str:
    """Where an invalid receipt is kept, below the root. ReceiptInvalid for what is no attempt id."""
    return f"{QUARANTINE}/{_place(attempt_id)}"


def _place(attempt_id: str) -> str:
    if not is_uuid7(attempt_id):
        raise ReceiptInvalid("not an attempt id")
    return f"{shard_of(attempt_id)}/{attempt_id}.json"


def _unlink(path: str, *, sync: bool = True) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except (IsADirectoryError, PermissionError):
        if not os.path.isdir(path) or os.path.islink(path):
            raise
        os.rmdir(path)  # only an empty one: a filled directory is not ours to empty
    if sync:
        sync_directory(os.path.dirname(path))
    return True


__all__ = [
    "QUARANTINE",
    "RECEIPT_BYTES_MAX",
    "Receipt",
    "ReceiptError",
    "ReceiptExists",
    "ReceiptInvalid",
    "ReceiptStore",
    "Reservation",
    "UnsafeTarget",
    "is_token",
    "parse",
    "serialise",
]
