"""Names, places and the truncation fact of one attempt's log (spec/secrets-and-artifacts.md §5.1, §5.4).

Standard library only: the supervisor of a script writes the fact without Django, and the panel reads it.
"""
# Why not pathlib: every call here needs flags or modes that pathlib does not offer.
# ruff: noqa: PTH101, PTH102, PTH108, PTH112, PTH120

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

FACT_BYTES_MAX = 1024
LOG_BYTES_MIN = 65_536
LOG_BYTES_MAX = 1_073_741_824
SAFE_INTEGER_MAX = 2**53 - 1

# Checked without regular expressions: their engine would be ten more pages of memory for every script.
_HEX = "0123456789abcdef"
_FACT_KEYS = (
    "schema_version",
    "run_id",
    "attempt_id",
    "log_artifact_id",
    "maximum_bytes",
    "quota_reached",
    "observed_at_ms",
)


class ArtifactFileError(Exception):
    """Base of the errors in this module; the text names no path."""

    code = "artifact_file_error"


class UnsafeTarget(ArtifactFileError):
    """A symlink, a special file or a foreign object stands where a private file belongs."""

    code = "artifact_unsafe_target"


class InvalidFact(ArtifactFileError):
    """A fact, or a value meant for one, breaks §5.4."""

    code = "artifact_invalid_fact"


class FactExists(ArtifactFileError):
    """A fact is already published; facts are never replaced."""

    code = "artifact_fact_exists"


def is_uuid7(value: object) -> bool:
    """True for the lower-case text form of a UUIDv7, the only form ids take in file names."""
    return isinstance(value, str) and len(value) == 36 and _is_uuid7(value)


@lru_cache(maxsize=64)
def _is_uuid7(value: str) -> bool:
    digits = value.replace("-", "")
    return (
        len(digits) == 32
        and not digits.strip(_HEX)
        and value[8] == value[13] == value[18] == value[23] == "-"
        and value[14] == "7"
        and value[19] in "89ab"
    )


def is_artifact_id(value: object) -> bool:
    return (
        isinstance(value, str)
        and len(value) == 36
        and value.startswith("local-")
        and not value[6:].strip(_HEX)
    )


def artifact_id(run_id: str, attempt_id: str) -> str:
    """Derive the 36-character id of an attempt's log (§5.1). ValueError for ids that are no UUIDv7."""
    # Imported late: it loads the system's crypto library, which the launcher never needs.
    from hashlib import sha256

    if not (is_uuid7(run_id) and is_uuid7(attempt_id)):
        raise ValueError("run and attempt id must be lower-case UUIDv7 text")
    return "local-" + sha256(f"{run_id}\0{attempt_id}".encode()).hexdigest()[:30]


@dataclass(frozen=True, slots=True)
class LogPaths:
    """Where the files of one artifact lie; every path comes from a checked id."""

    shard: str
    log: str
    fact: str
    fact_temporary: str
    places: str


def log_paths(root: str, log_artifact_id: str) -> LogPaths:
    """Paths under an absolute artifact root (§5.1). ValueError for a bad root or id."""
    if not root.startswith("/") or "\0" in root:
        raise ValueError("the artifact root must be an absolute path")
    if not is_artifact_id(log_artifact_id):
        raise ValueError("not an artifact id")
    shard = f"{root.rstrip('/')}/{log_artifact_id[6:8]}"
    return LogPaths(
        shard=shard,
        log=f"{shard}/{log_artifact_id}.log",
        fact=f"{shard}/.{log_artifact_id}.log.truncated.json",
        fact_temporary=f"{shard}/.{log_artifact_id}.log.truncated.tmp",
        places=f"{shard}/.{log_artifact_id}.log.masked",
    )


def ensure_private_directory(path: str, mode: int = 0o700) -> None:
    """Make a directory and its missing parents, each 0700, and force `mode` on it (§5.3 step 2).

    UnsafeTarget when a symlink or something else has the name; OSError from the system otherwise.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        _make_directories(path)
        found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeTarget("not a directory")
    if stat.S_IMODE(found.st_mode) != mode:
        os.chmod(path, mode)


def _make_directories(path: str) -> None:
    parent = os.path.dirname(path.rstrip("/"))
    if parent and not os.path.isdir(parent):
        _make_directories(parent)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)


def sync_directory(path: str) -> None:
    """fsync a directory, best effort: some file systems refuse it, and the entry itself is made."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte or raise OSError; a write that makes no progress is an error."""
    view = memoryview(data)
    while view:
        written = os.write(descriptor, view)
        if written <= 0:
            raise OSError(errno.EIO, "write made no progress")
        view = view[written:]


