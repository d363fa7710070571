"""The rules of a project for approvals: seen by all, changed by few, with a fresh sign-in; no input breaks the page."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.access.models import User
from apps.audit.models import AuditEntry
from apps.projects import approval_policy
from tests.conftest import Time
from tests.panel.kit import browser
from tests.people import PASSWORD, account, member, signed_in

pytestmark = pytest.mark.django_db
PAGE = "/panel/p/default/approval-rules/"


def save(client: Client, **changed: Any) -> Any:
    """Sends the form as it stands, with changes."""
    html = client.get(PAGE).content.decode()
    sent: dict[str, Any] = {
        "version": re.search(r'name="version" value="(\d+)"', html)[1],  # type: ignore[index]
        "quorum": "1",
        "decider_roles": ["owner", "admin"],
        "remind_before_minutes": "30",
    }
    return client.post(PAGE, sent | changed)


def test_what_holds_without_a_change(client: Client) -> None:
    html = client.get(PAGE).content.decode()
    assert "Nobody has changed these rules yet" in html
    assert "1 person can decide here now." in html and "cannot be approved" in html
    assert 'name="decider_roles" value="owner" checked' in html
    assert 'name="exempt_roles" value="owner" checked' not in html


def test_changed_and_told_by_whom(client: Client, owner: User) -> None:
    other = member("admin", "ursula")
    answer = save(
        client, quorum="2", exempt_roles=["owner"], break_glass_roles=["operator", "owner"],
        decider_people=[other.subject_id], remind_before_minutes="5",
    )  # fmt: skip
    assert answer.status_code == 302
    now = approval_policy.of("default")
    assert (now.quorum, now.exempt_roles, now.break_glass_roles) == (2, ("owner",), ("owner", "operator"))
    assert (now.decider_people, now.remind_before_minutes) == ((other.subject_id,), 5)
    html = client.get(PAGE).content.decode()
    assert "Version 1" in html and "· ann" in html and "2 must approve" in html
    assert "what one of them asks for cannot be approved" in html, "two people, and both must approve"
    assert AuditEntry.objects.filter(action="approval_policy.changed").count() == 1
    assert f'value="{other.subject_id}" checked' in html
    log = client.get("/panel/p/default/audit/?act=approval_policy.changed").content.decode()
    assert "changed the rules for approvals" in log


def test_two_at_once_the_second_is_told_and_keeps_what_they_chose(client: Client) -> None:
    stale = {"version": "0", "quorum": "1", "decider_roles": ["owner"], "remind_before_minutes": "7"}
    assert save(client, remind_before_minutes="60").status_code == 302
    answer = client.post(PAGE, stale)
    html = answer.content.decode()
    assert answer.status_code == 409 and "version_conflict" in html
    assert 'name="version" value="1"' in html and 'value="7"' in html
    assert approval_policy.of("default").remind_before_minutes == 60


def test_rules_under_which_nobody_could_decide_are_refused(client: Client) -> None:
    answer = save(client, quorum="3")
    assert answer.status_code == 409
    assert "1 person could decide, and 3 would have to approve" in answer.content.decode()
    answer = save(client, decider_roles=[])
    assert answer.status_code == 409 and approval_policy.of("default").version == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"quorum": ""}, {"quorum": "0"}, {"quorum": "6"}, {"quorum": "two"}, {"quorum": "１"}, {"quorum": "99999999"},
        {"remind_before_minutes": "-1"}, {"remind_before_minutes": "1441"}, {"remind_before_minutes": "x"},
        {"decider_roles": ["viewer"]}, {"exempt_roles": ["operator"]}, {"break_glass_roles": ["root"]},
        {"decider_people": ["nobody"]}, {"decider_people": ["a" * 300]}, {"decider_people": ["x"] * 101},
        {"decider_people": ["a\0b"]}, {"version": ""}, {"version": "x"}, {"version": "-1"},
    ],
)  # fmt: skip
def test_bad_input_gets_a_sentence(client: Client, wrong: dict[str, Any]) -> None:
    answer = save(client, **wrong)
    assert answer.status_code in (400, 409), answer.status_code
    assert "ql-error" in answer.content.decode() or "ql-warning" in answer.content.decode()
    assert approval_policy.of("default").version == 0


@pytest.mark.parametrize("role", ["owner", "admin", "operator", "viewer"])
def test_who_may_change_them(owner: User, role: str) -> None:
    person = browser(owner if role == "owner" else member(role, "bob"))
    html = person.get(PAGE).content.decode()
    may = role in ("owner", "admin")
    assert ('<form method="post" class="ql-form"' in html) == may
    sent = {"version": "0", "quorum": "1", "decider_roles": ["owner"], "remind_before_minutes": "1"}
    assert person.post(PAGE, sent).status_code == (302 if may else 403)
    assert approval_policy.of("default").version == int(may)


def test_nobody_from_elsewhere_sees_them(owner: User) -> None:
    assert browser(account("eve")).get(PAGE).status_code == 404


def test_an_old_sign_in_is_asked_first_and_then_goes_on(owner: User, time: Time) -> None:
    client = signed_in(owner)
    time.advance(16 * 60_000)
    sent = {"version": "0", "quorum": "1", "decider_roles": ["owner", "admin"], "remind_before_minutes": "9"}
    asked = client.post(PAGE, sent)
    assert "Is it still you?" in asked.content.decode() and approval_policy.of("default").version == 0
    assert client.post(PAGE, {**sent, "confirm": "1", "confirm_password": PASSWORD}).status_code == 302
    assert approval_policy.of("default").remind_before_minutes == 9


def test_the_page_costs_the_same_however_many_people_there_are(client: Client) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as found:
            assert client.get(PAGE).status_code == 200
        return len(found)

    client.get(PAGE)
    member("admin", "a0")
    few = cost()
    for number in range(1, 8):
        member("admin", f"a{number}")
    assert cost() == few


def test_in_chinese(owner: User) -> None:
    html = browser(owner, language="zh-hans").get(PAGE).content.decode()
    assert "审批规则" in html
