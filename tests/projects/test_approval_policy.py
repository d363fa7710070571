"""The project's policy about approvals: bounds, versions, who could decide, and what the database keeps."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from apps.audit.models import AuditEntry
from apps.core.errors import Forbidden, InvalidInput, VersionConflict
from apps.identity.services import set_subject_status
from apps.projects import approval_policy
from apps.projects.approval_policy import ApprovalPolicy
from apps.projects.errors import NobodyCouldDecide, PolicyFenceConflict
from apps.projects.models import ProjectApprovalPolicy
from apps.projects.services import change_approval_policy
from tests import people
from tests.people import Api
from tests.runs.kit import race

pytestmark = pytest.mark.django_db


def change(who: Any, version: int = 0, **changes: Any) -> ApprovalPolicy:
    return change_approval_policy(people.grant(who, "policy.manage"), version, changes).policy


def test_without_a_row_the_defaults_hold() -> None:
    assert approval_policy.of("default") == ApprovalPolicy("default")
    people.member("owner", "olga")
    body = people.api(people.member("viewer"))("GET", "projects/default/approval-policy").json()
    assert body == {
        "version": 0, "quorum": 1, "deciders": {"roles": ["owner", "admin"], "people": []}, "exempt_roles": [],
        "break_glass_roles": [], "remind_before_minutes": 30, "possible_deciders": 1, "warnings": ["tight"],
        "changed_by": None, "updated_at": None,
    }  # fmt: skip


def test_a_change_is_versioned_and_on_record() -> None:
    owner, admin = people.member("owner", "olga"), people.member("admin", "adam")
    now = change(owner, quorum=2, exempt_roles=["admin", "owner"], break_glass_roles=["operator"])
    assert (now.version, now.quorum, now.exempt_roles) == (1, 2, ("owner", "admin"))
    with pytest.raises(VersionConflict):
        change(admin, 0, quorum=1)
    assert change(admin, 1, quorum=2).version == 1, "where nothing changes the version stays"
    assert change(admin, 1, quorum=1).changed_by == ("user", admin.subject_id)
    told = AuditEntry.objects.filter(action="approval_policy.changed").order_by("sequence")
    assert [entry.metadata["after"] for entry in told] == [
        {"quorum": 2, "exempt_roles": ["owner", "admin"], "break_glass_roles": ["operator"]},
        {"quorum": 1},
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"quorum": 0}, {"quorum": 6}, {"quorum": True}, {"quorum": "2"}, {"decider_roles": ["operator"]},
        {"decider_roles": "owner"}, {"exempt_roles": ["operator"]}, {"break_glass_roles": ["viewer"]},
        {"remind_before_minutes": -1}, {"remind_before_minutes": 1441}, {"decider_people": ["nobody"]},
        {"decider_people": ["a\n"]}, {"decider_people": [1]}, {"updated_at": "x"}, {"project_id": "x"},
    ],
)  # fmt: skip
def test_what_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        change(people.member("owner", "olga"), **wrong)
    assert not ProjectApprovalPolicy.objects.exists()


def test_a_policy_under_which_nobody_could_decide_is_refused() -> None:
    owner, admin = people.member("owner", "olga"), people.member("admin", "adam")
    operator, agent = people.member("operator", "opal"), people.other_subject("agent")
    people.give(agent, "owner")
    for wrong in (
        {"quorum": 3},
        {"quorum": 2, "decider_roles": ["owner"]},
        {"decider_roles": [], "decider_people": []},
        {"decider_roles": [], "decider_people": [operator.subject_id]},
    ):
        with pytest.raises(NobodyCouldDecide):
            change(owner, **wrong)
    assert change(owner, decider_roles=[], decider_people=[admin.subject_id]).version == 1
    set_subject_status(admin.subject_id, 1, "disabled", actor=people.ROOT, origin="tests")
    found = approval_policy.of("default")
    assert approval_policy.possible_deciders(found) == []
    with pytest.raises(NobodyCouldDecide) as told:
        change(owner, 1, quorum=2)
    assert told.value.extra == {"possible_deciders": 0, "quorum": 2}


def test_who_decides_only_becomes_fewer() -> None:
    owner, operator = people.member("owner", "olga"), people.member("operator", "opal")
    change(owner, decider_people=[operator.subject_id])
    found = approval_policy.of("default")
    assert not approval_policy.may_decide(people.subject(operator), found)
    assert approval_policy.may_decide(people.subject(owner), found)
    assert not found.lets_decide(operator.subject_id, "operator")


def test_rights_are_looked_at_again_when_it_is_written() -> None:
    admin = people.member("admin", "adam")
    given = people.grant(admin, "policy.manage")
    people.give(admin, "viewer", version=2)
    with pytest.raises(PolicyFenceConflict):
        change_approval_policy(given, 0, {"quorum": 1, "exempt_roles": ["admin"]})
    with pytest.raises(Forbidden):
        change_approval_policy(people.grant(people.member("owner", "olga"), "run.start"), 0, {"quorum": 1})


def test_the_route_asks_for_a_fresh_sign_in_and_a_scope_by_name() -> None:
    owner = people.member("owner", "olga")
    body = {"expected_version": 0, "remind_before_minutes": 5}
    path = "projects/default/approval-policy"
    browser = Api(client=people.signed_in(owner))
    people.age_sign_ins()
    assert browser("PATCH", path, body).json()["code"] == "session_not_fresh"
    assert people.api(owner, "*")("PATCH", path, body).status_code == 403
    for role in ("operator", "viewer"):
        assert people.api(people.member(role))("PATCH", path, body).status_code == 403
    answer = people.api(owner, "policy.manage")("PATCH", path, body)
    assert (answer.status_code, answer.json()["version"], answer["ETag"]) == (200, 1, '"1"')
    for wrong in (
        {**body, "quorum": 9},
        {"quorum": 1},
        {**body, "deciders": {"roles": ["operator"], "people": []}},
    ):
        assert people.api(owner)("PATCH", path, wrong).status_code == 400
    agent = people.other_subject("agent")
    people.give(agent, "owner")
    assert people.api(agent)("PATCH", path, body).json()["code"] == "approval_required"


@pytest.mark.parametrize(
    "broken",
    [
        {"quorum": 6}, {"quorum": 0}, {"decider_roles": "operator"}, {"exempt_roles": "owner,operator"},
        {"break_glass_roles": "viewer"}, {"remind_before_minutes": 1441}, {"version": 0},
    ],
)  # fmt: skip
def test_the_database_keeps_the_bounds(broken: dict[str, Any]) -> None:
    change(people.member("owner", "olga"), quorum=1, remind_before_minutes=10)
    with pytest.raises(IntegrityError), transaction.atomic():
        ProjectApprovalPolicy.objects.update(**broken)


@pytest.mark.django_db(transaction=True)
def test_two_changes_at_once(seeded: None) -> None:
    owner = people.member("owner", "olga")
    given = people.grant(owner, "policy.manage")
    outcomes = race(
        [
            lambda: change_approval_policy(given, 0, {"remind_before_minutes": 1}),
            lambda: change_approval_policy(given, 0, {"remind_before_minutes": 2}),
        ]
    )
    assert sum(isinstance(one, VersionConflict) for one in outcomes) == 1
    assert approval_policy.of("default").version == 1
