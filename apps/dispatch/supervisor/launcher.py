"""The launcher beside the tree: exec'd with an empty environment, and replaced when an old one is still there."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import NoReturn

from django.conf import settings

from apps.core import node
from apps.dispatch import run_as
from apps.dispatch.launcher import cgroups

PROGRAM = Path(__file__).resolve().parents[1] / "launcher" / "__main__.py"
OUTPUT = "launcher.log"
_END_S = 5.0


def get_ready() -> None:
    """What a node's scripts need before its launcher starts; raises ConfigurationError. No thread may live yet."""
    node.folder()
    run_as.arrange()
    cgroups.delegate()


def start() -> NoReturn:
    """Becomes the launcher. Its output goes to a file of the node: it outlives whoever reads ours."""
    folder = node.folder()
    output = os.open(folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    execute()


def execute() -> NoReturn:
    """Replaces this process by the launcher, with nothing of our environment."""
    arguments = [sys.executable, "-I", "-S", str(PROGRAM), "--node-dir", str(settings.NODE_DIR)]
    os.execve(sys.executable, arguments, {})  # noqa: S606


def end_old() -> None:
    """Ends the launcher of an `up` that was killed, so that a new version takes over; its shims live on."""
    pid = peer()
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            if not select.select([descriptor], [], [], _END_S)[0]:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                select.select([descriptor], [], [], _END_S)
        finally:
            os.close(descriptor)


def reachable() -> bool:
    """Whether a launcher of this node listens."""
    return peer() is not None


def wait_ready(seconds: float) -> bool:
    """Waits until it does, up to `seconds`."""
    end = time.monotonic() + seconds
    while not (found := reachable()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def peer() -> int | None:
    """The process that listens on the node's launcher socket, as the kernel knows it."""
    folder = Path(settings.NODE_DIR)
    try:
        short = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.settimeout(1)
            probe.connect(f"/proc/self/fd/{short}/launcher.sock")
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid: int = struct.unpack("3i", credentials)[0]
            return pid
    except OSError:
        return None
    finally:
        os.close(short)
