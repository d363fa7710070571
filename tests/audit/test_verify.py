"""Verifying the trail and reading it, as queries and over the API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from apps.audit import queries
from apps.audit.models import AuditChain, AuditEntry
from apps.audit.services import INSTANCE, record
from tests.people import api, member

pytestmark = pytest.mark.django_db


@contextmanager
def unfrozen() -> Iterator[Any]:
    """As somebody with the database in their hands: the triggers are off."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'audit_entries'"
            )
            triggers = cursor.fetchall()
            for name, _sql in triggers:
                cursor.execute(f"DROP TRIGGER {name}")
        else:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute("ALTER TABLE audit_entries DISABLE TRIGGER USER")
        yield cursor
        if connection.vendor == "sqlite":
            for _name, sql in triggers:
                cursor.execute(sql)
        else:
            cursor.execute("ALTER TABLE audit_entries ENABLE TRIGGER USER")


def fill(count: int = 7, scope: str = INSTANCE) -> None:
    for number in range(count):
        record(
            scope,
            actor=("user", "u"),
            action=f"a.{number % 2}",
            subject=("x", "1"),
            metadata={},
            origin="tests",
        )


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "BATCH", 2)


def test_whole() -> None:
    assert queries.verify(INSTANCE) == queries.chain.Verdict(True, 0)
    fill()
    assert queries.verify(INSTANCE) == queries.chain.Verdict(True, 7)


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ("UPDATE audit_entries SET action = 'forged' WHERE sequence = 4", 4),
        ("UPDATE audit_entries SET actor_id = 'v' WHERE sequence = 1", 1),
        ("UPDATE audit_entries SET hash = previous_hash WHERE sequence = 3", 3),
        ("DELETE FROM audit_entries WHERE sequence = 5", 6),
        ("DELETE FROM audit_entries WHERE sequence = 1", 2),
        ("DELETE FROM audit_entries WHERE sequence >= 6", 6),
        ("UPDATE audit_chains SET sequence = 3", 8),
        ("DELETE FROM audit_chains", 8),
    ],
)
def test_every_change_shows(change: str, broken: int) -> None:
    fill()
    with unfrozen() as cursor:
        cursor.execute(change)
    verdict = queries.verify(INSTANCE)
    assert not verdict.valid
    assert verdict.first_broken == broken


def test_pages_over_the_api() -> None:
    owner = member("owner")
    fill(5, "default")
    caller = api(owner)
    first = caller("GET", "projects/default/audit?limit=2").json()
    assert [item["sequence"] for item in first["items"]] == [5, 4]
    rest = caller("GET", f"projects/default/audit?limit=2&cursor={first['next_cursor']}").json()
    assert [item["sequence"] for item in rest["items"]] == [3, 2]
    only = caller("GET", "projects/default/audit?action=a.1").json()
    assert {item["action"] for item in only["items"]} == {"a.1"} and only["next_cursor"] is None
    wrong = caller("GET", f"projects/default/audit?limit=3&cursor={first['next_cursor']}")
    assert (wrong.status_code, wrong.json()["code"]) == (409, "cursor_mismatch")
    entry = first["items"][0]
    assert entry["actor"] == {"type": "user", "id": "u"} and entry["occurred_at"].endswith("Z")


def test_proof_over_the_api() -> None:
    caller = api(member("admin"))
    fill(3, "default")
    path = "projects/default/audit/verify"
    assert caller("GET", path).json() == {"valid": True, "checked_through_sequence": 3}
    last = AuditEntry.objects.filter(scope="default").latest("sequence")
    AuditChain.objects.filter(scope="default").update(sequence=4)
    assert caller("GET", path).json() == {
        "valid": False,
        "checked_through_sequence": 3,
        "first_broken_sequence": 4,
        "expected_previous_hash": last.hash,
        "actual_previous_hash": last.hash,
    }
