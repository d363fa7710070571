"""Tasks that name secrets: who may save, start and archive them, and what is stored (api.md, "Task")."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.errors import InvalidInput
from apps.projects.policy import Grant
from apps.tasks import queries, revisions
from apps.tasks.errors import RevisionCorrupt
from apps.tasks.models import TaskExecutionRevision, TaskSecret
from apps.vault import keyring, recipes, services
from apps.vault.references import Reference
from tests import people
from tests.people import Api
from tests.tasks.kit import change, document, grant, make

pytestmark = pytest.mark.django_db
URL = "projects/default/tasks"
PG = {"PGPASSWORD": "pg-password"}


@pytest.fixture(autouse=True)
def _keys(tmp_path: Any, settings: Any) -> None:
    settings.KEYRING_PATH = tmp_path / "keyring.json"
    keyring.create()


def put(name: str = "pg-password", value: str = "hunter2-long-enough") -> None:
    manage = Grant.system("default", "secret.manage", "tests")
    services.put(manage, name, value, mutation_id="m1", expected_version=0)


def switch(name: str = "pg-password", *, on: bool, mutation: str = "s1") -> None:
    manage = Grant.system("default", "secret.manage", "tests")
    (services.enable if on else services.disable)(manage, name, mutation_id=mutation)


def _users(name: str = "pg-password") -> int:
    return queries.secret_users("default", [name]).get(name, 0)


def test_what_is_stored() -> None:
    both = {"TLS": {"secret": "tls", "as": "file"}, **PG}
    task = make(secrets=both, env={"LANG": "C"})
    shown = document(task)
    assert (shown["secrets"], shown["env"]) == (both, {"LANG": "C"})
    revision = revisions.read(task.revision)
    recipe = recipes.resolve(revision.context_ref)
    assert recipe is not None
    assert recipe.bindings == (
        recipes.Public("LANG", "C"),
        recipes.Secret("PGPASSWORD", Reference("default", "pg-password").text),
        recipes.Secret("TLS", Reference("default", "tls").text),
    )
    assert task.revision.uses_secrets
    assert not make(slug="plain").revision.uses_secrets
    assert change(task, secrets={}).revision.uses_secrets is False
    assert _users() == 0


def test_one_more_by_the_plain_form() -> None:
    task = make(secrets={"A": {"secret": "a", "as": "env"}})
    assert document(task)["secrets"] == {"A": "a"}
    assert change(task, secrets={"A": "a"}).version == task.version


@pytest.mark.parametrize(
    "value",
    [
        [], "a", {"": "a"}, {"A=B": "a"}, {"A\0": "a"}, {"A": ""}, {"A": " a"}, {"A": "a/b"}, {"A": "x" * 129},
        {"A": 1}, {"A": None}, {"A": {"secret": "a"}}, {"A": {"secret": "a", "as": "argv"}},
        {"A": {"secret": "a", "as": "env", "x": 1}}, {"A" * 251: "a"}, {"\ud800": "a"}, {"QINGLONG_RUN_ID": "a"},
        {"RUN_FENCE": "a"}, {f"V{n}": f"s{n}" for n in range(65)}, {f"V{n}": "s" for n in range(257)},
    ],
)  # fmt: skip
def test_refused(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        make(secrets=value)
    assert list(caught.value.fields) == ["secrets"]


def test_sixty_four_of_many_variables() -> None:
    many = {f"V{n}": f"s{n % 64}" for n in range(200)}
    assert document(make(secrets=many))["secrets"] == many


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"A": "1"}, {"A": "a"}),
        ({"A_FILE": "1"}, {"A": "a"}),
        ({}, {"A": "a", "A_FILE": "b"}),
    ],
)
def test_one_meaning_for_each_variable(env: dict[str, str], named: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        make(env=env, secrets=named)
    task = make(env=env)
    with pytest.raises(InvalidInput):
        change(task, secrets=named)


def test_who_uses_a_secret() -> None:
    one, two = make(secrets=PG), make(secrets={"A": "pg-password", "B": "pg-password"})
    assert _users() == 2
    assert [task.pk for task in queries.users_of_secret("default", "pg-password")] == sorted([one.pk, two.pk])
    change(two, secrets={"A": "other"})
    assert (_users(), _users("other")) == (1, 1)
    assert TaskSecret.objects.filter(task=two).count() == 1


def test_a_disabled_secret_is_named_by_nobody_anew() -> None:
    put()
    task = make(secrets=PG)
    number = task.revision.task_revision
    switch(on=False)
    api = people.api(people.member("owner"))
    answer = api("POST", URL, {"name": "a", "shell": "true", "secrets": PG})
    assert (answer.status_code, answer.json()["code"]) == (409, "secret_disabled")
    # What names it already may still be changed, or nobody could mend it.
    task = change(task, shell="false")
    task = change(task, secrets={})
    with pytest.raises(Exception, match="secret_disabled"):
        change(task, secrets=PG)
    from apps.tasks.services import reuse_revision

    with pytest.raises(Exception, match="secret_disabled"):
        reuse_revision(grant("task.update"), task.pk, task.version, number)
    switch(on=True, mutation="s2")
    assert reuse_revision(grant("task.update"), task.pk, task.version, number).revision.uses_secrets
    assert _users() == 1


def _limited(*scopes: str) -> Api:
    return people.api(people.member("owner", "cat"), *scopes)


def test_saving_takes_the_right_to_use_secrets() -> None:
    put()
    limited = _limited("task.read", "task.create", "task.update", "task.delete", "run.start")
    body = {"name": "a", "slug": "a", "shell": "true"}
    answer = limited("POST", URL, {**body, "secrets": PG})
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert limited("POST", URL, body).status_code == 201
    assert limited("PATCH", f"{URL}/a", {"secrets": PG}, If_Match='"1"').status_code == 403

    whole = people.api(people.member("operator", "dan"))
    assert whole("PATCH", f"{URL}/a", {"secrets": PG}, If_Match='"1"').status_code == 200
    # Whoever writes the script reads the values.
    assert limited("PATCH", f"{URL}/a", {"shell": "env"}, If_Match='"2"').status_code == 403
    assert limited("PATCH", f"{URL}/a", {"env": {"PATH": "/tmp"}}, If_Match='"2"').status_code == 403
    assert limited("PATCH", f"{URL}/a", {"name": "b"}, If_Match='"2"').status_code == 200
    # So does whoever starts it, now or later, or takes it away.
    assert limited("POST", f"{URL}/a/runs", {}, Idempotency_Key="k").status_code == 403
    cron = {"kind": "cron", "schedule": "0 0 * * *", "timezone": "UTC"}
    assert limited("POST", f"{URL}/a/triggers", cron).status_code == 403
    assert limited("DELETE", f"{URL}/a", If_Match='"3"').status_code == 403
    assert whole("POST", f"{URL}/a/runs", {}, Idempotency_Key="k").status_code == 201
    assert whole("POST", f"{URL}/a/triggers", cron).status_code == 201
    # Without secrets again, nobody needs the right.
    assert limited("PATCH", f"{URL}/a", {"secrets": {}}, If_Match='"3"').status_code == 200
    assert limited("DELETE", f"{URL}/a", If_Match='"4"').status_code == 204


def test_starting_with_a_disabled_secret_is_refused() -> None:
    put()
    make(slug="a", secrets=PG)
    api = people.api(people.member("operator"))
    assert api("POST", f"{URL}/a/runs", {}, Idempotency_Key="1").status_code == 201
    switch(on=False)
    answer = api("POST", f"{URL}/a/runs", {}, Idempotency_Key="2")
    assert (answer.status_code, answer.json()["code"]) == (409, "secret_disabled")
    assert "pg-password" not in answer.content.decode()
    assert api("POST", f"{URL}/a/runs", {}, Idempotency_Key="1").status_code == 200
    switch(on=True, mutation="s2")
    assert api("POST", f"{URL}/a/runs", {}, Idempotency_Key="2").status_code == 201


def test_a_start_without_secrets_asks_nothing_more() -> None:
    from apps.runs.services import start_run

    def statements(**values: Any) -> int:
        task = make(**values)
        start = people.grant(owner, "run.start")
        with CaptureQueriesContext(connection) as found:
            start_run(start, task.pk, trigger_type="manual")
        return len(found)

    owner = people.member("owner")
    statements()
    plain = statements()
    assert statements(secrets=PG) == plain + 1


def test_a_revision_whose_columns_do_not_agree_is_corrupt() -> None:
    task = make(secrets=PG)
    row = TaskExecutionRevision.objects.get(pk=task.revision_id)
    row.uses_secrets = False
    with pytest.raises(RevisionCorrupt):
        revisions.read(row)


def test_a_name_that_does_not_exist_yet_may_be_named() -> None:
    assert document(make(secrets={"A": "later"}))["secrets"] == {"A": "later"}
