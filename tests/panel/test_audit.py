"""The audit logs in the panel: filters, export, and the log of the instance."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from apps.access.models import User
from apps.access.services import change_person, invite
from apps.audit.models import AuditEntry
from apps.core import clock
from apps.projects.services import set_project_status
from tests.conftest import Time
from tests.panel.kit import browser
from tests.people import account, grant, member, subject

pytestmark = pytest.mark.django_db
PROJECT = "/panel/p/default/audit/"


@pytest.fixture
def root() -> User:
    return member("owner", "ann", administrator=True)


@pytest.fixture
def client(root: User) -> Client:
    return browser(root)


def numbers(answer: Any) -> list[int]:
    lines = b"".join(answer.streaming_content).splitlines()
    return [json.loads(line)["sequence"] for line in lines]


def test_the_log_of_the_instance_names_who_signed_in_and_was_shut_out(root: User, client: Client) -> None:
    bob = account("bob")
    change_person(bob.subject_id, 1, status="disabled", actor=subject(root), origin="panel")
    invite(subject(root), username="nina", origin="panel")
    html = client.get("/panel/audit/").content.decode()
    assert (
        "link for nina" in html and "signed in" in html and "disabled an identity" in html and "bob" in html
    )
    assert 'href="/panel/audit/"' in client.get("/panel/").content.decode()
    only = client.get("/panel/audit/?act=subject.disabled").content.decode()
    assert "bob" in only and "<code>session.started</code>" not in only
    said = client.post("/panel/audit/check/", follow=True).content.decode()
    assert "The chain is whole" in said
    exported = numbers(client.get("/panel/audit/?export=1"))
    assert exported == list(range(1, AuditEntry.objects.filter(scope="").count() + 1))
    viewer = browser(member("owner", "olga"))
    for path in ("", "?export=1", "check/"):
        call = viewer.post if path == "check/" else viewer.get
        assert call(f"/panel/audit/{path}").status_code == 403
    assert "/panel/audit/" not in viewer.get("/panel/").content.decode()


def test_acts_are_found_by_person_and_day(root: User, client: Client, time: Time) -> None:
    adam = member("admin", "adam")
    for who, name in ((root, "one"), (adam, "two")):
        browser(who).post("/panel/p/default/roles/", {"username": account(name).username, "role": "viewer"})
        time.advance(86_400_000)
    client = browser(root)
    first, last = AuditEntry.objects.filter(scope="default").order_by("sequence")
    days = [clock.rfc3339(entry.occurred_at)[:10] for entry in (first, last)]
    for query, expected in (
        ("who=adam", [last.sequence]), ("who=ADAM", [last.sequence]), (f"who={root.subject_id}", [first.sequence]),
        (f"since={days[1]}", [last.sequence]), (f"until={days[0]}", [first.sequence]),
        (f"since={days[0]}&until={days[1]}", [first.sequence, last.sequence]),
    ):  # fmt: skip
        assert numbers(client.get(f"{PROJECT}?{query}&export=1")) == expected, query
        html = client.get(f"{PROJECT}?{query}").content.decode()
        assert html.count('<tr data-row="') == len(expected), query
    for query in ("who=nobody-here", "since=yesterday", "until=2026-13-01", "since=0001-01-01"):
        html = client.get(f"{PROJECT}?{query}").content.decode()
        assert "filter-wrong" in html and '<tr data-row="' not in html


def test_what_happened_can_be_read_in_an_archived_project(root: User, client: Client) -> None:
    set_project_status(grant(root, "project.manage"), 1, "archived")
    assert "archived the project" in client.get(PROJECT).content.decode()
    assert numbers(client.get(f"{PROJECT}?export=1")) == [1]
