"""Passwords are hashed one at a time: a hash costs memory and a core, and anybody may ask for one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from django.contrib.auth.hashers import Argon2PasswordHasher

from apps.access.errors import DoorBusy

WAIT_S = 5.0
WAITING = 3
WAITING_PER_CLIENT = 2

_hashing = threading.BoundedSemaphore(1)
_counting = threading.Lock()
_waiting: Counter[str] = Counter()


class Argon2(Argon2PasswordHasher):
    """Argon2id with 46 MiB and one pass in one thread: a hash keeps one core busy, for a twentieth of a second.

    `encode` and `verify` raise DoorBusy when the process has hashed for others for five seconds.
    """

    time_cost = 1
    memory_cost = 47_104
    parallelism = 1

    def encode(self, password: str, salt: str) -> str:
        with _one_at_a_time():
            return str(super().encode(password, salt))

    def verify(self, password: str, encoded: str) -> bool:
        with _one_at_a_time():
            return bool(super().verify(password, encoded))


@contextmanager
def queue(client: str) -> Iterator[None]:
    """A place in the queue of those whose password is to be checked; raises DoorBusy where it is full.

    At most three are in it, two of one client: the other threads go on serving people who are signed in,
    and one client cannot keep all others out.
    """
    with _counting:
        if _waiting.total() >= WAITING or _waiting[client] >= WAITING_PER_CLIENT:
            raise DoorBusy(retry_after=1)
        _waiting[client] += 1
    try:
        yield
    finally:
        with _counting:
            _waiting[client] -= 1
            if not _waiting[client]:
                del _waiting[client]


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    if not _hashing.acquire(timeout=WAIT_S):
        raise DoorBusy(retry_after=1)
    try:
        yield
    finally:
        _hashing.release()
