"""Verifying the trail and reading it, as queries and over the API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from apps.audit import queries
from apps.audit.documents import document
from apps.audit.models import AuditChain, AuditEntry
from apps.audit.services import INSTANCE, record
from apps.core import chain, clock
from tests.conftest import Time
from tests.people import account, api, member

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


def test_entries_are_found_by_act_actor_and_time(time: Time) -> None:
    owner = member("owner")
    caller = api(owner)
    moments = []
    for number in range(4):
        time.advance(60_000)
        moments.append(clock.rfc3339(clock.now()))
        who = owner.subject_id if number == 1 else "u"
        record("default", actor=("user", who), action=f"a.{number % 2}", subject=("x", "1"), origin="tests")
    for query, expected in (
        (f"actor={owner.subject_id}", [2]), ("actor=nobody", []), ("action=a.1", [4, 2]),
        (f"since={moments[1]}", [4, 3, 2]), (f"until={moments[1]}", [1]),
        (f"since={moments[1]}&until={moments[3]}&action=a.0", [3]),
    ):  # fmt: skip
        found = caller("GET", f"projects/default/audit?{query}").json()["items"]
        assert [item["sequence"] for item in found] == expected, query
        lines = b"".join(caller("GET", f"projects/default/audit/export?{query}").streaming_content)
        assert [json.loads(line)["sequence"] for line in lines.splitlines()] == expected[::-1], query
    for query in ("since=yesterday", "untill=x", "limit=2"):
        assert caller("GET", f"projects/default/audit/export?{query}").status_code == 400


def test_the_export_is_json_lines_that_prove_themselves() -> None:
    """Whoever has the lines checks the chain without the panel."""
    fill(7, "default")
    answer = api(member("admin"))("GET", "projects/default/audit/export")
    assert answer["Content-Type"] == "application/x-ndjson" and "attachment" in answer["Content-Disposition"]
    assert answer["Cache-Control"] == "no-store"
    lines = [json.loads(line) for line in b"".join(answer.streaming_content).splitlines()]
    assert [line["sequence"] for line in lines] == list(range(1, 8))
    before = None
    for line, entry in zip(
        lines, AuditEntry.objects.filter(scope="default").order_by("sequence"), strict=True
    ):
        assert line["previous_hash"] == before
        before = line["hash"]
        assert chain.link(line["previous_hash"], document(entry)) == before


def test_the_export_ends_although_the_trail_grows() -> None:
    fill(3)
    seen = []
    for entry in queries.walk(INSTANCE):
        seen.append(entry.sequence)
        fill(1)
    assert seen == [1, 2, 3]


def test_the_trail_of_the_instance_is_for_its_administrators() -> None:
    root, owner = account("root", administrator=True), member("owner")
    caller = api(root)
    items = caller("GET", "audit").json()["items"]
    assert {"account.created", "token.created"} <= {item["action"] for item in items}
    assert caller("GET", "audit/verify").json()["valid"]
    lines = b"".join(caller("GET", "audit/export").streaming_content).splitlines()
    assert len(lines) == AuditEntry.objects.filter(scope=INSTANCE).count()
    assert caller("GET", "projects/default/audit").status_code == 404, "and it is no key to projects"
    for path in ("audit", "audit/verify", "audit/export"):
        assert api(owner)("GET", path).status_code == 403
        assert api(root, "run.read")("GET", path).status_code == 403
