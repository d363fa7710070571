"""The C functions behind `signal`: what the public module wraps around them costs each shim seventy pages."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
from collections.abc import Callable, Iterable

IGNORE: object = _signal.SIG_IGN
set_handler: Callable[[int, object], object] = _signal.signal
set_wakeup: Callable[..., int] = _signal.set_wakeup_fd
set_mask: Callable[[int, Iterable[int]], object] = _signal.pthread_sigmask
