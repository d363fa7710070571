"""What a session knows of one attempt that it carries."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from apps.artifacts import collected, places, store
from apps.artifacts.collected import Collected, Kept
from apps.artifacts.facts import ArtifactFileError, artifact_id, is_artifact_id
from apps.core import canonical
from apps.dispatch.fence import LeaseFence
from apps.dispatch.launcher.client import Handle, Shim
from apps.dispatch.launcher.files import PREPARED
from apps.dispatch.launcher.spec import LIMITS
from apps.dispatch.launching import Plan

MAX_OUTPUT = 65_536
_MAX_FACT = 65_536
MAX_ESCAPED = 20

logger = logging.getLogger("qinglong.dispatch")

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(eq=False)
class Carried:
    """`phase`: launching → ready → going → running → ended.

    Adopted ones have no shim and are `adopted` until it is known that they were let go; `lost_as` says what they are
    lost as where their shim is gone without a receipt.
    """

    lease: LeaseFence
    folder: str
    phase: str = "launching"
    plan: Plan | None = field(default=None, repr=False)
    shim: Shim | None = None
    pidfd: int | None = None
    handle: Handle | None = None
    artifact_id: str = ""
    started_at: datetime | None = None
    failure: str | None = None
    lost_as: str = ""
    lost: bool = False
    returned: bool = False
    unstarted: bool = False
    told_running: bool = False
    warm: bool = False

    def close(self) -> None:
        """Lets go of the script: before `go` it never starts, after it the shim carries on."""
        if self.shim is not None:
            self.shim.close()
            self.shim = None
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


@dataclass(frozen=True)
class Left:
    """What lay beside a receipt."""

    cause: str | None = None
    output: Any = None
    has_output: bool = False
    output_code: str | None = None
    proof: Mapping[str, Any] | None = None
    limit: str | None = None
    # What is wrong with the log: `cut` by its quota, `incomplete` where the disk was full.
    log: dict[str, bool] | None = None
    # How many files the shim kept, and what it left out.
    files: tuple[int, dict[str, int]] | None = None


def read_left(folder: str) -> Left:
    """Stop fact and output of an ended attempt; a bad output is a code, never an error (upper-floors.md §7.11)."""
    left = _read_stop(folder)
    data = _read(f"{folder}/output.json", MAX_OUTPUT)
    if data is None or data == b"":
        return left
    if not isinstance(data, bytes):
        return replace(left, output_code=data)
    try:
        value = canonical.loads(data.decode())
        canonical.dumps({"output": value}, max_bytes=MAX_OUTPUT)
    except (canonical.NotCanonical, UnicodeDecodeError):
        return replace(left, output_code="output_invalid")
    return replace(left, output=value, has_output=True)


def kept(left: Left, lease: LeaseFence) -> Kept | None:
    """The files of which the shim says that it kept them, as its manifest has them; None where there was nothing."""
    if left.files is None:
        return None
    said, left_out = left.files
    run, attempt = str(lease.run_id), str(lease.attempt_id)
    files: tuple[Collected, ...] = ()
    if said:
        try:
            files = collected.read_manifest(store.root(), artifact_id(run, attempt), run, attempt)
        except (ArtifactFileError, OSError) as error:
            logger.error("files of run %s cannot be told: %s", run, type(error).__name__)
    if len(files) < said:
        left_out = {**left_out, "unreadable": left_out.get("unreadable", 0) + said - len(files)}
    return Kept(files, left_out)


def _read_stop(folder: str) -> Left:
    data = _read(f"{folder}/stop.json", _MAX_FACT)
    if not isinstance(data, bytes):
        return Left()
    cause, proof, limit = _stopped(data)
    return Left(cause, proof=proof, limit=limit, files=_files(data), log=_log(data))


def printed(item: Carried) -> tuple[str, ...]:
    """Names of the secrets that an ended attempt printed, as its shim noted where it masked them."""
    if not is_artifact_id(item.artifact_id) or (item.plan is not None and not item.plan.spec.mask):
        return ()
    found = places.read(store.root(), item.artifact_id)
    return found.printed() if found is not None else ()


def never_started(folder: str | Path) -> bool:
    """Whether the folder of an attempt, whose shim is gone, proves that its script was never let go.

    A missing folder proves nothing: a script can remove its own.
    """
    return _mode_unheld(folder) == PREPARED


def unheld(folder: str | Path) -> bool:
    """Whether the folder is there and no shim holds it."""
    return _mode_unheld(folder) is not None


def _mode_unheld(folder: str | Path) -> int | None:
    try:
        descriptor = os.open(folder, _FOLDER)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def remove_folder(folder: str | Path) -> None:
    """Removes an attempt's folder; what a script made unremovable is left and reported by `doctor`.

    Takes the same few descriptors and frames however deep the script nested its folders, and follows no link.
    """
    with suppress(OSError):
        root = os.open(folder, _FOLDER)
        try:
            _empty(root)
        finally:
            os.close(root)
        os.rmdir(folder)  # noqa: PTH106


def _empty(root: int) -> None:
    """Brings every folder of the tree up to the root before it is looked into."""
    number = 0
    waiting = _subfolders(root)
    while waiting:
        name = waiting.pop()
        with suppress(OSError):
            inner = os.open(name, _FOLDER, dir_fd=root)
            try:
                os.fchmod(inner, 0o700)
                for below in _subfolders(inner):
                    number += 1
                    raised = f".removed-{os.getpid()}-{number}"
                    os.rename(below, raised, src_dir_fd=inner, dst_dir_fd=root)
                    waiting.append(raised)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=root)


def _subfolders(folder: int) -> list[str]:
    """The folders in a folder, once everything else in it is gone."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return found


def _stopped(data: bytes) -> tuple[str | None, dict[str, Any] | None, str | None]:
    """Why the tree was stopped, the proof that it is gone (how many processes, how long, who was left), and a limit
    that was met.
    """
    try:
        fact = canonical.loads(data)
        cause = fact["cause"]
        limit = fact.get("limit") if fact.get("limit") in LIMITS else None
        if cause == "limit":
            return (cause, None, limit) if limit else (None, None, None)
        proof = {
            "processes": int(fact["processes"]),
            "took_ms": max(0, int(fact["ended_at_ms"]) - int(fact["term_at_ms"])),
            "killed": fact["kill_at_ms"] is not None,
            "escaped": [
                {"pid": int(one["pid"]), "start_ticks": int(one["start_ticks"])}
                for one in fact["escaped"][:MAX_ESCAPED]
            ],
        }
    except (canonical.NotCanonical, AttributeError, KeyError, TypeError, ValueError):
        return None, None, None
    return (cause, proof, limit) if cause in ("stop", "deadline", "leftover") else (None, None, None)


def _log(data: bytes) -> dict[str, bool] | None:
    try:
        said = canonical.loads(data)["log"]
        found = {name: True for name in ("cut", "incomplete") if said[name] is True}
    except (canonical.NotCanonical, KeyError, TypeError):
        return None
    return found or None


def _files(data: bytes) -> tuple[int, dict[str, int]] | None:
    try:
        said = canonical.loads(data)["files"]
        given = said["left_out"]
        return int(said["kept"]), {code: int(given[code]) for code in collected.LEFT_OUT if code in given}
    except (canonical.NotCanonical, KeyError, TypeError, ValueError):
        return None


def _read(path: str, limit: int) -> bytes | str | None:
    """The bytes of a regular file, None where there is none, or the code of what is wrong with it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        return "output_unsafe"
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return "output_unsafe"
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    return data if len(data) <= limit else "output_too_large"
