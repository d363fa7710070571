"""Takes over what a script left in QINGLONG_ARTIFACTS, once its processes are gone (decisions.md).

The folder may be hostile: so full that looking at it would take hours, with links that lead elsewhere, names of any
kind, and, under QINGLONG_RUN_AS, processes of the same user at work in it. So each entry is first taken, then judged:
renamed into a folder that is the panel's alone, and looked at there. What is not taken is counted by a code, and
goes with the attempt's folder. Loaded only by shims whose script left something.
"""
# Why not pathlib: descriptors, flags and modes that pathlib does not offer.
# ruff: noqa: PTH102, PTH106

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from itertools import islice

from apps.artifacts import kinds
from apps.artifacts.collected import (
    BYTES_MAX,
    FILES_MAX,
    NAME_MAX,
    Collected,
    Kept,
    folder_of,
    write_manifest,
)
from apps.artifacts.facts import sync_directory, write_all
from apps.dispatch.launcher.spec import LogSpec, RunAs

# By this name type checkers read what follows; `typing` itself is more than a shim should load.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Owner(Protocol):
        """Whose files they are: an attempt under its specification, or what one has left."""

        @property
        def run_id(self) -> str: ...
        @property
        def attempt_id(self) -> str: ...
        @property
        def log(self) -> LogSpec: ...
        @property
        def run_as(self) -> RunAs | None: ...


# Entries that are looked at, folders included, and folders in folders.
ENTRIES_MAX = 2_000
DEPTH_MAX = 8
_CHUNK = 262_144
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

WORDS = {
    "symlink": "links",
    "special": "neither files nor folders",
    "hard_link": "files with a second name",
    "foreign": "of another user or on another disk",
    "too_deep": f"more than {DEPTH_MAX} folders deep",
    "too_many": f"over the limit of {FILES_MAX} files",
    "too_large": f"over the limit of {BYTES_MAX // 1_048_576} MiB for all",
    "name_too_long": f"with a path of more than {NAME_MAX} characters",
    "changed": "still being written",
    "no_space": "without room on the disk",
    "unreadable": "not readable",
    "unexamined": f"not looked at after {ENTRIES_MAX} entries",
}


class _LeftOut(Exception):
    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


def lines(kept: Kept) -> list[str]:
    """What the log says of what was left out."""
    return [
        f"left in QINGLONG_ARTIFACTS: {'more, ' if code == 'unexamined' else f'{count} '}{WORDS[code]} ({code})"
        for code, count in sorted(kept.left_out.items())
    ]


def collect(spec: Owner, source: str, masked: Callable[[bytes], bytes]) -> Kept:
    """Takes the files in `source`, at most 100 of together 256 MiB, and writes their manifest. OSError.

    `masked` takes secrets out of their names; what is in them stays as it is.
    """
    folder = folder_of(spec.log.root, spec.log.artifact_id)
    os.mkdir(folder, 0o700)
    target = os.open(folder, _FOLDER)
    try:
        found = _Collection(spec, target, masked)
        found.walk(source)
        found.conclude()
        if not found.files:
            os.rmdir(folder)
        sync_directory(os.path.dirname(folder))  # noqa: PTH120
    finally:
        os.close(target)
    return Kept(tuple(found.files), found.left_out)


