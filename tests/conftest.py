"""What every test may use."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

from apps.core import clock, participants


@pytest.fixture
def seeded(transactional_db: None) -> Iterator[None]:
    """Real commits, with the rows that migrations made put back after the flush of an earlier test."""
    from django.apps import apps

    for app in ("identity", "projects"):
        importlib.import_module(f"apps.{app}.migrations.0002_rules").seed(apps, None)
    yield


class Time:
    """A clock the test moves by hand; milliseconds."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms

    def advance(self, ms: int) -> None:
        self.ms += ms


@pytest.fixture
def time() -> Iterator[Time]:
    """The injected clock, at a fixed moment of 2026."""
    source = Time(1_790_000_000_000)
    with clock.fixed(source):
        yield source


@pytest.fixture(autouse=True)
def _forget_notes() -> Iterator[None]:
    participants.begin()
    yield
