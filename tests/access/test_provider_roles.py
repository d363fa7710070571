"""Groups of a provider give roles, at each sign-in anew, and take them away; people's decisions stand (lessons D20)."""

from __future__ import annotations

from typing import Any

import pytest

from apps.access.models import ProviderSignIn, User
from apps.audit.models import AuditEntry
from apps.identity.principals import PolicySubject
from apps.identity.services import set_subject_status
from apps.projects.errors import PolicyFenceConflict, PolicyUnavailable
from apps.projects.models import ProjectRoleBinding
from apps.projects.policy import Grant, confirm, decide
from apps.projects.services import change_role, follow_roles, set_project_status
from tests.access.provider import Hostile
from tests.access.single_sign_on import Browser, code_of, path_of, provider, switched_on
from tests.people import ROOT, account, api, give, grant, member, project, subject

pytestmark = pytest.mark.django_db
MAP = {
    "ops": {"default": "operator", "second": "viewer"},
    "leads": {"default": "admin"},
    "/Nested Group, Ünïcode": {"second": "operator"},
    "lost": {"not-here": "viewer"},
}


@pytest.fixture
def mapped(there: Hostile, settings: Any) -> Hostile:
    settings.SINGLE_SIGN_ON = switched_on(provider(there, role_map=MAP))
    project(account("owner"))
    return there


def sign_in(there: Hostile, *groups: str) -> PolicySubject:
    there.claims = {"preferred_username": "ann", "groups": list(groups)}
    assert path_of(Browser().sign_in(there)) == "/panel/"
    return subject(User.objects.get(username="ann"))


def roles(who: PolicySubject) -> dict[str, str | None]:
    """The current role in each project the subject ever had one in."""
    rows = ProjectRoleBinding.objects.filter(subject_id=who.id).order_by("version").select_related("project")
    return {row.project.slug: row.role for row in rows}


def test_groups_give_change_and_take_roles(mapped: Hostile) -> None:
    ann = sign_in(mapped, "ops", "unknown")
    assert roles(ann) == {"default": "operator", "second": "viewer"}
    sign_in(mapped, "leads", "ops", "/Nested Group, Ünïcode")
    assert roles(ann) == {"default": "admin", "second": "operator"}, "the strongest of several"
    sign_in(mapped, "ops")
    assert roles(ann) == {"default": "operator", "second": "viewer"}
    sign_in(mapped)
    assert roles(ann) == {"default": None, "second": None}
    assert decide(ann, "default", "task.read").reason == "subject_unbound"
    sign_in(mapped, "lost", "ops")
    assert roles(ann) == {"default": "operator", "second": "viewer"}
    entries = AuditEntry.objects.filter(scope="default", subject_id=ann.id).order_by("sequence")
    assert [(one.action, one.metadata["previous_role"], one.metadata["role"]) for one in entries] == [
        ("role.granted", None, "operator"),
        ("role.granted", "operator", "admin"),
        ("role.granted", "admin", "operator"),
        ("role.revoked", "operator", None),
        ("role.granted", None, "operator"),
    ]
    assert {(one.actor_type, one.actor_id, one.origin) for one in entries} == {
        ("system", "oidc:main", "oidc:main")
    }
    noted = ProviderSignIn.objects.order_by("-at", "-id")[0]
    assert sorted((one["role"], one["previous"], one["changed"]) for one in noted.roles) == [
        ("operator", None, True),
        ("viewer", None, True),
    ]
    assert noted.claims["groups"] == ["lost", "ops"]


def test_nothing_is_written_where_all_is_as_it_should_be(
    mapped: Hostile, django_assert_max_num_queries: Any
) -> None:
    ann = sign_in(mapped, "ops")
    rows, entries = ProjectRoleBinding.objects.count(), AuditEntry.objects.filter(scope="default").count()
    sign_in(mapped, "ops")
    assert ProjectRoleBinding.objects.count() == rows
    assert AuditEntry.objects.filter(scope="default").count() == entries
    wanted = {row.project_id: row.role for row in ProjectRoleBinding.objects.filter(subject_id=ann.id)}
    with django_assert_max_num_queries(2):
        follow_roles(ann, "oidc:main", wanted)  # type: ignore[arg-type]


def test_what_a_person_decided_stands(mapped: Hostile) -> None:
    owner = member("owner", "boss")
    ann = sign_in(mapped, "ops")
    version = ProjectRoleBinding.objects.filter(subject_id=ann.id, project="default").count()
    change_role(grant(owner, "policy.manage"), ann, "viewer", expected_version=version, mutation_id="by-hand")
    for groups in (["leads"], [], ["ops"]):
        sign_in(mapped, *groups)
        assert roles(ann)["default"] == "viewer"
    change_role(grant(owner, "policy.manage"), ann, None, expected_version=version + 1, mutation_id="away")
    sign_in(mapped, "leads")
    assert roles(ann)["default"] is None, "taken away by hand is taken away"
    noted = ProviderSignIn.objects.order_by("-at", "-id")[0]
    kept = next(one for one in noted.roles if one["project"] == "default")
    assert kept == {"project": "default", "role": "admin", "previous": None, "changed": False}