class _Collection:
    """One walk through the folder; entries of a folder come in the order of their names."""

    def __init__(self, spec: Owner, target: int, masked: Callable[[bytes], bytes]) -> None:
        self._spec = spec
        self._masked = masked
        self._target = target
        self._uid = os.geteuid() if spec.run_as is None else spec.run_as.uid
        self._device = 0
        self._entries = ENTRIES_MAX
        self._room = BYTES_MAX
        self._names: set[str] = set()
        self.files: list[Collected] = []
        self.left_out: dict[str, int] = {}

    def walk(self, source: str) -> None:
        try:
            folder = os.open(source, _FOLDER)
        except OSError as error:
            # A link, or a file, stands where the folder was.
            self._note("unreadable" if error.errno == errno.EACCES else "special")
            return
        try:
            found = os.fstat(folder)
            self._device = found.st_dev
            if found.st_uid != self._uid:
                raise _LeftOut("foreign")
            self._folder(folder, "", DEPTH_MAX)
        except _LeftOut as error:
            self._note(error.code)
        finally:
            os.close(folder)

    def conclude(self) -> None:
        """Writes the manifest; where the disk has no room for it, the files make room."""
        if not self.files:
            return
        try:
            write_manifest(self._target, self._spec.run_id, self._spec.attempt_id, self.files)
        except OSError:
            for name in os.listdir(self._target):  # noqa: PTH208
                os.unlink(name, dir_fd=self._target)
            self._note("no_space", len(self.files))
            self.files.clear()

    def _note(self, code: str, count: int = 1) -> None:
        self.left_out[code] = self.left_out.get(code, 0) + count

    def _folder(self, folder: int, above: str, depth: int) -> None:
        with os.scandir(folder) as entries:
            found = list(islice(entries, self._entries + 1))
        if len(found) > self._entries:
            self.left_out["unexamined"] = 1
            found.pop()
        self._entries -= len(found)
        for entry in sorted(found, key=lambda one: one.name):
            try:
                if entry.is_dir(follow_symlinks=False):
                    self._inner(folder, entry.name, f"{above}{entry.name}/", depth - 1)
                else:
                    self._take(folder, entry.name, above + entry.name)
            except _LeftOut as error:
                self._note(error.code)
            except OSError as error:
                self._note("no_space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "unreadable")

    def _inner(self, folder: int, name: str, path: str, depth: int) -> None:
        if depth < 0:
            raise _LeftOut("too_deep")
        inner = os.open(name, _FOLDER, dir_fd=folder)
        try:
            if os.fstat(inner).st_dev != self._device:
                raise _LeftOut("foreign")
            self._folder(inner, path, depth)
        finally:
            os.close(inner)

    def _take(self, folder: int, name: str, path: str) -> None:
        """Makes an entry file number n of the attempt; _LeftOut, OSError."""
        self._judge(os.lstat(name, dir_fd=folder))
        shown = self._shown(os.fsdecode(self._masked(os.fsencode(path))))
        number = str(len(self.files) + 1)
        try:
            os.rename(name, number, src_dir_fd=folder, dst_dir_fd=self._target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            moved = False
        else:
            moved = True
        try:
            size, digest, head = self._own(number) if moved else self._copy(folder, name, number)
        except BaseException:
            self._give_back(number, folder)
            raise
        self._room -= size
        self._names.add(shown)
        self.files.append(Collected(shown, size, digest, kinds.content_type(shown, head)))

    def _give_back(self, number: str, folder: int) -> None:
        """Frees the number; a folder that was put in the file's place just then goes back to where it was."""
        with suppress(FileNotFoundError):
            try:
                os.unlink(number, dir_fd=self._target)
            except (IsADirectoryError, PermissionError):
                name = f".{os.urandom(8).hex()}"
                os.rename(number, name, src_dir_fd=self._target, dst_dir_fd=folder)

    def _judge(self, found: os.stat_result) -> None:
        if stat.S_ISLNK(found.st_mode):
            raise _LeftOut("symlink")
        if not stat.S_ISREG(found.st_mode):
            raise _LeftOut("special")
        if found.st_uid != self._uid:
            raise _LeftOut("foreign")
        if found.st_nlink != 1:
            raise _LeftOut("hard_link")
        if len(self.files) >= FILES_MAX:
            raise _LeftOut("too_many")
        if found.st_size > self._room:
            raise _LeftOut("too_large")

    def _shown(self, path: str) -> str:
        """A name that can be shown and told apart from the others'."""
        text = "".join([one if one.isprintable() and one != "\\" else "_" for one in path])
        shown, copies = text, 1
        while shown in self._names:
            copies += 1
            shown = f"{text}~{copies}"
        if len(shown) > NAME_MAX:
            raise _LeftOut("name_too_long")
        return shown

    def _own(self, number: str) -> tuple[int, str, bytes]:
        """Makes a file that was moved here the panel's; nobody else reaches it by a path any more."""
        self._judge(os.lstat(number, dir_fd=self._target))
        if self._spec.run_as is not None:
            os.chown(number, os.geteuid(), os.getegid(), dir_fd=self._target, follow_symlinks=False)
        os.chmod(number, 0o600, dir_fd=self._target)
        descriptor = os.open(number, _LOOK, dir_fd=self._target)
        try:
            if self._spec.run_as is not None and not _only_here(descriptor):
                # A process of that user could go on writing into what was promised not to change.
                os.unlink(number, dir_fd=self._target)
                return self._copied(descriptor, number)
            return _digested(descriptor, None)
        finally:
            os.close(descriptor)

    def _copy(self, folder: int, name: str, number: str) -> tuple[int, str, bytes]:
        descriptor = os.open(name, _LOOK, dir_fd=folder)
        try:
            self._judge(os.fstat(descriptor))
            return self._copied(descriptor, number)
        finally:
            os.close(descriptor)

    def _copied(self, descriptor: int, number: str) -> tuple[int, str, bytes]:
        fresh = os.open(number, _NEW, 0o600, dir_fd=self._target)
        try:
            return _digested(descriptor, fresh)
        finally:
            os.close(fresh)


def _only_here(descriptor: int) -> bool:
    """Whether no process has the file open for writing: only then the kernel grants a lease for reading."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


def _digested(descriptor: int, copy: int | None) -> tuple[int, str, bytes]:
    """Size, digest and first bytes of a file that keeps still meanwhile, synced, and copied where asked."""
    before = os.fstat(descriptor)
    digest, head, at = sha256(), b"", 0
    while at < before.st_size:
        data = os.pread(descriptor, min(_CHUNK, before.st_size - at), at)
        if not data:
            break
        head = head or data[: kinds.HEAD_BYTES]
        digest.update(data)
        if copy is not None:
            write_all(copy, data)
        at += len(data)
    os.fsync(descriptor if copy is None else copy)
    after = os.fstat(descriptor)
    if (at, after.st_size, after.st_mtime_ns) != (before.st_size, before.st_size, before.st_mtime_ns):
        raise _LeftOut("changed")
    return at, digest.hexdigest(), head
