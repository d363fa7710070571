"""A copy of an installation as one archive: database, logs, receipts and keys, verified before it counts.

The archive is a tar file of regular files with a last member, `manifest.json`, that names each with size and
SHA-256. Receipts are read before the database and logs after it: what the copy of the database refers to is
then always there, and what is there too much harms nothing. Working folders of scripts are not part of it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.db import connection, connections
from django.utils.translation import gettext_lazy as _

import qinglong
from apps.core import clock, runtime
from apps.core.errors import Conflict, DomainError, InvalidInput, Unavailable

FORMAT = 1
MANIFEST = "manifest.json"
SQLITE = "database.sqlite3"
POSTGRESQL = "database.dump"

_CHUNK = 1024 * 1024
_MANIFEST_MAX = 64 * 1024 * 1024
_PASSING = frozenset({".lock", ".tmp"})
# Who runs the one that is copied says nothing about the copy.
_NODE_LEFT_OUT = frozenset({"wake", runtime.NAME})


class BackupDamaged(InvalidInput):
    code = "backup_damaged"
    message = _("The backup is incomplete or was changed; nothing was restored.")


class TargetExists(Conflict):
    code = "target_exists"
    message = _("There is a file of that name already.")


class NotEmpty(Conflict):
    code = "installation_not_empty"
    message = _("There is an installation here already; restore into an empty home folder and database.")


class OtherEngine(Conflict):
    code = "database_engine_differs"
    message = _("The backup was made with the other kind of database; set DATABASE_URL to fit.")


class ToolMissing(Unavailable):
    code = "postgresql_tools_missing"
    message = _("pg_dump and pg_restore are needed for this and are not on PATH.")


class ToolFailed(DomainError):
    code = "postgresql_tool_failed"
    message = _("The copy of the PostgreSQL database failed.")


@dataclass(frozen=True)
class Entry:
    name: str
    size: int
    sha256: str


def create(target: Path) -> list[Entry]:
    """Writes and verifies an archive at `target` (0600). Raises TargetExists, ToolMissing, ToolFailed, OSError."""
    if target.exists():
        raise TargetExists
    with tempfile.TemporaryDirectory(prefix=".ql-backup-", dir=target.absolute().parent) as folder:
        partial = Path(folder) / "archive"
        with partial.open("xb") as file, tarfile.open(fileobj=file, mode="w") as archive:
            writer = _Writer(archive)
            for name, path in _files("node", Path(settings.NODE_DIR), _NODE_LEFT_OUT):
                writer.add(name, path)
            dump = Path(folder) / "dump"
            _dump(dump)
            writer.add(SQLITE if connection.vendor == "sqlite" else POSTGRESQL, dump)
            dump.unlink()
            for name, path in (
                ("keyring.json", Path(settings.KEYRING_PATH)),
                ("secret_key", Path(settings.HOME) / "secret_key"),
            ):
                if path.exists():
                    writer.add(name, path)
            for name, path in _files("logs", Path(settings.LOG_ROOT), frozenset()):
                writer.add(name, path)
            writer.finish()
        entries = verify(partial)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        try:
            os.link(partial, target)
        except FileExistsError:
            raise TargetExists from None
    return entries


def verify(path: Path) -> list[Entry]:
    """Reads the whole archive back against its manifest; raises BackupDamaged."""
    try:
        with tarfile.open(path, mode="r:") as archive:
            found = {name: Entry(name, *_digest(content)) for name, content in _contents(archive)}
            manifest = _manifest(archive)
    except (tarfile.TarError, OSError, ValueError, KeyError, TypeError) as error:
        raise BackupDamaged from error
    entries = [Entry(**entry) for entry in manifest["files"]]
    if {entry.name: entry for entry in entries} != found:
        raise BackupDamaged
    return entries


def restore(source: Path) -> list[Entry]:
    """Puts a verified archive into an empty home and database; the caller holds the lock of `up`.

    Raises BackupDamaged, NotEmpty, OtherEngine, ToolMissing, ToolFailed, OSError. Files are put in place only
    after the database was taken in.
    """
    entries = verify(source)
    database = SQLITE if connection.vendor == "sqlite" else POSTGRESQL
    if database not in {entry.name for entry in entries}:
        raise OtherEngine
    if not _empty():
        raise NotEmpty
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=settings.HOME) as folder:
        for name in _extract(source, Path(folder)):
            if name != database:
                _target(name)  # refuses one that is not ours before anything is changed
        _load(Path(folder) / database)
        for entry in entries:
            if entry.name != database:
                target = _target(entry.name)
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                shutil.move(Path(folder) / entry.name, target)
    return entries


class _Writer:
    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._entries: list[dict[str, Any]] = []

    def add(self, name: str, path: Path) -> None:
        """The file as long as it was when it was opened: a log may grow meanwhile. One that is gone is left out."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        with os.fdopen(descriptor, "rb") as file:
            reader = _Hashing(file)
            size = os.fstat(descriptor).st_size
            self._add(name, size, reader)
        self._entries.append({"name": name, "size": size, "sha256": reader.hexdigest()})

    def finish(self) -> None:
        document = {
            "format": FORMAT,
            "version": qinglong.__version__,
            "created_at": clock.rfc3339(clock.now()),
            "files": self._entries,
        }
        data = json.dumps(document, indent=1).encode()
        self._add(MANIFEST, len(data), io.BytesIO(data))

    def _add(self, name: str, size: int, source: Any) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = size, 0o600, clock.now_ms() // 1000
        self._archive.addfile(member, source)


