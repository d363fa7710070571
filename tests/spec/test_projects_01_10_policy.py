"""Acceptance scenarios 1–10 of projects-and-identity.md: the seed rows and the decision."""

from __future__ import annotations

import importlib
from datetime import UTC, datetime

import pytest
from django.apps import apps
from django.db import connection
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from apps.core import clock, ids
from apps.core.errors import InvalidInput
from apps.identity.models import IdentityAuthenticationBinding, IdentitySubject
from apps.identity.principals import PolicySubject
from apps.projects import permissions
from apps.projects.errors import PolicyUnavailable
from apps.projects.models import Project, ProjectOwnerBootstrapChallenge, ProjectRoleBinding
from apps.projects.policy import Decision, Fence, decide
from apps.projects.services import set_project_status
from tests.people import give, grant, member, token

pytestmark = pytest.mark.django_db

READS = {"project.read", "task.read", "run.read", "artifact.read"}
STATIC = {
    *READS,
    "project.manage", "task.create", "task.update", "task.delete", "run.start", "run.stop", "run.retry",
    "secret.use", "secret.manage", "worker.manage", "policy.manage", "approval.decide", "approval.recover",
}  # fmt: skip
U1 = PolicySubject("user", "u1")


def allowed(subject: PolicySubject, *more: str) -> set[str]:
    return {name for name in (*STATIC, *more) if decide(subject, "default", name).effect == "allow"}


def test_projects_01_fresh_install() -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for app in ("identity", "projects"):
        importlib.import_module(f"apps.{app}.migrations.0002_rules").seed(apps, None)
    project = Project.objects.get()
    assert (project.id, project.status, project.version) == ("default", "active", 1)
    assert (project.created_at, project.updated_at) == (epoch, epoch)
    primary = IdentitySubject.objects.get(pk="usr_legacy_primary")
    assert (primary.type, primary.status, primary.version) == ("user", "active", 1)
    binding = IdentityAuthenticationBinding.objects.get(provider="legacy_panel")
    assert (binding.provider_subject, binding.version, binding.subject) == ("singleton", 1, primary)
    assert not ProjectRoleBinding.objects.exists()
    assert not ProjectOwnerBootstrapChallenge.objects.exists()


def test_projects_02_default_deny() -> None:
    assert decide(U1, "default", "project.read") == Decision("deny", "subject_unbound", Fence(1, None))
    assert decide(U1, "nope", "project.read") == Decision("deny", "project_not_found", None)


def test_projects_03_viewer() -> None:
    give(U1, "viewer")
    assert set(permissions.PERMISSIONS) >= STATIC
    for name in (*STATIC, "tool.call:x"):
        expected = ("allow", "role_grant") if name in READS else ("deny", "permission_missing")
        decision = decide(U1, "default", name)
        assert (decision.effect, decision.reason) == expected


def test_projects_04_operator() -> None:
    give(U1, "operator")
    assert allowed(U1, "tool.call:deploy") == READS | {
        "task.create", "task.update", "run.start", "run.stop", "run.retry", "secret.use", "tool.call:deploy",
    }  # fmt: skip


def test_projects_05_admin_and_owner() -> None:
    give(U1, "admin")
    assert STATIC - allowed(U1) == {"project.manage"}
    give(U1, "owner", version=2)
    assert allowed(U1, "tool.call:x") == STATIC | {"tool.call:x"}


def test_projects_06_archived() -> None:
    owner = member("owner")
    give(U1, "viewer")
    set_project_status(grant(owner, "project.manage"), 1, "archived")
    for subject in (U1, PolicySubject("user", owner.subject_id)):
        for name in STATIC:
            reason = decide(subject, "default", name).reason
            assert reason == ("role_grant" if name in READS else "project_archived")


def test_projects_07_agent() -> None:
    agent = PolicySubject("agent", "a1")
    give(agent, "operator")
    assert decide(agent, "default", "run.read").effect == "allow"
    for name in ("run.start", "secret.use", "tool.call:deploy"):
        decision = decide(agent, "default", name)
        assert (decision.effect, decision.reason) == ("require_approval", "agent_action_requires_approval")
    assert decide(agent, "default", "secret.manage").reason == "permission_missing"
    give(agent, "owner", version=2)
    assert decide(agent, "default", "approval.recover").effect == "require_approval"


@pytest.mark.parametrize(
    "name",
    ["tool.call:*", "run.*", "", "t" * 256, "tool.call:-x", "run.start\n", "tool.call:" + "x" * 129, None],
)
def test_projects_08_bad_permission(name: str, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with django_assert_num_queries(0), pytest.raises(InvalidInput):
        decide(U1, "default", name)


def test_projects_09_unknown_key(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with django_assert_num_queries(0):
        with pytest.raises(TypeError):
            decide(U1, "default", "run.read", context={})  # type: ignore[call-arg]
        with pytest.raises(InvalidInput):
            decide(U1, "default\n", "run.read")
        with pytest.raises(InvalidInput):
            PolicySubject("root", "u1")
        with pytest.raises(InvalidInput):
            PolicySubject("user", "")


def test_projects_10_corrupt_policy_row() -> None:
    user = member("owner")
    secret = token(user)
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA ignore_check_constraints = ON")
        else:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute(
                "ALTER TABLE project_role_bindings DROP CONSTRAINT project_role_binding_state_check"
            )
        try:
            ProjectRoleBinding.objects.create(
                id=ids.uuid7(), project_id="default", subject_type="user", subject_id=user.subject_id,
                version=2, state="active", role=None, mutation_id="m", changed_by_type="system",
                changed_by_id="x", created_at=clock.now(),
            )  # fmt: skip
        finally:
            if connection.vendor == "sqlite":
                cursor.execute("PRAGMA ignore_check_constraints = OFF")
    with pytest.raises(PolicyUnavailable):
        decide(PolicySubject("user", user.subject_id), "default", "project.read")
    answer = Client().get("/api/v3/projects/default", headers={"Authorization": f"Bearer {secret}"})
    assert answer.status_code == 503
    assert answer.json()["code"] == "project_policy_unavailable"
    assert answer["Retry-After"]
