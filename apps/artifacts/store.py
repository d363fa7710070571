"""The folder of all logs: whether there is room for one more (secrets-and-artifacts.md §5.2, §5.3)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from apps.artifacts import facts
from apps.artifacts.errors import CapacityUnavailable
from qinglong.environment import ConfigurationError

MINIMUM_FREE_MAX = 1_099_511_627_776


@dataclass(frozen=True)
class Capacity:
    """Bytes of the file system that holds the logs; `available` is what an ordinary user may still take."""

    available: int
    total: int


def root() -> str:
    """The absolute folder of all logs; raises ConfigurationError."""
    path = str(settings.LOG_ROOT)
    if not path.startswith("/") or "\0" in path:
        raise ConfigurationError("log_root_invalid", "The folder of the logs must be an absolute path.")
    return path


def minimum_free() -> int:
    """Bytes that stay free whatever runs: 0 … 1 TiB, from QINGLONG_DISK_RESERVE_MB or the profile."""
    value = settings.LOG_MINIMUM_FREE_BYTES
    if type(value) is not int or not 0 <= value <= MINIMUM_FREE_MAX:
        raise ConfigurationError("log_minimum_free_invalid", "The free reserve is 0 to 1 TiB in bytes.")
    return value


def inspect(path: str) -> Capacity:
    """Room on the file system of `path`; raises CapacityUnavailable where it cannot be told."""
    try:
        found = os.statvfs(path)
    except (OSError, ValueError):
        raise CapacityUnavailable from None
    capacity = Capacity(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)
    if capacity.total < 1 or not 0 <= capacity.available <= capacity.total:
        raise CapacityUnavailable
    return capacity


def capacity() -> Capacity:
    """Room for all logs, looked at where their folder lies or will be made; raises CapacityUnavailable."""
    path = Path(root())
    return inspect(str(next(place for place in (path, *path.parents) if place.exists())))


def reserve(maximum_bytes: int) -> None:
    """Admits a log of at most `maximum_bytes` (65,536 – 1 GiB); makes nothing but the root folder.

    It is an answer about now, not a lease: a disk may still fill while a script runs. Raises
    CapacityUnavailable, and facts.UnsafeTarget where the root is no folder of its own.
    """
    if not facts.LOG_BYTES_MIN <= maximum_bytes <= facts.LOG_BYTES_MAX:
        raise ValueError("the quota is out of bounds")
    path = root()
    try:
        facts.ensure_private_directory(path)
    except OSError:
        raise CapacityUnavailable from None
    if inspect(path).available < minimum_free() + maximum_bytes:
        raise CapacityUnavailable
