"""The control socket between a session and a shim: small datagrams, nobody ever waits for the other.

The first one to the shim is its specification, up to SPEC_BYTES_MAX; a longer one comes in a memory file. A warm
shim can be given its next one with `go` in front, where nothing of it is left to be stored.
To the shim: `go`, `stop`, `stop:deadline`. From it, words with a space between, the last one to the end:
`ready <pid> <start ticks> <boot id>`, `failed <code> <detail>`, `started <pid> <epoch ms>`, `ended`, or
`ended warm` from a shim that waits for another specification (shim.py).
"""

from __future__ import annotations

import os
from contextlib import suppress

GO = b"go"
MESSAGE_BYTES_MAX = 4096
SPEC_BYTES_MAX = 65_536


def receive_all(control: int) -> tuple[list[bytes], bool]:
    """Messages of a non-blocking socket, and whether its other end is gone.

    A peer that died with unread messages is reported as an error *before* what it had sent; the error comes
    once, so one more look finds a `go` or an `ended` that would be lost otherwise.
    """
    found: list[bytes] = []
    failed = False
    while True:
        try:
            message = os.read(control, MESSAGE_BYTES_MAX)
        except BlockingIOError:
            return found, failed
        except OSError:
            if failed:
                return found, True
            failed = True
            continue
        if not message:
            return found, True
        found.append(message)


class Channel:
    """The control socket. The session behind it may be gone at any moment; nobody here ever minds."""

    def __init__(self, descriptor: int) -> None:
        # No socket object: its making asks the kernel four questions, and reading and writing do as well.
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.open = True

    def send(self, *words: object) -> bool:
        """Best effort: a session that does not read or does not live loses the message, no more.

        False where nobody can have got it.
        """
        if self.open:
            with suppress(OSError):  # SIGPIPE is ignored, as always under Python
                os.write(self.descriptor, " ".join(map(str, words)).encode())
                return True
        return False

    def take_spec(self) -> bytes:
        """The first datagram, sent before the shim was asked for. OSError when there is none."""
        return os.read(self.descriptor, SPEC_BYTES_MAX)

    def take_next_spec(self) -> bytes | None:
        """Another specification, where one waits, with `go` in front or not. Closes itself when the session is gone."""
        try:
            data = os.read(self.descriptor, len(GO) + SPEC_BYTES_MAX)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self.close()
        # A stop may come late, for the run that has just ended: it is nobody's.
        return data if data.startswith((b"{", GO + b"{")) else None

    def receive(self) -> list[bytes]:
        """Messages that wait. Closes itself at the end of file and at any lasting error."""
        if not self.open:
            return []
        found, ended = receive_all(self.descriptor)
        if ended:
            self.close()
        return found

    def close(self) -> None:
        if self.open:
            self.open = False
            os.close(self.descriptor)
