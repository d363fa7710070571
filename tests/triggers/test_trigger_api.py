"""Triggers over the API: making, changing, deleting, previewing (api.md, "Trigger")."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.audit.models import AuditEntry
from apps.core import clock
from apps.identity.models import IdentitySubject
from apps.triggers.models import Trigger, TriggerRevision
from tests.people import Api, account, api, give, member, token
from tests.tasks.kit import make

pytestmark = pytest.mark.django_db
URL = "projects/default/tasks/nightly/triggers"


@pytest.fixture
def owner(time: Any) -> Api:
    make(slug="nightly")
    return api(member("owner"))


def test_make_show_list_change_delete(owner: Api, time: Any) -> None:
    made = owner("POST", URL, {"kind": "cron", "schedule": "0  9 * * 1-5", "timezone": "Asia/Shanghai"})
    body = made.json()
    assert (made.status_code, made["ETag"]) == (201, '"1"')
    assert {name: body[name] for name in ("kind", "schedule", "timezone", "enabled", "misfire", "catch_up_max")} == {
        "kind": "cron", "schedule": "0 9 * * 1-5", "timezone": "Asia/Shanghai", "enabled": True, "misfire": "latest",
        "catch_up_max": 1,
    }  # fmt: skip
    assert (body["misfire_grace_ms"], body["jitter_ms"], body["input"]) == (60_000, 0, {})
    assert (body["url"], body["signing_key"]) == (None, None)
    assert body["words"] == "At 09:00, on Monday to Friday"
    assert body["next_fire_at"].endswith("T01:00:00.000Z")
    one = f"{URL}/{body['id']}"
    shown = owner("GET", one)
    assert shown["ETag"] == '"1"'
    assert shown.json() == {name: value for name, value in body.items() if name not in ("url", "signing_key")}
    assert owner("GET", URL).json() == {"items": [shown.json()], "next_cursor": None}

    assert owner("PATCH", one, {"enabled": False}).status_code == 428
    assert owner("PATCH", one, {"enabled": False}, If_Match='"7"').json()["current_version"] == 1
    changed = owner("PATCH", one, {"enabled": False, "id": body["id"], "kind": "cron"}, If_Match='"1"')
    assert (changed.status_code, changed["ETag"], changed.json()["next_fire_at"]) == (200, '"2"', None)
    same = owner("PATCH", one, {"enabled": False}, If_Match='"2"')
    assert same["ETag"] == '"2"'
    reset = owner("PATCH", one, {"enabled": None, "timezone": None, "jitter_ms": 5}, If_Match='"2"').json()
    assert (reset["enabled"], reset["timezone"], reset["jitter_ms"], reset["version"]) == (True, "UTC", 5, 3)
    assert owner("DELETE", one).status_code == 428
    assert owner("DELETE", one, None, If_Match='"3"').status_code == 204
    assert owner("GET", one).status_code == 404
    told = AuditEntry.objects.filter(subject_type="trigger").order_by("sequence")
    assert list(told.values_list("action", flat=True)) == [
        "trigger.created", "trigger.disabled", "trigger.changed", "trigger.deleted",
    ]  # fmt: skip
    assert list(TriggerRevision.objects.order_by("version").values_list("enabled", "deleted")) == [
        (True, False), (False, False), (True, False), (False, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, ["kind"]),
        ({"kind": "moon"}, ["kind"]),
        ({"kind": 5}, ["kind"]),
        ({"kind": "cron"}, ["schedule"]),
        ({"kind": "cron", "schedule": "* * * * *", "colour": 1}, ["colour"]),
        ({"kind": "cron", "schedule": 5}, ["schedule"]),
        ({"kind": "cron", "schedule": "* * * * *", "timezone": "Mars/Phobos"}, ["timezone"]),
        ({"kind": "cron", "schedule": "* * * * *", "timezone": "../../etc/passwd"}, ["timezone"]),
        ({"kind": "cron", "schedule": "* * * * *", "every_ms": 5_000}, ["every_ms"]),
        ({"kind": "interval", "every_ms": 999}, ["every_ms"]),
        ({"kind": "interval", "every_ms": True}, ["every_ms"]),
        ({"kind": "interval", "every_ms": "5000"}, ["every_ms"]),
        ({"kind": "interval"}, ["every_ms"]),
        ({"kind": "once", "at": "2020-01-01T00:00:00Z"}, ["at"]),
        ({"kind": "once", "at": "tomorrow"}, ["at"]),
        ({"kind": "once", "at": "2030-01-01T00:00:00"}, ["at"]),
        ({"kind": "once"}, ["at"]),
        ({"kind": "boot", "catch_up_max": 101, "jitter_ms": -1}, ["catch_up_max", "jitter_ms"]),
        ({"kind": "boot", "misfire": "x"}, ["misfire"]),
        ({"kind": "boot", "misfire_grace_ms": 86_400_001}, ["misfire_grace_ms"]),
        ({"kind": "boot", "input": [1]}, ["input"]),
        ({"kind": "boot", "input": {"a": "x" * 70_000}}, ["input"]),
        ({"kind": "boot", "enabled": "yes"}, ["enabled"]),
        ({"kind": "boot", "signed": True}, ["signed"]),
        ({"kind": "webhook", "schedule": "* * * * *"}, ["schedule"]),
    ],
)  # fmt: skip
def test_refusals_name_the_fields(owner: Api, body: Any, fields: list[str]) -> None:
    answer = owner("POST", URL, body)
    assert (answer.status_code, sorted(answer.json()["errors"])) == (400, fields)
    assert not Trigger.objects.exists()


def test_what_is_no_object(owner: Api) -> None:
    for body in ("[]", '"x"', "1", "null"):
        assert owner("POST", URL, body).status_code == 400


def test_a_schedule_that_is_not_understood_says_where(owner: Api) -> None:
    answer = owner("POST", URL, {"kind": "cron", "schedule": "30 5/10 * * * ?"})
    assert answer.status_code == 400
    found = answer.json()
    assert (found["code"], found["reason"], found["field"], found["offset"]) == (
        "schedule_invalid", "question_mark", 6, 14,
    )  # fmt: skip
    assert list(found["errors"]) == ["schedule"]


def test_words_of_the_old_panel(owner: Api) -> None:
    assert owner("POST", URL, {"kind": "cron", "schedule": "@boot"}).json()["kind"] == "boot"
    manual = owner("POST", URL, {"kind": "cron", "schedule": "@once"}).json()
    assert (manual["schedule"], manual["next_fire_at"]) == ("@once", None)
    daily = owner("POST", URL, {"kind": "cron", "schedule": "@Daily", "timezone": "UTC"}).json()
    assert daily["words"] == "At 00:00, every day"


def test_it_takes_the_right_to_start_as_well(owner: Api) -> None:
    operator = account("operator")
    give(operator, "operator")
    only_change = Api(token(operator, "task.read", "task.update"))
    body = {"kind": "cron", "schedule": "* * * * *"}
    assert only_change("POST", URL, body).status_code == 403
    assert Api(token(operator, "task.update", "run.start"))("POST", URL, body).status_code == 201
    trigger = Trigger.objects.get()
    one = f"{URL}/{trigger.pk}"
    assert only_change("PATCH", one, {"enabled": False}, If_Match='"1"').status_code == 403
    assert only_change("DELETE", one, None, If_Match='"1"').status_code == 403
    assert (trigger.author_type, trigger.author_id) == ("user", operator.subject_id)


def test_a_trigger_of_another_task_is_not_there(owner: Api) -> None:
    make(slug="other", name="Other")
    made = owner("POST", URL, {"kind": "boot"}).json()
    other = f"projects/default/tasks/other/triggers/{made['id']}"
    assert owner("GET", other).status_code == 404
    assert owner("DELETE", other, None, If_Match='"1"').status_code == 404
    assert owner("GET", f"{URL}/nonsense").status_code == 404


def test_a_whole_object_may_be_sent_back(owner: Api) -> None:
    bodies = (
        {"kind": "boot"},
        {"kind": "webhook"},
        {"kind": "cron", "schedule": "0 9 * * *", "timezone": "Asia/Shanghai"},
        {"kind": "interval", "every_ms": 5_000},
        {"kind": "once", "at": "2030-01-01T00:00:00Z"},
    )
    for body in bodies:
        one = f"{URL}/{owner('POST', URL, body).json()['id']}"
        shown = owner("GET", one).json()
        same = owner("PATCH", one, shown, If_Match='"1"')
        assert (same.status_code, same.json()) == (200, shown)
        changed = owner("PATCH", one, {**shown, "jitter_ms": 7}, If_Match='"1"').json()
        assert (changed["version"], changed["jitter_ms"]) == (2, 7)


def test_kind_stays(owner: Api) -> None:
    made = owner("POST", URL, {"kind": "boot"}).json()
    answer = owner("PATCH", f"{URL}/{made['id']}", {"kind": "cron"}, If_Match='"1"')
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["kind"])


def test_at_most_fifty(owner: Api) -> None:
    for _ in range(50):
        assert owner("POST", URL, {"kind": "boot"}).status_code == 201
    answer = owner("POST", URL, {"kind": "boot"})
    assert (answer.status_code, answer.json()["code"]) == (409, "too_many_triggers")
    page = owner("GET", f"{URL}?limit=20").json()
    rest = owner("GET", f"{URL}?limit=20&cursor={page['next_cursor']}").json()
    assert len({item["id"] for item in page["items"] + rest["items"]}) == 40


def test_lists_take_the_same_number_of_queries_for_any_number(owner: Api) -> None:
    counts = []
    for number in (2, 20):
        for _ in range(number):
            owner("POST", URL, {"kind": "cron", "schedule": "0 9 * * *"})
        with CaptureQueriesContext(connection) as captured:
            owner("GET", f"{URL}?limit=100")
        counts.append(len(captured))
    assert counts[0] == counts[1]
    other = account("leaver")
    give(other, "operator")
    for number in (1, 9):
        for _ in range(number):
            api(other)("POST", URL, {"kind": "cron", "schedule": "0 9 * * *"})
    IdentitySubject.objects.filter(pk=other.subject_id).update(status="disabled")
    with CaptureQueriesContext(connection) as captured:
        assert len(owner("GET", "projects/default/schedules/stranded").json()["items"]) == 10
    assert len(captured) <= counts[0] + 1


def test_an_archived_task_gets_no_triggers_and_its_own_can_go(owner: Api) -> None:
    made = owner("POST", URL, {"kind": "boot"}).json()
    task = owner("GET", "projects/default/tasks/nightly").json()
    owner("DELETE", "projects/default/tasks/nightly", None, If_Match='"1"')
    by_id = f"projects/default/tasks/{task['id']}/triggers"
    assert owner("POST", by_id, {"kind": "boot"}).json()["code"] == "task_archived"
    assert owner("GET", f"{by_id}/{made['id']}").status_code == 200
    assert owner("DELETE", f"{by_id}/{made['id']}", None, If_Match='"1"').status_code == 204


def test_the_author_who_left(owner: Api) -> None:
    operator = account("operator")
    give(operator, "operator")
    theirs = api(operator)("POST", URL, {"kind": "cron", "schedule": "0 9 * * *"}).json()
    owner("POST", URL, {"kind": "cron", "schedule": "0 9 * * *"})
    stranded = "projects/default/schedules/stranded"
    assert owner("GET", stranded).json()["items"] == []
    IdentitySubject.objects.filter(pk=operator.subject_id).update(status="disabled")
    assert [item["id"] for item in owner("GET", stranded).json()["items"]] == [theirs["id"]]
    owner("PATCH", f"{URL}/{theirs['id']}", {"schedule": "0 10 * * *"}, If_Match='"1"')
    assert owner("GET", stranded).json()["items"] == [], (
        "whoever changes a schedule answers for it from then on"
    )


class TestPreview:
    PATH = "projects/default/schedule-preview"

    def test_next_starts_in_both_zones(self, owner: Api, time: Any) -> None:
        answer = owner(
            "POST",
            self.PATH,
            {
                "schedule": "30 2 * * *",
                "timezone": "Europe/Berlin",
                "count": 2,
                "viewer_timezone": "Asia/Shanghai",
            },
        )
        found = answer.json()
        assert (answer.status_code, found["valid"], found["words"]) == (200, True, "At 02:30, every day")
        first = found["next"][0]
        assert first["local"].endswith("T02:30:00+02:00") and first["viewer"].endswith("T08:30:00+08:00")
        assert [(change["rule"], change["gap"]) for change in found["clock_changes"]] == [
            ("once", False), ("moved", True),
        ]  # fmt: skip
        assert found["runs_per_day"] == 1

    def test_a_refusal_is_an_answer(self, owner: Api) -> None:
        found = owner("POST", self.PATH, {"schedule": "0 0 L * *"}).json()
        assert found["valid"] is False
        assert found["error"]["reason"] == "last"
        assert (found["error"]["field"], found["error"]["offset"], found["error"]["length"]) == (3, 4, 1)

    def test_bad_requests(self, owner: Api) -> None:
        for body in (
            {},
            {"schedule": "* * * * *", "timezone": "x"},
            {"schedule": 5.5, "count": "x"},
            {"schedule": "* * * * *", "count": 101},
            {"schedule": "* * * * *", "viewer_timezone": "x"},
            {"schedule": "* * * * *", "sch": 1},
        ):
            assert owner("POST", self.PATH, body).status_code == 400, body

    @pytest.mark.parametrize(
        "name", ["posix/Europe/Berlin", "right/UTC", "localtime", "posixrules", "Factory", "../Europe/Berlin"]
    )
    def test_what_lies_beside_the_zones_is_none(self, owner: Api, name: str) -> None:
        """Another machine would not know it, or take leap seconds for an offset."""
        for field in ("timezone", "viewer_timezone"):
            assert owner("POST", self.PATH, {"schedule": "0 3 * * *", field: name}).status_code == 400

    def test_often(self, owner: Api) -> None:
        found = owner("POST", self.PATH, {"schedule": "*/10 * * * * *"}).json()
        sentences = {warning["code"]: warning["sentence"] for warning in found["warnings"]}
        assert sentences["frequent"] == "This starts 8,640 runs a day."
        often = owner("POST", self.PATH, {"kind": "interval", "every_ms": 10_000}).json()
        assert [warning["code"] for warning in often["warnings"]] == ["frequent"]

    def test_a_year_of_seconds_costs_nothing(self, owner: Api) -> None:
        begun = clock.now()
        owner("POST", self.PATH, {"schedule": "0 0 29 2 *", "count": 100})
        assert (clock.now() - begun).total_seconds() < 2
