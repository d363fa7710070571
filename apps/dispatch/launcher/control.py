"""The control socket between a session and a shim: small datagrams, nobody ever waits for the other.

To the shim: `go`, `stop`, `stop:deadline`. From it, words with a space between, the last one to the end:
`ready <pid> <start ticks> <boot id>`, `failed <code> <detail>`, `started <pid> <epoch ms>`, `ended`.
"""

from __future__ import annotations

import socket
from contextlib import suppress

MESSAGE_BYTES_MAX = 4096
# Made once: joining two flags of an enum touches more memory than sending a message does.
_SEND_FLAGS = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)


def receive_all(control: socket.socket) -> tuple[list[bytes], bool]:
    """Messages of a non-blocking socket, and whether its other end is gone.

    A peer that died with unread messages is reported as an error *before* what it had sent; the error comes
    once, so one more look finds a `go` or an `ended` that would be lost otherwise.
    """
    found: list[bytes] = []
    failed = False
    while True:
        try:
            message = control.recv(MESSAGE_BYTES_MAX)
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
        self._socket: socket.socket | None = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self.descriptor = descriptor

    @property
    def open(self) -> bool:
        return self._socket is not None

    def send(self, *words: object) -> None:
        """Best effort: a session that does not read or does not live loses the message, no more."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send(" ".join(map(str, words)).encode(), _SEND_FLAGS)

    def receive(self) -> list[bytes]:
        """Messages that wait. Closes itself at the end of file and at any lasting error."""
        if self._socket is None:
            return []
        found, ended = receive_all(self._socket)
        if ended:
            self.close()
        return found

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
