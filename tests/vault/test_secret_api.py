"""Secrets over the API: set, listed, disabled and enabled; values go in and never come out (api.md)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.audit.models import AuditEntry
from apps.projects.policy import Grant
from apps.vault import resolving
from apps.vault.models import SecretSwitch
from apps.vault.references import Reference
from tests import people
from tests.people import Api
from tests.tasks.kit import make

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("key")]
URL = "projects/default/secrets"
VALUE = "a-value-that-nobody-sees"


@pytest.fixture
def api() -> Api:
    return people.api(people.member("admin", "ann"))


def put(api: Api, name: str = "pg", value: Any = VALUE, expected: int = 0, mutation: str = "") -> Any:
    body = {"value": value, "expected_version": expected, "mutation_id": mutation or f"m{expected}"}
    return api("PUT", f"{URL}/{name}", body)


def test_set_and_listed(api: Api) -> None:
    answer = put(api)
    assert answer.status_code == 201
    assert {**answer.json(), "created_at": ""} == {
        "status": "inserted", "name": "pg", "version": 1, "created_at": "",
        "secret_ref": Reference("default", "pg", 1).text,
    }  # fmt: skip
    assert put(api).status_code == 200
    assert put(api).json() == {**answer.json(), "status": "existing"}
    conflict = put(api, value="other")
    assert (conflict.status_code, conflict.json()["code"]) == (409, "local_secret_mutation_conflict")
    stale = put(api, mutation="m9")
    assert (stale.status_code, stale.json()["code"]) == (409, "local_secret_version_conflict")
    make(secrets={"A": "pg"})
    (item,) = api("GET", URL).json()["items"]
    assert {**item, "id": "", "created_at": "", "updated_at": ""} == {
        "id": "", "name": "pg", "version": 1, "provider": None, "enabled": True, "disabled_at": None, "used_by": 1,
        "created_at": "", "updated_at": "",
    }  # fmt: skip


@pytest.mark.parametrize("value", ["", "é\n\r\n'\" $x", "x" * 65_536, " blanks "])
def test_values_are_taken_byte_for_byte(api: Api, value: str) -> None:
    assert put(api, value=value).status_code == 201
    assert resolving.resolve("default", [Reference("default", "pg").text]) == [value]


def test_what_cannot_be_a_value_is_refused_by_name(api: Api) -> None:
    for value in ("x" * 65_537, "a\0b", None, 7, ["x"]):
        answer = put(api, value=value)
        assert (answer.status_code, list(answer.json()["errors"])) == (400, ["value"])
        assert "xxx" not in answer.content.decode()
    raw = b'{"value": "\\ud800", "expected_version": 0, "mutation_id": "m"}'
    assert list(api("PUT", f"{URL}/pg", raw).json()["errors"]) == ["value"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"expected_version": -1}, "expected_version"),
        ({"expected_version": "0x"}, "expected_version"),
        ({"expected_version": 2_147_483_647}, "expected_version"),
        ({"mutation_id": ""}, "mutation_id"),
        ({"mutation_id": "a b"}, "mutation_id"),
        ({"mutation_id": "x" * 65}, "mutation_id"),
        ({"more": 1}, "more"),
    ],
)
def test_refused_bodies(api: Api, change: dict[str, Any], field: str) -> None:
    body = {"value": VALUE, "expected_version": 0, "mutation_id": "m", **change}
    answer = api("PUT", f"{URL}/pg", body)
    assert (answer.status_code, list(answer.json()["errors"])) == (400, [field])
    assert VALUE not in answer.content.decode()


def test_names(api: Api) -> None:
    for name in ("a", "A.b_c-9", "x" * 128):
        assert put(api, name).status_code == 201
    for name in ("-a", ".a", "a b", "x" * 129, "%E4%B8%AD", "a%0A"):
        assert put(api, name).status_code in (400, 404)
    assert [item["name"] for item in api("GET", URL).json()["items"]] == sorted(["a", "A.b_c-9", "x" * 128])


def test_disabled_and_enabled(api: Api) -> None:
    put(api)
    first = api("POST", f"{URL}/pg/disable", {"mutation_id": "d1"})
    assert (first.status_code, first.json()["enabled"]) == (200, False)
    assert api("GET", URL).json()["items"][0]["enabled"] is False
    # A value can be set all the same, and stays out of use.
    assert put(api, expected=1, value="another-value").status_code == 201
    assert api("POST", f"{URL}/pg/enable", {"mutation_id": "e1"}).json()["enabled"] is True
    # The first call once more: the same answer, and nothing happens.
    assert api("POST", f"{URL}/pg/disable", {"mutation_id": "d1"}).json() == first.json()
    assert api("GET", URL).json()["items"][0]["enabled"] is True
    answer = api("POST", f"{URL}/pg/enable", {"mutation_id": "d1"})
    assert (answer.status_code, answer.json()["code"]) == (409, "local_secret_mutation_conflict")
    assert api("POST", f"{URL}/none/disable", {"mutation_id": "d"}).status_code == 404
    assert api("POST", f"{URL}/pg/disable", {}).status_code == 400
    actions = AuditEntry.objects.filter(subject_type="secret").order_by("sequence")
    assert list(actions.values_list("action", flat=True)) == [
        "secret.created", "secret.disabled", "secret.replaced", "secret.enabled",
    ]  # fmt: skip
    assert SecretSwitch.objects.count() == 2


def test_the_audit_trail_says_who_and_what_but_no_value(api: Api) -> None:
    put(api)
    entry = AuditEntry.objects.get(action="secret.created")
    assert entry.metadata == {"name": "pg", "version": 1, "mutation_id": "m0", "provider": None}
    assert (entry.actor_type, entry.subject_id, entry.origin) == ("user", "pg", "api")
    shown = people.api(people.member("owner"))("GET", "projects/default/audit").content.decode()
    assert "secret.created" in shown and VALUE not in shown


def test_a_project_is_masked(api: Api) -> None:
    put(api)
    stranger = people.api(people.account("zoe"))
    body = {"value": VALUE, "expected_version": 0, "mutation_id": "m"}
    for method, path, sent in (
        ("GET", URL, None),
        ("PUT", f"{URL}/pg", body),
        ("POST", f"{URL}/pg/disable", {"mutation_id": "m"}),
        ("POST", f"{URL}/pg/enable", {"mutation_id": "m"}),
    ):
        found = stranger(method, path, sent)
        nowhere = stranger(method, path.replace("default", "nowhere"), sent)
        assert (found.status_code, found.content) == (404, nowhere.content.replace(b"nowhere", b"default"))


def test_the_scope_must_be_named() -> None:
    admin = people.member("admin", "bob")
    assert people.api(admin, "*")("GET", URL).status_code == 403
    assert people.api(admin, "secret.manage")("GET", URL).status_code == 200


def test_names_of_one_project_say_nothing_of_another(api: Api) -> None:
    put(api)
    owner = people.member("owner")
    second = people.project(owner)
    other = people.api(owner)
    assert other("GET", f"projects/{second}/secrets").json()["items"] == []
    body = {"value": "theirs", "expected_version": 0, "mutation_id": "m0"}
    assert other("PUT", f"projects/{second}/secrets/pg", body).status_code == 201
    assert resolving.resolve("default", [Reference("default", "pg").text]) == [VALUE]
    assert resolving.resolve(second, [Reference(second, "pg").text]) == ["theirs"]


def test_pages_cost_the_same_however_long(api: Api) -> None:
    from apps.vault import services

    def statements(path: str) -> int:
        with CaptureQueriesContext(connection) as found:
            answer = api("GET", path)
        assert answer.status_code == 200
        return len(found)

    grant = Grant.system("default", "secret.manage", "tests")
    for number in range(7):
        for version in range(2):
            services.put(grant, f"s{number}", "v", mutation_id=f"m{version}", expected_version=version)
        make(name=f"t{number}", secrets={"A": f"s{number}"})
    statements(f"{URL}?limit=1")
    assert statements(f"{URL}?limit=1") == statements(f"{URL}?limit=200")
    page = api("GET", f"{URL}?limit=4").json()
    rest = api("GET", f"{URL}?limit=4&cursor={page['next_cursor']}").json()
    assert [item["name"] for item in page["items"] + rest["items"]] == [f"s{number}" for number in range(7)]
    assert {item["used_by"] for item in page["items"]} == {1} and rest["next_cursor"] is None


def test_an_archived_project_takes_no_secrets(api: Api) -> None:
    from apps.projects.models import Project
    from apps.triggers.services import archive_project

    put(api)
    owner = people.member("owner")
    archive_project(people.grant(owner, "project.manage"), Project.objects.get(pk="default").version)
    answer = put(api, expected=1, value="new")
    assert (answer.status_code, answer.json()["code"]) == (409, "project_archived")


def test_what_was_switched_is_never_changed(api: Api) -> None:
    from django.db import DatabaseError, transaction

    put(api)
    api("POST", f"{URL}/pg/disable", {"mutation_id": "d1"})
    rows = SecretSwitch.objects.filter(mutation_id="d1")
    for statement in (lambda: rows.update(enabled=True), lambda: rows._raw_delete("default")):
        with pytest.raises(DatabaseError), transaction.atomic():
            statement()
    assert not rows.get().enabled