def test_ownership_and_its_guard_are_out_of_reach(mapped: Hostile) -> None:
    ann = sign_in(mapped)
    give(ann, "owner")
    sign_in(mapped, "ops")
    assert roles(ann)["default"] == "owner"
    for source, wanted in (("oidc:main", {"default": "owner"}), ("somebody", {"default": "viewer"})):
        with pytest.raises(PolicyUnavailable):
            follow_roles(ann, source, wanted)


def test_an_archived_project_gives_nothing_and_takes_only_what_is_not_wanted(mapped: Hostile) -> None:
    owner = member("owner", "boss")
    ann = sign_in(mapped, "ops")
    given = grant(owner, "project.manage")
    set_project_status(given, 1, "archived")
    sign_in(mapped, "leads")
    assert roles(ann)["default"] == "operator"
    sign_in(mapped)
    assert roles(ann)["default"] is None
    sign_in(mapped, "ops")
    assert roles(ann)["default"] is None


def test_two_providers_keep_off_each_others_roles(there: Hostile, partner: Hostile, settings: Any) -> None:
    ann = subject(account("ann"))
    settings.SINGLE_SIGN_ON = switched_on(
        provider(there, role_map=MAP), provider(partner, "partner", role_map=MAP)
    )
    follow_roles(ann, "oidc:main", {"default": "operator"})
    follow_roles(ann, "oidc:partner", {"default": "admin"})
    follow_roles(ann, "oidc:partner", {})
    assert roles(ann) == {"default": "operator"}
    follow_roles(ann, "oidc:main", {})
    follow_roles(ann, "oidc:partner", {"default": "viewer"})
    assert roles(ann) == {"default": "viewer"}, "what nobody gives any more is free"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"groups": {"ops": 1}}, "groups_wrong"),
        ({"groups": ["ops", 7]}, "groups_wrong"),
        ({"groups": ["x"] * 1001}, "groups_wrong"),
        ({"_claim_names": {"groups": "src1"}, "_claim_sources": {}}, "groups_elsewhere"),
    ],
)
def test_groups_that_cannot_be_read_change_nothing(
    mapped: Hostile, claims: dict[str, Any], reason: str
) -> None:
    ann = sign_in(mapped, "ops")
    mapped.claims = {"preferred_username": "ann", **claims}
    assert code_of(Browser().sign_in(mapped)) == "oidc_refused"
    assert ProviderSignIn.objects.order_by("-at", "-id")[0].reason == reason
    assert roles(ann)["default"] == "operator"


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        ("groups", {"groups": "ops"}),
        ("realm_access.roles", {"realm_access": {"roles": ["ops"]}}),
        ("https://example.org/groups", {"https://example.org/groups": ["ops"]}),
    ],
)
def test_groups_come_in_the_shapes_that_providers_use(
    there: Hostile, settings: Any, name: str, claims: dict[str, Any]
) -> None:
    settings.SINGLE_SIGN_ON = switched_on(provider(there, role_map=MAP, groups_claim=name))
    there.claims = {"preferred_username": "ann", **claims}
    Browser().sign_in(there)
    assert roles(subject(User.objects.get())) == {"default": "operator"}


def test_groups_that_only_userinfo_has_are_fetched(mapped: Hostile) -> None:
    mapped.claims, mapped.userinfo = {"preferred_username": "ann"}, {"groups": ["ops"]}
    Browser().sign_in(mapped)
    ann = subject(User.objects.get(username="ann"))
    assert roles(ann)["default"] == "operator"


def test_taking_the_identity_away_takes_its_roles(mapped: Hostile) -> None:
    from apps.access.services import revoke_method

    ann = sign_in(mapped, "ops")
    revoke_method("oidc:main", mapped.person, ann, actor=ann, origin="tests", even_last=True)
    assert set(roles(ann).values()) == {None}
    assert code_of(Browser().sign_in(mapped)) == "oidc_no_account", "and it does not come back by itself"


def test_a_token_loses_what_its_person_lost_at_the_next_sign_in_and_not_before(mapped: Hostile) -> None:
    """What a provider took away, nobody tells us before; disabling needs no sign-in."""
    ann = sign_in(mapped, "ops")
    user = User.objects.get(username="ann")
    caller = api(user)
    assert caller("GET", "projects/default").status_code == 200
    before = decide(ann, "default", "run.start")
    assert before.effect == "allow"
    # Elsewhere the group is gone by now; here nothing has changed.
    assert caller("GET", "projects/default").status_code == 200
    sign_in(mapped)
    answer = caller("GET", "projects/default")
    assert answer.status_code == 404 and caller("GET", "me").json()["roles"] == []
    with pytest.raises(PolicyFenceConflict):
        confirm(Grant(ann, "default", "run.start", before.fence, "tests"))
    sign_in(mapped, "ops")
    assert caller("GET", "projects/default").status_code == 200, "the same token, the same person"
    set_subject_status(user.subject_id, 1, "disabled", actor=ROOT, origin="tests")
    assert caller("GET", "me").status_code == 401
