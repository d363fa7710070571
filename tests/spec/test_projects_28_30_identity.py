"""Acceptance scenarios 28–30 and 38 of projects-and-identity.md: the directory, and no challenge over HTTP."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection
from pytest_django import DjangoAssertNumQueries

from apps.access.models import User
from apps.core.errors import InvalidInput
from apps.identity.errors import DirectoryUnavailable
from apps.identity.models import IdentityAuthenticationBinding, IdentitySubject
from apps.identity.principals import PolicySubject
from apps.identity.queries import resolve_authentication_subject
from apps.identity.services import append_authentication_binding, register_subject, set_subject_status
from apps.projects.models import ProjectOwnerBootstrapChallenge
from apps.projects.policy import decide
from tests.people import ROOT, api, member, subject
from tests.test_routes import ROUTES, body

pytestmark = pytest.mark.django_db


def bind(subject_id: str, expected: int = 0, state: str = "active") -> None:
    append_authentication_binding(
        "oidc:corp-1", "x1", subject_id, expected_version=expected, state=state, actor=ROOT, origin="tests"
    )


def test_projects_28_directory(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    person = register_subject("user")
    assert resolve_authentication_subject("oidc:corp-1", "x1") is None
    bind(person.id)
    with django_assert_num_queries(1):
        assert resolve_authentication_subject("oidc:corp-1", "x1") == person
    set_subject_status(person.id, 1, "disabled", actor=ROOT, origin="tests")
    assert resolve_authentication_subject("oidc:corp-1", "x1") is None
    set_subject_status(person.id, 2, "active", actor=ROOT, origin="tests")
    assert resolve_authentication_subject("oidc:corp-1", "x1") is not None
    bind(person.id, 1, "revoked")
    assert resolve_authentication_subject("oidc:corp-1", "x1") is None
    bind(register_subject("agent").id, 2)
    assert resolve_authentication_subject("oidc:corp-1", "x1") is None


def test_projects_28_missing_subject() -> None:
    person = register_subject("user")
    bind(person.id)
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA defer_foreign_keys = ON")
        else:
            cursor.execute("ALTER TABLE identity_subjects DISABLE TRIGGER ALL")
        cursor.execute("DELETE FROM identity_subjects WHERE id = %s", [person.id])
    with pytest.raises(DirectoryUnavailable):
        resolve_authentication_subject("oidc:corp-1", "x1")
    IdentitySubject.objects.create(id=person.id, type="user", updated_at="2100-01-01T00:00:00Z")
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE identity_subjects ENABLE TRIGGER ALL")
    assert IdentityAuthenticationBinding.objects.filter(provider_subject="x1").exists()


@pytest.mark.parametrize("provider", ["OIDC", "1x", "x" * 65, "oidc corp", "", "oidc\n"])
def test_projects_29_provider_syntax(
    provider: str, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(0), pytest.raises(InvalidInput):
        resolve_authentication_subject(provider, "x1")


@pytest.mark.parametrize("name", ["a b", "a/b", "-a", "a" * 129, "", "a\n"])
def test_projects_29_provider_subject_syntax(
    name: str, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(0), pytest.raises(InvalidInput):
        resolve_authentication_subject("oidc:corp-1", name)


def test_projects_29_accepted() -> None:
    assert resolve_authentication_subject("oidc:corp-1", "sha256:" + "0" * 64) is None


def test_projects_30_rename() -> None:
    user = member("operator", "before")
    caller = api(user)
    User.objects.filter(pk=user.pk).update(username="after")
    assert decide(subject(user), "default", "run.start").effect == "allow"
    me = caller("GET", "me").json()
    assert (me["username"], me["subject"]) == ("after", {"type": "user", "id": user.subject_id})
    assert me["roles"] == [{"project": {"id": "default", "slug": "default"}, "role": "operator"}]


def test_projects_38_no_http_issue_path() -> None:
    """Tried with every method of every route, and read from the sources: only commands may import it."""
    caller = api(member("owner", administrator=True))
    for route in ROUTES:
        for method in route.methods():
            caller(method, route.url(), body(method), X_Assurance="local_console")
    assert not ProjectOwnerBootstrapChallenge.objects.exists()
    inside = Path(settings.BASE_DIR) / "apps"
    users = {
        path.relative_to(inside).as_posix()
        for path in inside.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom | ast.Import)
        and {name.name for name in node.names} & {"issue_owner_bootstrap", "console_issuer"}
    }
    assert users == {
        "projects/services/__init__.py",
        "access/setup_file.py",
    }
    assert PolicySubject("system", "owner-bootstrap")
