"""What is behind `signal`, functions and plain numbers: the public module's wrappers and enumerations cost
each shim seventy pages and more."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
from collections.abc import Callable, Iterable

SIGINT: int = _signal.SIGINT
SIGTERM: int = _signal.SIGTERM
SIGCHLD: int = _signal.SIGCHLD
BLOCK: int = _signal.SIG_BLOCK
UNBLOCK: int = _signal.SIG_UNBLOCK
SET: int = _signal.SIG_SETMASK
IGNORE: object = _signal.SIG_IGN
DEFAULT: object = _signal.SIG_DFL
set_handler: Callable[[int, object], object] = _signal.signal
set_wakeup: Callable[..., int] = _signal.set_wakeup_fd
set_mask: Callable[[int, Iterable[int]], object] = _signal.pthread_sigmask
