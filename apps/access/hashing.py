"""Passwords are hashed one at a time: a hash costs memory and a core, and anybody may ask for one."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from django.contrib.auth.hashers import Argon2PasswordHasher

from apps.access.errors import DoorBusy
from apps.core.throttle import Throttle

WAIT_S = 5.0
WAITING = 3
WAITING_PER_CLIENT = 2
FAILED_LATELY = 2
NICE = 10

_pool: tuple[int, ThreadPoolExecutor] | None = None
_counting = threading.Lock()
_waiting: Counter[str] = Counter()
_failures = Throttle(FAILED_LATELY)


class Argon2(Argon2PasswordHasher):
    """Argon2id with 46 MiB and one pass in one thread: a hash keeps one core busy, for a twentieth of a second.

    `encode` and `verify` raise DoorBusy when the process has hashed for others for five seconds.
    """

    time_cost = 1
    memory_cost = 47_104
    parallelism = 1

    def encode(self, password: str, salt: str) -> str:
        return str(_behind_others(super().encode, password, salt))

    def verify(self, password: str, encoded: str) -> bool:
        return bool(_behind_others(super().verify, password, encoded))


@contextmanager
def queue(client: str) -> Iterator[None]:
    """A place in the queue of those whose password is to be checked; raises DoorBusy where it is full.

    At most three are in it, two of one client: the other threads go on serving people who are signed in,
    and one client cannot keep all others out. Who failed twice within a minute comes in when nobody else is there.
    """
    with _counting:
        if not _has_room(client):
            raise DoorBusy(retry_after=1)
        _waiting[client] += 1
    try:
        yield
    finally:
        with _counting:
            _waiting[client] -= 1
            if not _waiting[client]:
                del _waiting[client]


def is_full(client: str) -> bool:
    """Whether this client would be turned away just now."""
    with _counting:
        return not _has_room(client)


def note_failure(client: str) -> None:
    """Called with whoever's password was wrong."""
    _failures.count(client)


def forget() -> None:
    """As in a new process; for tests."""
    _failures.clear()


def _has_room(client: str) -> bool:
    room = 1 if _failures.full(client) else WAITING
    return _waiting.total() < room and _waiting[client] < WAITING_PER_CLIENT


def _behind_others(function: Callable[..., Any], *arguments: str) -> Any:
    """Runs in the one thread that hashes, which gives way to those that serve pages."""
    waiting = _hasher().submit(function, *arguments)
    try:
        return waiting.result(WAIT_S)
    except TimeoutError:
        waiting.cancel()
        raise DoorBusy(retry_after=1) from None


def _hasher() -> ThreadPoolExecutor:
    """Made when it is first needed, in the process that needs it: threads do not live on in a fork."""
    global _pool
    with _counting:
        if _pool is None or _pool[0] != os.getpid():
            _pool = os.getpid(), ThreadPoolExecutor(1, "password", initializer=_give_way)
        return _pool[1]


def _give_way() -> None:
    # Niceness is a thread's own on Linux; elsewhere it would be the whole process's.
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