class _Hashing:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def _files(prefix: str, root: Path, left_out: frozenset[str]) -> Iterator[tuple[str, Path]]:
    """Regular files below `root`; locks, sockets and what is just being written mean nothing elsewhere."""
    for folder, folders, names in os.walk(root):
        below = Path(folder).relative_to(root)
        if below == Path():
            folders[:] = [name for name in folders if name not in left_out]
            names[:] = [name for name in names if name not in left_out]
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix not in _PASSING and path.is_file() and not path.is_symlink():
                yield f"{prefix}/{(below / name).as_posix()}", path


def _contents(archive: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    names = set()
    for member in archive:
        if not member.isreg() or member.name in names:
            raise BackupDamaged
        names.add(member.name)
        content = archive.extractfile(member)
        if content is None:
            raise BackupDamaged
        if member.name != MANIFEST:
            yield member.name, content


def _manifest(archive: tarfile.TarFile) -> dict[str, Any]:
    member = archive.getmember(MANIFEST)
    content = archive.extractfile(member)
    if content is None or member.size > _MANIFEST_MAX:
        raise BackupDamaged
    document: dict[str, Any] = json.loads(content.read())
    if document["format"] != FORMAT:
        raise BackupDamaged
    return document


def _digest(content: IO[bytes]) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    while chunk := content.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def _extract(source: Path, folder: Path) -> Iterator[str]:
    with tarfile.open(source, mode="r:") as archive:
        for name, content in _contents(archive):
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()):
                raise BackupDamaged
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("xb") as file:
                os.fchmod(file.fileno(), 0o600)
                shutil.copyfileobj(content, file, _CHUNK)
            yield name


def _target(name: str) -> Path:
    first, _slash, rest = name.partition("/")
    if name == "keyring.json":
        return Path(settings.KEYRING_PATH)
    if name == "secret_key":
        return Path(settings.HOME) / name
    if first in ("logs", "node") and rest:
        root = Path(settings.LOG_ROOT if first == "logs" else settings.NODE_DIR)
        path = root / rest
        if path.resolve().is_relative_to(root.resolve()):
            return path
    raise BackupDamaged


def _empty() -> bool:
    if os.path.lexists(settings.KEYRING_PATH) or any(_files("logs", Path(settings.LOG_ROOT), frozenset())):
        return False
    if connection.vendor == "sqlite":
        return not Path(connection.settings_dict["NAME"]).exists()
    return not connection.introspection.table_names()


def _dump(target: Path) -> None:
    if connection.vendor == "sqlite":
        with (
            closing(sqlite3.connect(connection.settings_dict["NAME"], timeout=20)) as live,
            closing(sqlite3.connect(target)) as copy,
        ):
            live.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
            if copy.execute("PRAGMA integrity_check").fetchone() != ("ok",):
                raise BackupDamaged
    else:
        _tool("pg_dump", "--format=custom", "--no-owner", "--no-privileges", f"--file={target}")
        _tool("pg_restore", "--list", str(target), connected=False)


def _load(source: Path) -> None:
    connections.close_all()
    if connection.vendor == "sqlite":
        with closing(sqlite3.connect(source)) as copy:
            if copy.execute("PRAGMA integrity_check").fetchone() != ("ok",):
                raise BackupDamaged
        shutil.move(source, connection.settings_dict["NAME"])
    else:
        _tool(
            "pg_restore",
            "--no-owner",
            "--no-privileges",
            "--exit-on-error",
            "--single-transaction",
            str(source),
        )


def _tool(name: str, *arguments: str, connected: bool = True) -> None:
    program = shutil.which(name)
    if program is None:
        raise ToolMissing
    database = connection.settings_dict
    environment = dict(os.environ)
    if database["PASSWORD"]:
        environment["PGPASSWORD"] = database["PASSWORD"]
    where = [f"--dbname={database['NAME']}"]
    for option, key in (("host", "HOST"), ("port", "PORT"), ("username", "USER")):
        if database[key]:
            where.append(f"--{option}={database[key]}")
    ended = subprocess.run(  # noqa: S603
        [program, *(where if connected else []), *arguments],
        env=environment,
        capture_output=True,
        check=False,
    )
    if ended.returncode:
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        raise ToolFailed(reason=lines[-1] if lines else str(ended.returncode))
