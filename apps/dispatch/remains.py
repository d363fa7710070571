"""What a lost attempt left on this node: its files are kept as far as they are there, then its folder goes.

Its shim is dead, so nobody else looks: values of secrets lie there in the clear, and what the script put into
QINGLONG_ARTIFACTS is not beside its log yet. Nothing is touched while anything of the attempt runs.
"""

from __future__ import annotations

import logging
import os
import queue
import stat
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from uuid import UUID

from apps.artifacts import collected, store
from apps.artifacts.collected import FILES_MAX, MANIFEST, MANIFEST_TEMPORARY, Kept
from apps.artifacts.facts import ArtifactFileError, ensure_private_directory, is_artifact_id
from apps.dispatch import carried, launching, predecessors
from apps.dispatch.launcher import collecting
from apps.dispatch.launcher.files import FILES, WORK
from apps.dispatch.launcher.spec import LogSpec, RunAs
from apps.runs.models import RunAttempt
from apps.runs.retries import NEVER_STARTED

PAUSE_S = 0.5
# Reading about all processes of a busy machine is not to become the session's main work.
SHARE = 20
PATIENCE_S = 1.0

logger = logging.getLogger("qinglong.dispatch")


@dataclass(frozen=True)
class Remains:
    """A lost attempt and its folder; `secret`: it was given secrets, whose values nobody has any more."""

    attempt: RunAttempt
    folder: Path
    secret: bool

    @property
    def log(self) -> LogSpec:
        return LogSpec(store.root(), self.attempt.log_artifact_id or "", 0)

    @property
    def run_id(self) -> str:
        return str(self.attempt.run_id)

    @property
    def attempt_id(self) -> str:
        return str(self.attempt.pk)

    @property
    def run_as(self) -> RunAs | None:
        """The user whose script it was; that folder stands where only the panel can put one."""
        try:
            found = (self.folder / WORK).lstat()
        except OSError:
            return None
        return RunAs(found.st_uid, found.st_gid, (), "")

    def over(self) -> bool:
        """Whether nothing of the attempt runs any more on this node."""
        left = predecessors.one(self.attempt)
        return left is not None and left.gone() and carried.unheld(self.folder)

    def take(self) -> Kept:
        """Moves what the script left beside its log, or finds that its shim had done so; repeatable. OSError."""
        artifact_id = self.attempt.log_artifact_id
        if not is_artifact_id(artifact_id) or artifact_id is None:
            return Kept((), {})
        root, user = store.root(), self.run_as
        target = Path(collected.folder_of(root, artifact_id))
        source = self.folder / FILES if user is None else self.folder / WORK / FILES
        if (target / MANIFEST).exists():
            return Kept(collected.read_manifest(root, artifact_id, self.run_id, self.attempt_id), {})
        if target.exists():
            _give_back(target, source, user)
        with suppress(OSError):
            source.rmdir()
        if not os.path.lexists(source):
            return Kept((), {})
        ensure_private_directory(str(target.parent))
        return collecting.collect(self, str(source), self._numbered if self.secret else bytes)

    def _numbered(self, name: bytes) -> bytes:
        # A value could stand in a name, and there is none to compare it with. The same name twice is counted on.
        return b"file"


def of(attempts: Iterable[RunAttempt]) -> list[Remains]:
    """Those that may have run and whose folder is still there."""
    found = [
        Remains(one, Path(launching.attempt_folder(one)), secret=True)
        for one in attempts
        if one.status == "lost" and one.error_code != NEVER_STARTED and one.executor_handle
    ]
    return [one for one in found if one.folder.is_dir()]


def taken(one: Remains) -> Kept | None:
    """What is to be put on record, None where it has to be tried again or looked at by a person."""
    try:
        return one.take()
    except (OSError, ArtifactFileError, ValueError) as error:
        logger.error("files of lost run %s cannot be kept: %s", one.run_id, type(error).__name__)
        return None


def _give_back(target: Path, source: Path, user: RunAs | None) -> None:
    """Puts back what a killed shim, or a killed session, had moved and not named yet: the names went with it.

    Where it goes back to is the script's, who may have put a link there: then nothing is put there. OSError.
    """
    if not os.path.lexists(source):
        source.mkdir(mode=0o700)
        if user is not None:
            os.chown(source, user.uid, user.gid, follow_symlinks=False)
    with suppress(FileNotFoundError):
        (target / MANIFEST_TEMPORARY).unlink()
    folder = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        free = (name for number in count(1) if not _exists(name := f"unnamed-{number}", folder))
        for number in range(1, FILES_MAX + 1):
            path = target / str(number)
            if not os.path.lexists(path) or not stat.S_ISREG(path.lstat().st_mode):
                continue
            if user is not None:
                os.chown(path, user.uid, user.gid, follow_symlinks=False)
            os.rename(path, next(free), dst_dir_fd=folder)
    finally:
        os.close(folder)
    target.rmdir()


def _exists(name: str, folder: int) -> bool:
    try:
        os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


class Waiting:
    """Remains of one session, looked at by a thread that touches files and /proc only."""

    def __init__(self) -> None:
        self._new: queue.SimpleQueue[Remains | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Remains, Kept]] = queue.SimpleQueue()
        self._known: set[UUID] = set()
        self._thread: threading.Thread | None = None

    def add(self, found: Iterable[Remains]) -> None:
        """Looks after them from now on; each once."""
        for one in found:
            if one.attempt.pk in self._known:
                continue
            self._known.add(one.attempt.pk)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="remains", daemon=True)
                self._thread.start()
            self._new.put(one)

    def done(self) -> list[tuple[Remains, Kept]]:
        """What was taken since the last call: it goes on record, then the folder goes."""
        found = []
        while not self._done.empty():
            found.append(self._done.get())
        return found

    def close(self) -> None:
        """Looks once more and waits a moment; what is left then is the next session's, or the auditor's."""
        if self._thread is not None:
            self._new.put(None)
            self._thread.join(PATIENCE_S)
            self._thread = None

    def _work(self) -> None:
        waiting: list[Remains] = []
        pause, goes_on = PAUSE_S, True
        while goes_on:
            goes_on = self._receive(waiting, pause if waiting else None)
            begun = time.monotonic()
            waiting = self._look(waiting)
            pause = max(PAUSE_S, SHARE * (time.monotonic() - begun))

    def _receive(self, waiting: list[Remains], timeout: float | None) -> bool:
        """Takes what is new; False where the session closes."""
        try:
            one = self._new.get(timeout=timeout)
            while one is not None:
                waiting.append(one)
                one = self._new.get_nowait()
        except queue.Empty:
            return True
        return False

    def _look(self, waiting: list[Remains]) -> list[Remains]:
        left = []
        for one in waiting:
            try:
                over = one.over()
            except OSError:
                over = False
            if not over:
                left.append(one)
            elif (kept := taken(one)) is not None:
                self._done.put((one, kept))
        return left
