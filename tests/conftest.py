"""What every test may use."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from datetime import datetime

import pytest
import time_machine
from django.db.backends.sqlite3.base import DatabaseOperations
from django.utils import translation

from apps.core import clock, participants

# When a suite that was written by day breaks: ends of days in UTC and in Shanghai, of a month and of a year, the day
# that most years lack, and clocks that are put forward and back in Berlin.
HOURS = {
    "night": "2026-12-31T23:59:58Z",
    "shanghai": "2027-01-31T15:59:58Z",
    "leap": "2028-02-29T06:30:00Z",
    "forward": "2027-03-28T00:59:58Z",
    "back": "2026-10-25T00:59:58Z",
}
_DATABASE = {"db", "transactional_db", "seeded"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--second-engine",
        action="store_true",
        help="leaves out what another engine would show again: tests without a database, and those marked one_engine",
    )
    parser.addoption(
        "--at",
        metavar="MOMENT",
        action="append",
        help="runs every test at this moment, as 2028-02-29T23:59:58Z, or at all of HOURS with `hours`; may be given "
        "more than once. Processes that tests start, files and PostgreSQL keep the real time",
    )
    parser.addoption(
        "--slow-browser",
        metavar="MS",
        type=int,
        help="browsers of end-to-end tests get every answer this many milliseconds later and run their scripts slower: "
        "a test that looks before the page is there fails",
    )


def pytest_configure(config: pytest.Config) -> None:
    if lag_ms := config.getoption("--slow-browser"):
        os.environ["SLOW_BROWSER_MS"] = str(lag_ms)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    moments: dict[str, str | None] = {}
    if given := metafunc.config.getoption("--at"):
        for one in given:
            moments |= HOURS if one == "hours" else {one: one}
    elif metafunc.definition.get_closest_marker("every_hour"):
        moments = {"now": None, **HOURS}
    if moments:
        metafunc.parametrize("_hour", moments.values(), indirect=True, ids=moments)


@pytest.fixture(autouse=True)
def _hour(request: pytest.FixtureRequest) -> Iterator[None]:
    """The moment a test begins at by its own clock, which goes on from there; the real one where none is asked."""
    at = getattr(request, "param", None)
    if at is None:
        yield
        return
    with time_machine.travel(datetime.fromisoformat(at), tick=True):
        yield


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--second-engine"):
        return
    config.hook.pytest_deselected(items=[item for item in items if not _knows_its_engine(item)])
    items[:] = [item for item in items if _knows_its_engine(item)]


def _knows_its_engine(item: pytest.Item) -> bool:
    if item.get_closest_marker("one_engine"):
        return False
    stored = item.get_closest_marker("django_db") or item.get_closest_marker("e2e")
    return stored is not None or not _DATABASE.isdisjoint(getattr(item, "fixturenames", ()))


def _flush_kept_rows() -> None:
    """Lets the flush between tests empty tables whose rows nobody may delete; PostgreSQL truncates anyway."""
    flush = DatabaseOperations.execute_sql_flush

    def execute_sql_flush(self: DatabaseOperations, sql_list: list[str]) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
            kept = [(name, sql) for name, sql in cursor.fetchall() if name.endswith("_no_delete")]
        drops = [f"DROP TRIGGER {name}" for name, _sql in kept]
        flush(self, [*drops, *sql_list, *(sql for _name, sql in kept)])

    DatabaseOperations.execute_sql_flush = execute_sql_flush


_flush_kept_rows()


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
    from apps.access import hashing, locks

    participants.begin()
    locks.forget()
    hashing.forget()
    yield
    # The language of the last page that a test's client asked for would be the next test's.
    translation.deactivate()
