"""The runtime receipt: one small file that says which process runs this home (runs.md §13.2).

The lock of `core.node` is what the kernel knows; the receipt still holds where somebody removed the lock's file, and
tells people and tests what became of the last start. A process is known by pid, start and boot, so the receipt of one
that is gone, or of another boot, stands in nobody's way.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from django.utils.translation import gettext_lazy as _

import qinglong
from apps.core import canonical, clock
from apps.core.errors import Conflict
from apps.core.node import Process

NAME = "qinglong3-manual-primary-runtime.json"
SCHEMA = "qinglong.runtime-receipt"
DOMAIN = "qinglong.runtime-receipt.v1"
BYTES_MIN = 2
BYTES_MAX = 8192
STATES = ("active", "stopping", "stopped", "failed")
PROFILES = ("edge", "standalone")

_OVER = ("stopped", "failed")
_ID = re.compile(r"[0-9a-f]{32}")


class RuntimeConflict(Conflict):
    """`extra["reason"]`: `still_live`, or `changed` where the file is not as this process left it."""

    code = "runtime_receipt_conflict"
    message = _("Another process runs on this home folder, or its runtime receipt was changed.")


class RuntimeUnsafe(Conflict):
    """`extra["reason"]` says what is wrong with the folder or the file; neither is touched."""

    code = "runtime_receipt_unsafe"
    message = _("The node's folder or its runtime receipt cannot be trusted.")


@dataclass(frozen=True)
class Receipt:
    """Who runs, since when, and how far; times are epoch milliseconds."""

    activation_id: str
    profile: str
    revision: str
    activated_at_ms: int
    updated_at_ms: int
    state: str
    process: Process
    process_group: int

    def encode(self) -> bytes:
        """Canonical JSON with the digest over everything else, and a newline."""
        values = {"schema": SCHEMA, "schema_version": 1, **asdict(self)}
        values["receipt_sha256"] = canonical.domain_digest(DOMAIN, canonical.dumps(values))
        return canonical.dumps(values).encode() + b"\n"


class Runtime:
    """This process's hold on a root folder; `stopping`, `stopped` and `failed` say how it goes on."""

    def __init__(self, root: Path, receipt: Receipt) -> None:
        self._root = root
        self._receipt = receipt

    def stopping(self) -> None:
        """Raises RuntimeConflict where the file is another's or was changed, RuntimeUnsafe, OSError."""
        self._move("stopping")

    def stopped(self) -> None:
        """As `stopping`."""
        self._move("stopped")

    def failed(self) -> None:
        """As `stopping`."""
        self._move("failed")

    def _move(self, state: str) -> None:
        check_root(self._root)
        if read(self._root) != self._receipt:
            raise RuntimeConflict(reason="changed")
        now = max(clock.now_ms(), self._receipt.updated_at_ms)
        self._receipt = replace(self._receipt, state=state, updated_at_ms=now)
        _write(self._root, self._receipt)


def activate(root: Path, profile: str) -> Runtime:
    """Makes the caller the process that runs this root.

    Raises RuntimeUnsafe for a folder or file that cannot be trusted, RuntimeConflict while the process on record
    lives, OSError.
    """
    check_root(root)
    found = read(root)
    if found is not None and found.state not in _OVER and found.process.is_alive():
        raise RuntimeConflict(reason="still_live")
    now = clock.now_ms()
    receipt = Receipt(
        secrets.token_hex(16), profile, qinglong.__version__, now, now, "active", Process.current(), os.getpgrp()
    )  # fmt: skip
    _write(root, receipt)
    return Runtime(root, receipt)


def check_root(root: Path) -> None:
    """A real folder of this user that nobody else can write to; raises RuntimeUnsafe, FileNotFoundError."""
    found = root.lstat()
    if not root.is_absolute() or not stat.S_ISDIR(found.st_mode):
        raise RuntimeUnsafe(reason="not_a_folder")
    if found.st_uid != os.geteuid():
        raise RuntimeUnsafe(reason="foreign_owner")
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise RuntimeUnsafe(reason="writable_by_others")


def read(root: Path) -> Receipt | None:
    """The receipt, None where there is none; RuntimeUnsafe for anything but a private file that is whole."""
    try:
        descriptor = os.open(root / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RuntimeUnsafe(reason="not_a_file") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise RuntimeUnsafe(reason="not_a_file")
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise RuntimeUnsafe(reason="not_private")
        data = os.read(descriptor, BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if not BYTES_MIN <= len(data) <= BYTES_MAX:
        raise RuntimeUnsafe(reason="size")
    receipt = _parse(data)
    if receipt is None or receipt.encode() != data:
        raise RuntimeUnsafe(reason="damaged")
    return receipt


def _parse(data: bytes) -> Receipt | None:
    try:
        values: dict[str, Any] = canonical.loads(data)
        del values["schema"], values["schema_version"], values["receipt_sha256"]
        receipt = Receipt(**{**values, "process": Process(**values["process"])})
    except (canonical.NotCanonical, KeyError, TypeError):
        return None
    process = receipt.process
    times = (receipt.activated_at_ms, receipt.updated_at_ms)
    numbers = (*times, receipt.process_group, process.pid, process.started)
    good = (
        all(type(number) is int and number >= 0 for number in numbers)
        and all(isinstance(text, str) for text in (receipt.activation_id, receipt.revision, process.boot))
        and _ID.fullmatch(receipt.activation_id) is not None
        and receipt.profile in PROFILES
        and receipt.state in STATES
        and (times[0] == times[1] if receipt.state == "active" else times[0] <= times[1])
    )
    return receipt if good else None


def _write(root: Path, receipt: Receipt) -> None:
    temporary = root / f".{NAME}.{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(receipt.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(root / NAME)
    finally:
        temporary.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
