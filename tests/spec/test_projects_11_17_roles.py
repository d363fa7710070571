"""Acceptance scenarios 11–17 of projects-and-identity.md: the history of roles and the fence."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection
from pytest_django import DjangoAssertNumQueries

from apps.core import clock
from apps.core.errors import InvalidInput
from apps.identity.principals import PolicySubject
from apps.projects.errors import PolicyFenceConflict, RoleMutationConflict, RoleVersionConflict
from apps.projects.models import ProjectRoleBinding
from apps.projects.policy import confirm, decide
from apps.projects.services import Binding, append_role_binding, update_project
from tests.people import account, give, grant, member, project

U1 = PolicySubject("user", "u1")
BY = PolicySubject("user", "root")


def binding(version: int, role: str | None, mutation: str, project_id: str = "default") -> Binding:
    return Binding(project_id, U1, version, role, mutation, BY, clock.now())


@pytest.mark.django_db
def test_projects_11_append_and_replay() -> None:
    first = binding(1, "admin", "m1")
    assert append_role_binding(0, first).outcome == "inserted"
    again = append_role_binding(0, first)
    assert (again.outcome, again.binding) == ("existing", first)
    assert ProjectRoleBinding.objects.count() == 1
    for other in (
        replace(first, role="viewer"),
        replace(first, created_at=first.created_at + timedelta(milliseconds=1)),
        replace(first, changed_by=U1),
    ):
        with pytest.raises(RoleMutationConflict):
            append_role_binding(0, other)


@pytest.mark.django_db
def test_projects_12_replay_after_later_change() -> None:
    first = binding(1, "admin", "m1")
    append_role_binding(0, first)
    append_role_binding(1, binding(2, "viewer", "m2"))
    assert append_role_binding(0, first) == replace(append_role_binding(0, first), binding=first)
    assert append_role_binding(0, first).outcome == "existing"
    fence = decide(U1, "default", "run.read").fence
    assert fence is not None and fence.binding_version == 2
    assert decide(U1, "default", "task.create").reason == "permission_missing"


@pytest.mark.django_db
def test_projects_13_stale_version(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    append_role_binding(0, binding(1, "admin", "m1"))
    append_role_binding(1, binding(2, "admin", "m2"))
    with pytest.raises(RoleVersionConflict):
        append_role_binding(0, binding(1, "viewer", "m3"))
    with pytest.raises(RoleVersionConflict):
        append_role_binding(2, binding(4, "viewer", "m4"))
    assert ProjectRoleBinding.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_projects_14_race(seeded: None) -> None:
    append_role_binding(0, binding(1, "viewer", "m1"))
    ready = threading.Barrier(2)
    outcomes: list[str] = []

    def write(mutation: str) -> None:
        try:
            ready.wait()
            outcomes.append(append_role_binding(1, binding(2, "admin", mutation)).outcome)
        except RoleVersionConflict:
            outcomes.append("conflict")
        finally:
            connection.close()

    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["conflict", "inserted"]
    assert sorted(ProjectRoleBinding.objects.values_list("version", flat=True)) == [1, 2]


@pytest.mark.django_db
def test_projects_15_mutation_id_across_projects() -> None:
    other = project(account())
    assert append_role_binding(0, binding(1, "viewer", "m1")).outcome == "inserted"
    assert append_role_binding(0, binding(1, "viewer", "m1", other)).outcome == "inserted"


@pytest.mark.django_db
def test_projects_16_revoke() -> None:
    append_role_binding(0, binding(1, "owner", "m1"))
    append_role_binding(1, binding(2, None, "m2"))
    decision = decide(U1, "default", "project.read")
    assert decision.reason == "subject_unbound"
    assert decision.fence is not None and decision.fence.binding_version == 2
    # A binding's state follows from its role, so `revoked` with a role cannot even be said.
    assert binding(2, None, "m2").state == "revoked"
    with pytest.raises(InvalidInput):
        binding(3, "root", "m3")


@pytest.mark.django_db
def test_projects_17_fence() -> None:
    owner = member("owner")
    old = grant(owner, "project.manage")
    confirm(old)
    give(owner, "owner", version=2)
    with pytest.raises(PolicyFenceConflict):
        update_project(old, 1, name="New")
    fresh = grant(owner, "project.manage")
    assert update_project(fresh, 1, name="New").version == 2
    with pytest.raises(PolicyFenceConflict):
        update_project(fresh, 2, name="Newer")
