"""A few whole runs inside the launcher before it serves (architecture §2).

Python settles what it has run: specialised instructions, cached lookups, memory laid out. Every shim forked
after that inherits it and need not change, and so copy, the pages itself: a third less of both time and memory.
"""
# Why not pathlib: the launcher stays small without it.
# ruff: noqa: PTH102, PTH106, PTH108

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress

from apps.dispatch.launcher import reading, shim
from apps.dispatch.launcher.control import Channel
from apps.dispatch.launcher.loop import Loop
from apps.dispatch.launcher.signals import set_mask, set_wakeup
from apps.dispatch.launcher.spec import CommandBody, LaunchSpec, LogSpec

ROUNDS = 12  # instructions are specialised at the eighth call; a few more settle what calls them
_PROGRAM = "/bin/true"
_MEMORY = "/dev/shm"  # noqa: S108  - a new private folder in it, where syncing costs nothing


def rehearse(node: str) -> None:
    """Run a program that does nothing a few times, in memory where there is room, else under `node`.

    Best effort, and nothing is left of it but handlers and descriptors, which the caller replaces and closes;
    SIGTERM and SIGINT stay blocked until the caller can take them.
    """
    set_mask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    for place in (_MEMORY, node):
        folder = f"{place}/rehearsal-{os.urandom(16).hex()}"
        with suppress(OSError):
            os.mkdir(folder, 0o700)
            break
    with suppress(Exception):
        for number in range(ROUNDS):
            _once(folder, number)
            reading.forget()
    set_wakeup(-1)
    _remove(folder)


def _once(folder: str, number: int) -> None:
    spec = _spec(folder, f"00000000-0000-7000-8000-{number:012x}", f"local-{number:030x}")
    session, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with session:
        session.send(spec.encode())
        session.send(b"go")
        session.shutdown(socket.SHUT_WR)  # one run each: nobody is there to hand over another
        channel = Channel(control.detach())
        shim.serve(channel, Loop(channel), None, "rehearsal", os.devnull, receipt_tries=0)
        channel.close()


def _spec(folder: str, number: str, artifact: str) -> LaunchSpec:
    return LaunchSpec(
        run_id=number,
        attempt_id=number,
        callback_sequence=1,
        token="-" * 32,
        body=CommandBody((_PROGRAM,)),
        env={"HOME": folder},
        cwd=folder,
        attempt_dir=f"{folder}/attempts/{number}",
        log=LogSpec(f"{folder}/logs", artifact, 65_536),
        receipts_root=f"{folder}/receipts",
    )


def _remove(folder: str) -> None:
    for path, folders, files in os.walk(folder, topdown=False):
        with suppress(OSError):
            for name in files:
                os.unlink(f"{path}/{name}")
            for name in folders:
                os.rmdir(f"{path}/{name}")
    with suppress(OSError):
        os.rmdir(folder)
