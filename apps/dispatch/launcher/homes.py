"""The folder of a task whose scripts have a user of their own: made for that user, or handed over to it.

What is handed over may have been filled by a hostile script, and its processes may still be there. So nothing is
reached by a path from outside: every entry is opened first, without following links, and changed through what was
opened, and only where it is nobody else's and has no second name.
"""
# Why not pathlib: flags and descriptors that pathlib does not offer; the shim also stays small without it.
# ruff: noqa: PTH101, PTH102, PTH120

from __future__ import annotations

import os
import stat
from contextlib import suppress

from apps.dispatch.launcher.spec import RunAs

# Folders on the way to what is a script's own: only that user's group comes through a gate, and who came so far may
# pass the folders below it. Neither can be read.
GATE = 0o710
PASSABLE = 0o711
DEPTH_MAX = 100
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make(run_as: RunAs) -> None:
    """See that the task's folder is there and that user's; OSError."""
    project = os.path.dirname(run_as.home)
    with suppress(FileExistsError):
        os.mkdir(project, PASSABLE)
    if stat.S_IMODE(os.lstat(project).st_mode) != PASSABLE:
        os.chmod(project, PASSABLE)
    with suppress(FileExistsError):
        os.mkdir(run_as.home, 0o700)
    folder = os.open(run_as.home, _FOLDER)
    try:
        found = os.fstat(folder)
        if found.st_uid != run_as.uid:
            os.fchmod(folder, 0o700)
            # Itself last: until then this is begun anew after whatever happens, and nobody new comes in. Only what is
            # its last owner's: that one may be in there and link other people's files, whose count of names proves
            # nothing once the link is gone again.
            _hand_over(folder, found.st_uid, found.st_dev, run_as, DEPTH_MAX)
            os.fchown(folder, run_as.uid, run_as.gid)
    finally:
        os.close(folder)


def _hand_over(folder: int, owner: int, device: int, run_as: RunAs, depth: int) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                looked = os.open(entry.name, _LOOK, dir_fd=folder)
                try:
                    found = os.fstat(looked)
                    if found.st_uid != owner or found.st_dev != device:
                        continue
                    if stat.S_ISDIR(found.st_mode):
                        _hand_over_folder(looked, owner, device, run_as, depth - 1)
                    elif stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                        os.chown(f"/proc/self/fd/{looked}", run_as.uid, run_as.gid)
                finally:
                    os.close(looked)


def _hand_over_folder(looked: int, owner: int, device: int, run_as: RunAs, depth: int) -> None:
    inner = os.open(f"/proc/self/fd/{looked}/.", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if depth > 0:
            _hand_over(inner, owner, device, run_as, depth)
        os.fchown(inner, run_as.uid, run_as.gid)
    finally:
        os.close(inner)
