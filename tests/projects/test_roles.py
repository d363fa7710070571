"""Who may grant what, over the API (projects-and-identity.md §5.2, §13)."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command

from apps.access.services import create_application
from apps.audit.models import AuditEntry
from apps.core import clock, ids
from apps.core.errors import Forbidden
from apps.identity.principals import PolicySubject
from apps.identity.services import set_subject_status
from apps.projects.models import ProjectRoleBinding
from apps.projects.queries import is_owner
from apps.projects.services import (
    Binding,
    append_role_binding,
    change_role,
    follow_roles,
    set_project_status,
)
from tests.people import ROOT, Api, account, api, give, grant, member, other_subject, subject, token

pytestmark = pytest.mark.django_db
PATH = "projects/default/role-bindings"


def change(caller: Api, who: Any, role: str | None, expected: int = 0, mutation: str | None = None) -> Any:
    found = who if hasattr(who, "type") else subject(who)
    return caller(
        "POST",
        PATH,
        {
            "subject_type": found.type,
            "subject_id": found.id,
            "role": role,
            "expected_version": expected,
            "mutation_id": mutation or str(ids.uuid7()),
        },
    )


def test_grant_replay_and_conflict() -> None:
    owner, ann = member("owner"), account("ann")
    caller = api(owner)
    first = change(caller, ann, "operator", mutation="m1")
    assert first.status_code == 201
    shown = first.json()
    assert shown["role"] == "operator" and shown["state"] == "active" and shown["version"] == 1
    assert shown["changed_by"] == {"type": "user", "id": owner.subject_id}
    again = change(caller, ann, "operator", mutation="m1")
    assert (again.status_code, again.json()) == (200, shown)
    other = change(caller, ann, "viewer", mutation="m1")
    assert (other.status_code, other.json()["code"]) == (409, "project_role_binding_mutation_conflict")
    stale = change(caller, ann, "viewer")
    assert (stale.status_code, stale.json()["code"]) == (409, "project_role_binding_version_conflict")
    assert change(caller, ann, "viewer", 1).json()["version"] == 2
    assert AuditEntry.objects.filter(scope="default", action="role.granted").count() == 2


def test_list_and_history() -> None:
    owner, ann = member("owner"), account("ann")
    caller = api(owner)
    change(caller, ann, "operator")
    change(caller, ann, None, 1)
    now = caller("GET", PATH).json()["items"]
    assert [item["subject_id"] for item in now] == [owner.subject_id]
    history = caller("GET", f"{PATH}?history=1").json()["items"]
    assert (
        sorted((item["version"], item["role"]) for item in history if item["subject_id"] == ann.subject_id)
        == [
            (1, "operator"),
            (2, None),
        ]
        or len(history) == 3
    )
    assert caller("GET", f"{PATH}?history=yes").status_code == 400


def test_only_owners_touch_ownership() -> None:
    owner, admin, ann = member("owner"), member("admin"), account("ann")
    caller = api(admin)
    for answer in (
        change(caller, ann, "owner"),
        change(caller, admin, "owner", 1),
        change(caller, owner, "viewer", 1),
        change(caller, owner, None, 1),
    ):
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert change(caller, ann, "admin").status_code == 201
    assert change(api(owner), ann, "owner", 1).status_code == 201


def test_the_last_owner_stays() -> None:
    owner, second = member("owner"), account("second")
    caller = api(owner)
    for role in (None, "admin"):
        answer = change(caller, owner, role, 1)
        assert (answer.status_code, answer.json()["code"]) == (409, "last_owner")
    assert change(caller, owner, "owner", 1).status_code == 201
    give(second, "owner")
    set_subject_status(second.subject_id, 1, "disabled", actor=ROOT, origin="tests")
    assert change(caller, owner, None, 2).json()["code"] == "last_owner"
    set_subject_status(second.subject_id, 2, "active", actor=ROOT, origin="tests")
    assert change(caller, owner, None, 2).status_code == 201
    assert caller("GET", PATH).status_code == 404


def test_a_person_must_exist_others_need_not() -> None:
    caller = api(member("owner"))
    answer = change(caller, type("P", (), {"type": "user", "id": "usr_none"})(), "viewer")
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["subject_id"])
    answer = change(caller, type("P", (), {"type": "api_app", "id": "ci"})(), "operator")
    assert answer.status_code == 201
    # An agent's id does not make it a person.
    agent = other_subject("agent")
    answer = change(caller, type("P", (), {"type": "user", "id": agent.id})(), "viewer")
    assert answer.status_code == 400


def test_archived_projects_only_lose_roles() -> None:
    owner, ann = member("owner"), member("viewer", "ann")
    set_project_status(grant(owner, "project.manage"), 1, "archived")
    caller = api(owner)
    answer = change(caller, ann, "operator", 1)
    assert (answer.status_code, answer.json()["code"]) == (409, "project_archived")
    assert change(caller, ann, None, 1).status_code == 201


def test_an_agent_must_ask() -> None:
    agent = other_subject("agent")
    give(agent, "owner")
    member("owner")
    answer = change(api(agent), agent, "viewer", 1)
    assert answer.status_code == 409
    problem = answer.json()
    assert (problem["code"], problem["permission"], problem["action_type"]) == (
        "approval_required",
        "policy.manage",
        "policy.manage",
    )
    assert ProjectRoleBinding.objects.count() == 2


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("subject_type", "root"),
        ("subject_id", ""),
        ("subject_id", "a\tb"),
        ("role", "god"),
        ("expected_version", -1),
        ("expected_version", 2_147_483_647),
        ("mutation_id", "a b"),
        ("mutation_id", "x" * 65),
        ("mutation_id", "x\n"),
        ("extra", 1),
    ],
)
def test_bad_input_names_the_field(part: str, value: Any) -> None:
    caller = api(member("owner"))
    right = {"subject_type": "api_app", "subject_id": "ci", "role": "viewer", "expected_version": 0}
    answer = caller("POST", PATH, {**right, "mutation_id": "m", part: value})
    assert answer.status_code == 400, answer.content
    assert part in answer.json()["errors"]


def test_policy_manage_must_be_named_in_a_token() -> None:
    owner = member("owner")
    answer = change(Api(token(owner, "*")), account("ann"), "viewer")
    assert answer.status_code == 403
    assert change(Api(token(owner, "policy.manage")), account("bob"), "viewer").status_code == 201


def test_a_grant_is_good_for_its_own_permission_only() -> None:
    owner = member("owner")
    with pytest.raises(Forbidden):
        change_role(grant(owner, "project.read"), subject(owner), None, expected_version=1, mutation_id="m")
    with pytest.raises(Forbidden):
        set_project_status(grant(owner, "policy.manage"), 1, "archived")


def test_an_owner_that_there_is_not_is_no_other_owner() -> None:
    owner = member("owner")
    give(PolicySubject("api_app", "app_that_nobody_made"), "owner")
    person = account("person")
    give(PolicySubject("agent", person.subject_id), "owner")
    answer = change(api(owner), owner, None, 1)
    assert (answer.status_code, answer.json()["code"]) == (409, "last_owner")


def test_nobody_is_shut_out_who_alone_owns_a_project() -> None:
    """People and applications; an archived project needs nobody, and whoever insists is on record."""
    root, ann, bob = account("root", administrator=True), member("owner", "ann"), member("admin", "bob")
    caller = api(root)
    path = f"people/{ann.subject_id}"
    answer = caller("PATCH", path, {"status": "disabled"}, If_Match='"1"')
    assert (answer.status_code, answer.json()["code"], answer.json()["projects"]) == (
        409, "last_owner", ["default"],
    )  # fmt: skip
    app = create_application("api_app", "ci", actor=ROOT, origin="tests")
    give(PolicySubject("api_app", app.pk), "owner")
    assert caller("PATCH", path, {"status": "disabled"}, If_Match='"1"').status_code == 200
    answer = caller("PATCH", f"applications/{app.pk}", {"status": "disabled"}, If_Match='"1"')
    assert (answer.status_code, answer.json()["code"]) == (409, "last_owner")
    renamed = caller("PATCH", f"applications/{app.pk}", {"name": "robot"}, If_Match='"1"')
    assert renamed.status_code == 200, "what disables nobody is not asked"
    insisted = {"status": "disabled", "leave_ownerless": True}
    assert caller("PATCH", f"applications/{app.pk}", insisted, If_Match='"2"').status_code == 200
    entry = AuditEntry.objects.get(action="owner.shut_out")
    assert (entry.scope, entry.actor_id, entry.subject_id) == ("default", root.subject_id, app.pk)
    call_command("recover_owner", "default", username="bob")
    set_project_status(grant(bob, "project.manage"), 1, "archived")
    answer = caller("PATCH", f"people/{bob.subject_id}", {"status": "disabled"}, If_Match='"1"')
    assert answer.status_code == 200


def test_groups_at_a_provider_never_touch_an_owner_whoever_made_them_one() -> None:
    first, recovered = account("first"), account("recovered")
    for number, (who, by) in enumerate(((first, "owner-bootstrap"), (recovered, "console"))):
        maker = PolicySubject("system", by)
        append_role_binding(0, Binding("default", subject(who), 1, "owner", f"m{number}", maker, clock.now()))
        for wanted in ({"default": "viewer"}, {}):
            follow_roles(subject(who), "oidc:main", wanted)
        assert is_owner("default", subject(who))
