"""Projects are made, renamed, archived and restored."""

from __future__ import annotations

from typing import Any

import pytest

from apps.audit.models import AuditEntry
from apps.core.errors import VersionConflict
from apps.projects.errors import ProjectArchived
from apps.projects.models import Project
from apps.projects.policy import Grant, confirm
from apps.projects.services import set_project_status
from tests.people import account, api, grant, member, project

pytestmark = pytest.mark.django_db


def test_create_makes_the_caller_owner() -> None:
    caller = api(account("root", administrator=True))
    answer = caller("POST", "projects", {"name": "Shop", "slug": "shop"})
    assert answer.status_code == 201 and answer["ETag"] == '"1"'
    made = answer.json()
    assert set(made) == {"id", "slug", "name", "status", "version", "created_at", "updated_at"}
    assert caller("GET", f"projects/{made['id']}").json() == made == caller("GET", "projects/shop").json()
    assert caller("GET", "me").json()["roles"] == [
        {"project": {"id": made["id"], "slug": "shop"}, "role": "owner"}
    ]
    assert set(AuditEntry.objects.filter(action="project.created").values_list("scope", flat=True)) == {
        "",
        made["id"],
    }
    taken = caller("POST", "projects", {"name": "Shop", "slug": "shop"})
    assert (taken.status_code, taken.json()["code"]) == (409, "slug_taken")


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"name": "X", "slug": "-x"}, "slug"),
        ({"name": "X", "slug": "X"}, "slug"),
        ({"name": "X", "slug": "x\n"}, "slug"),
        ({"name": "X", "slug": "0190a0b0-c0d0-7000-8000-000000000001"}, "slug"),
        ({"name": " ", "slug": "x"}, "name"),
        ({"name": "a\x01", "slug": "x"}, "name"),
        ({"name": "X"}, "slug"),
        ({"name": "X", "slug": "x", "id": "mine"}, "id"),
    ],
)
def test_create_refuses(values: dict[str, Any], part: str) -> None:
    answer = api(account("root", administrator=True))("POST", "projects", values)
    assert answer.status_code == 400
    assert part in answer.json()["errors"]
    assert Project.objects.count() == 1


def test_a_slug_that_is_an_id_is_refused() -> None:
    owner = member("owner", administrator=True)
    caller = api(owner)
    assert caller("PATCH", "projects/default", {"slug": "main"}, If_Match='"1"').status_code == 200
    answer = caller("POST", "projects", {"name": "X", "slug": "default"})
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["slug"])
    back = caller("PATCH", "projects/main", {"slug": "default"}, If_Match='"2"')
    assert back.json()["slug"] == "default"


def test_rename_needs_the_version_read() -> None:
    caller = api(member("owner"))
    assert caller("PATCH", "projects/default", {"name": "New"}).status_code == 428
    for text in ("1", '"x"', '"99999999999"', "*"):
        assert caller("PATCH", "projects/default", {"name": "New"}, If_Match=text).status_code == 400
    stale = caller("PATCH", "projects/default", {"name": "New"}, If_Match='"7"')
    assert (stale.status_code, stale.json()["code"], stale.json()["current_version"]) == (
        409,
        "version_conflict",
        1,
    )
    done = caller("PATCH", "projects/default", {"name": "New"}, If_Match='W/"1"')
    assert done["ETag"] == '"2"' and done.json()["name"] == "New"
    same = caller("PATCH", "projects/default", {"name": "New"}, If_Match='"2"')
    assert same["ETag"] == '"2"'


def test_patch_rules() -> None:
    caller = api(member("owner"))
    shown = caller("GET", "projects/default").json()
    whole = caller("PATCH", "projects/default", {**shown, "name": "Else"}, If_Match='"1"')
    assert whole.status_code == 200
    for body, part in (
        ({"version": 9}, "version"),
        ({"nonsense": 1}, "nonsense"),
        ({"name": None}, "name"),
        ({"name": ["x"]}, "name"),
    ):
        answer = caller("PATCH", "projects/default", body, If_Match='"2"')
        assert (answer.status_code, list(answer.json()["errors"])) == (400, [part])
    assert caller("PATCH", "projects/default", [], If_Match='"2"').status_code == 400


def test_archive_and_restore() -> None:
    owner = member("owner")
    caller = api(owner)
    with pytest.raises(VersionConflict):
        set_project_status(grant(owner, "project.manage"), 5, "archived")
    assert set_project_status(grant(owner, "project.manage"), 1, "archived").version == 2
    assert caller("GET", "projects/default").json()["status"] == "archived"
    refused = caller("PATCH", "projects/default", {"name": "New"}, If_Match='"2"')
    assert (refused.status_code, refused.json()["code"]) == (409, "project_archived")
    with pytest.raises(ProjectArchived):
        grant(owner, "project.manage")
    restored = set_project_status(grant(owner, "project.manage", while_archived=True), 2, "active")
    assert (restored.status, restored.version) == ("active", 3)


def test_system_grants_hold_while_active() -> None:
    owner = member("owner")
    fire, read = (
        Grant.system("default", "run.start", "scheduler"),
        Grant.system("default", "run.read", "sweep"),
    )
    confirm(fire)
    set_project_status(grant(owner, "project.manage"), 1, "archived")
    confirm(read)
    with pytest.raises(ProjectArchived):
        confirm(fire)


def test_lists_show_only_what_one_has_a_role_in() -> None:
    owner = account("owner")
    for slug in ("c", "a", "b"):
        project(owner, slug)
    caller = api(owner)
    first = caller("GET", "projects?limit=2").json()
    assert [item["slug"] for item in first["items"]] == ["a", "b"]
    second = caller("GET", f"projects?limit=2&cursor={first['next_cursor']}").json()
    assert [item["slug"] for item in second["items"]] == ["c"] and second["next_cursor"] is None
    assert api(account("else"))("GET", "projects").json() == {"items": [], "next_cursor": None}
    for text in ("0", "201", "x", "-1", "1.5"):
        assert caller("GET", f"projects?limit={text}").status_code == 400
    bad = caller("GET", "projects?cursor=nonsense")
    assert (bad.status_code, bad.json()["code"]) == (400, "cursor_invalid")