@dataclass(frozen=True, slots=True)
class TruncationFact:
    """Whether bytes of a log were cut by its quota; times are epoch milliseconds."""

    run_id: str
    attempt_id: str
    log_artifact_id: str
    maximum_bytes: int
    quota_reached: bool
    observed_at_ms: int


def encode_fact(fact: TruncationFact) -> bytes:
    """Canonical bytes of a fact: fixed key order, no spaces, no newline. InvalidFact outside §5.4."""
    _check_fact(fact)
    # Checked values need no escapes, and every script would have to load what looks for them.
    return (
        f'{{"schema_version":1,"run_id":"{fact.run_id}","attempt_id":"{fact.attempt_id}",'
        f'"log_artifact_id":"{fact.log_artifact_id}","maximum_bytes":{fact.maximum_bytes},'
        f'"quota_reached":{"true" if fact.quota_reached else "false"},'
        f'"observed_at_ms":{fact.observed_at_ms}}}'
    ).encode()


def decode_fact(data: bytes) -> TruncationFact:
    """Strict inverse of `encode_fact`: any other spelling of the same values is InvalidFact."""
    if not 1 <= len(data) <= FACT_BYTES_MAX:
        raise InvalidFact("size out of bounds")
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise InvalidFact("not JSON") from None
    if not isinstance(value, dict) or tuple(value) != _FACT_KEYS or value["schema_version"] != 1:
        raise InvalidFact("wrong keys")
    fact = TruncationFact(
        run_id=value["run_id"],
        attempt_id=value["attempt_id"],
        log_artifact_id=value["log_artifact_id"],
        maximum_bytes=value["maximum_bytes"],
        quota_reached=value["quota_reached"],
        observed_at_ms=value["observed_at_ms"],
    )
    if encode_fact(fact) != data:
        raise InvalidFact("not canonical")
    return fact


def _check_fact(fact: TruncationFact) -> None:
    if not (is_uuid7(fact.run_id) and is_uuid7(fact.attempt_id) and is_artifact_id(fact.log_artifact_id)):
        raise InvalidFact("bad id")
    if type(fact.maximum_bytes) is not int or not LOG_BYTES_MIN <= fact.maximum_bytes <= LOG_BYTES_MAX:
        raise InvalidFact("maximum_bytes out of bounds")
    if type(fact.quota_reached) is not bool:
        raise InvalidFact("quota_reached must be a boolean")
    if type(fact.observed_at_ms) is not int or not 0 <= fact.observed_at_ms <= SAFE_INTEGER_MAX:
        raise InvalidFact("observed_at_ms out of bounds")


def publish_fact(root: str, fact: TruncationFact) -> None:
    """Write the fact once: synced temporary file, then a hard link that never replaces.

    FactExists when one is there already, UnsafeTarget for a bad root or shard, OSError from the system.
    """
    data = encode_fact(fact)
    paths = log_paths(root, fact.log_artifact_id)
    ensure_private_directory(paths.shard)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(paths.fact_temporary, flags, 0o600)
    except FileExistsError:
        os.unlink(paths.fact_temporary)  # left by a writer that died; its content was never a fact
        descriptor = os.open(paths.fact_temporary, flags, 0o600)
    try:
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.link(paths.fact_temporary, paths.fact)
    except FileExistsError:
        raise FactExists("the fact is already published") from None
    finally:
        with suppress(OSError):
            os.unlink(paths.fact_temporary)


def read_fact(root: str, log_artifact_id: str) -> TruncationFact | None:
    """The published fact, or None when nothing is known (§5.4).

    UnsafeTarget for symlinks, special files and foreign facts; InvalidFact for bytes that are no fact.
    """
    paths = log_paths(root, log_artifact_id)
    _require_directory(root, missing_ok=False)
    if not _require_directory(paths.shard, missing_ok=True):
        return None
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(paths.fact, flags)
    except FileNotFoundError:
        return None
    except OSError:
        raise UnsafeTarget("the fact cannot be opened") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or not 1 <= found.st_size <= FACT_BYTES_MAX:
            raise UnsafeTarget("the fact is no small regular file")
        data = os.read(descriptor, FACT_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    fact = decode_fact(data)
    if fact.log_artifact_id != log_artifact_id:
        raise UnsafeTarget("the fact belongs to another artifact")
    return fact


def _require_directory(path: str, *, missing_ok: bool) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        if missing_ok:
            return False
        raise UnsafeTarget("the root is missing") from None
    except OSError:
        raise UnsafeTarget("the directory cannot be examined") from None
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeTarget("not a directory")
    return True
