"""Secrets in the panel: set by one field that is never read from, disabled, chosen in the task form."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.test import Client

from apps.access.models import User
from apps.projects.policy import Grant
from apps.runs.models import Run
from apps.tasks import queries
from apps.tasks.models import Task
from apps.vault import keyring, resolving, services
from apps.vault.models import Secret, SecretEnvelope
from apps.vault.references import Reference
from tests.panel.kit import a_run, a_task, browser
from tests.panel.test_tasks import NEW, form
from tests.people import member

pytestmark = pytest.mark.django_db
LIST = "/panel/p/default/secrets/"
VALUE = "a-value-that-nobody-sees"


@pytest.fixture(autouse=True)
def _keys(tmp_path: Any, settings: Any) -> None:
    settings.KEYRING_PATH = tmp_path / "keyring.json"
    keyring.create()


def put(name: str = "pg", value: str = VALUE, expected: int = 0) -> None:
    manage = Grant.system("default", "secret.manage", "tests")
    services.put(manage, name, value, mutation_id=f"m{expected}", expected_version=expected)


def value(name: str = "pg") -> str:
    found = resolving.resolve("default", [Reference("default", name).text])
    assert found is not None
    return found[0]


def hidden(page: str) -> dict[str, str]:
    return {
        name: content
        for name in ("mutation_id", "version")
        for content in re.findall(rf'name="{name}" value="([^"]*)"', page)[-1:]
    }


def send(client: Client, url: str, **values: str) -> Any:
    page = client.get(url).content.decode()
    return client.post(url, {**hidden(page), **values}, follow=True)


def test_set_replaced_and_never_shown(client: Client) -> None:
    answer = send(client, LIST, name="pg", value=VALUE)
    assert "Stored: pg, version 1." in answer.content.decode() and value() == VALUE
    shown = [answer.content.decode()]
    answer = send(client, f"{LIST}pg/", value="another-hidden-one")
    assert value() == "another-hidden-one"
    shown += [answer.content.decode(), client.get(LIST).content.decode()]
    for page in shown:
        assert VALUE not in page and "another-hidden-one" not in page
        assert re.search(r'<textarea[^>]*name="value"[^>]*></textarea>', page) or "New secret" not in page
    assert 'autocomplete="off"' in shown[0] and "ql-unseen" in shown[0]


def test_the_same_form_sent_twice_sets_it_once(client: Client) -> None:
    sent = {**hidden(client.get(LIST).content.decode()), "name": "pg", "value": VALUE}
    for _again in range(2):
        assert client.post(LIST, sent).status_code == 302
    assert SecretEnvelope.objects.count() == 1
    refused = client.post(LIST, {**sent, "value": "other"})
    assert (refused.status_code, SecretEnvelope.objects.count()) == (400, 1)
    assert "other" not in re.findall(r"<textarea.*?</textarea>", refused.content.decode(), re.DOTALL)[0]


def test_a_form_that_is_behind_is_refused(client: Client) -> None:
    put()
    sent = hidden(client.get(f"{LIST}pg/").content.decode())
    put(value="set meanwhile, long", expected=1)
    answer = client.post(f"{LIST}pg/", {**sent, "value": VALUE})
    page = answer.content.decode()
    assert answer.status_code == 400 and "changed meanwhile" in page and VALUE not in page
    assert hidden(page)["version"] == "2"
    assert value() == "set meanwhile, long"


@pytest.mark.parametrize(("text", "field"), [("x" * 65_537, "value"), ("a\0b", "value")])
def test_what_cannot_be_stored_is_said_and_not_shown(client: Client, text: str, field: str) -> None:
    answer = send(client, LIST, name="pg", value=text)
    page = answer.content.decode()
    assert answer.status_code == 400 and f'id="e-{field}"' in page and "xxxx" not in page
    assert 'value="pg"' in page and not Secret.objects.exists()


def test_names_are_checked(client: Client) -> None:
    answer = send(client, LIST, name="not a name", value=VALUE)
    assert answer.status_code == 400 and 'id="e-name"' in answer.content.decode()


def test_line_breaks_are_kept_as_lf(client: Client) -> None:
    send(client, LIST, name="pg", value="one\r\ntwo\r\n")
    assert value() == "one\ntwo\n"


@pytest.mark.parametrize("text", ["abc", "true", "aaaaaaaa"])
def test_what_cannot_be_hidden_is_said_by_name(client: Client, text: str) -> None:
    page = send(client, LIST, name="pin", value=text).content.decode()
    assert "The value of pin is too short or too plain" in page
    assert "too short" not in send(client, f"{LIST}pin/", value=VALUE).content.decode()


def test_disabling_names_the_tasks_that_will_fail(client: Client, owner: User) -> None:
    put()
    a_task(owner, name="Back up <b>", secrets={"A": "pg"})
    a_task(owner, name="Something else")
    page = client.get(f"{LIST}pg/disable/").content.decode()
    assert html.escape("Back up <b>") in page and "Something else" not in page
    answer = client.post(f"{LIST}pg/disable/", hidden(page), follow=True)
    assert "1 task that names it fails" in answer.content.decode()
    assert Secret.objects.get().disabled_at is not None
    page = client.get(f"{LIST}pg/").content.decode()
    answer = client.post(f"{LIST}pg/enable/", {"mutation_id": hidden(page)["mutation_id"]}, follow=True)
    assert "can be used again" in answer.content.decode()
    assert Secret.objects.get().disabled_at is None


def test_who_may(owner: User) -> None:
    put()
    for role in ("viewer", "operator"):
        other = browser(member(role))
        for url in (LIST, f"{LIST}pg/", f"{LIST}pg/disable/"):
            assert other.get(url).status_code == 403
            assert other.post(url, {"value": "x"}).status_code == 403
        assert LIST not in other.get("/panel/").content.decode()
    assert LIST in browser(owner).get("/panel/").content.decode()
    assert browser(member("owner", "zoe")).get(f"{LIST}none/").status_code == 404


def secrets(*rows: tuple[str, str, str], **values: str) -> dict[str, Any]:
    names = ("secret_variable", "secret_name", "secret_way")
    return form(**values) | {name: [row[at] for row in rows] for at, name in enumerate(names)}


def test_the_task_form_keeps_secrets_and_shows_them_again(client: Client) -> None:
    put()
    rows = [("PGPASSWORD", "pg", "env"), ("TLS", "tls", "file"), ("", "", "env")]
    client.post(NEW, secrets(*rows))
    task = Task.objects.get()
    assert queries.view(task).document()["secrets"] == {
        "PGPASSWORD": "pg",
        "TLS": {"secret": "tls", "as": "file"},
    }
    url = f"/panel/p/default/task/{task.slug}/"
    page = client.get(f"{url}edit/").content.decode()
    assert 'name="secret_name" value="pg"' in page and "2 secrets" in page
    assert '<option value="pg"></option>' in page, "names to choose from"
    assert "There is no secret of this name yet: tls" in page
    script = client.get(f"{url}script/").content.decode()
    assert "<code>PGPASSWORD</code> ← <code>pg</code>" in script and "<code>TLS_FILE</code>" in script
    client.post(f"{url}edit/", secrets(version="1", slug=task.slug))
    assert queries.view(Task.objects.get()).document()["secrets"] == {}
    compared = client.get(f"{url}revisions/compare/?a=1&b=2").content.decode()
    assert "PGPASSWORD ← pg" in compared and VALUE not in compared


@pytest.mark.parametrize(
    "rows",
    [
        [("A", "", "env")],
        [("", "pg", "env")],
        [("A", "pg", "env"), ("A", "tls", "env")],
        [("A", "no name", "env")],
        [("A", "pg", "argv")],
    ],
)
def test_rows_that_cannot_be_are_said_at_their_part(client: Client, rows: list[tuple[str, str, str]]) -> None:
    answer = client.post(NEW, secrets(*rows))
    page = answer.content.decode()
    assert answer.status_code == 400 and not Task.objects.exists()
    assert 'href="#f-secrets"' in page and 'id="f-secrets"' in page


def test_a_disabled_secret_cannot_be_chosen(client: Client) -> None:
    put()
    manage = Grant.system("default", "secret.manage", "tests")
    services.disable(manage, "pg", mutation_id="d")
    answer = client.post(NEW, secrets(("A", "pg", "env"), name="Kept words"))
    page = answer.content.decode()
    assert answer.status_code == 400 and "Kept words" in page and "disabled" in page
    assert '<option value="pg"></option>' not in page


def test_an_operator_types_names_and_sees_no_list(owner: User) -> None:
    put()
    page = browser(member("operator")).get(NEW).content.decode()
    assert 'name="secret_name"' in page and "secret-names" not in page and LIST not in page


def test_a_run_that_was_refused_says_what_to_do(client: Client, owner: User) -> None:
    put()
    run = a_run(owner, a_task(owner, secrets={"A": "pg"}))
    Run.objects.filter(pk=run.pk).update(
        status="failed", error_code="EXECUTOR_START_FAILED", error_summary="secret_disabled",
        finished_at=run.created_at, holds_place=False,
    )  # fmt: skip
    assert "is disabled: enable it under Secrets" in client.get(f"/panel/runs/{run.pk}/").content.decode()


def test_a_provider_is_offered_where_it_is_set_up(client: Client, settings: Any, tmp_path: Any) -> None:
    assert 'name="provider"' not in client.get(LIST).content.decode()
    folder = tmp_path / "files"
    for path in (folder, folder / "default"):
        path.mkdir(mode=0o700)
    (folder / "default/pg").write_text(VALUE)
    (folder / "default/pg").chmod(0o600)
    settings.SECRET_FILES = folder
    page = send(client, LIST, name="pg", provider="file", key="../pg").content.decode()
    assert 'id="e-key"' in page and not Secret.objects.exists()
    page = send(client, LIST, name="pg", provider="file", key="pg").content.decode()
    assert VALUE not in page and value() == VALUE
    page = client.get(f"{LIST}pg/").content.decode()
    assert "The value lies elsewhere: File" in page and 'name="value"' not in page
    (folder / "default/next").write_text("the next value")
    (folder / "default/next").chmod(0o600)
    send(client, f"{LIST}pg/", provider="file", key="next")
    assert value() == "the next value"


def keep(client: Client, **values: str) -> Any:
    return client.post("/panel/p/default/keep-secret/", values)


def test_a_value_of_the_form_is_kept_under_the_first_free_name(client: Client) -> None:
    put("API_TOKEN", "another")
    first, second = (keep(client, variable="API_TOKEN", value=VALUE) for _ in range(2))
    assert (first.json(), second.json()) == ({"name": "API_TOKEN-2"}, {"name": "API_TOKEN-3"})
    assert VALUE not in first.content.decode()
    assert (value("API_TOKEN"), value("API_TOKEN-2")) == ("another", VALUE)
    assert keep(client, variable="__TOKEN", value="a\r\nb").json() == {"name": "TOKEN"}
    assert value("TOKEN") == "a\nb"


def test_a_stored_value_is_kept_byte_for_byte(client: Client, owner: User) -> None:
    task = a_task(owner, env={"KEY": "a\r\nb"})
    assert keep(client, variable="KEY", value="a\nb", task=str(task.pk)).json() == {"name": "KEY"}
    assert value("KEY") == "a\r\nb"
    for unknown in ("nothing", "a\0b"):
        assert keep(client, variable="KEY", value="x", task=unknown).status_code == 404


def test_what_cannot_be_kept_says_why(client: Client) -> None:
    for wrong in ({"variable": "", "value": VALUE}, {"variable": "a b", "value": VALUE}):
        refused = keep(client, **wrong)
        assert refused.status_code == 400, wrong
        assert refused.json()["detail"] and VALUE not in refused.content.decode()
    for number in range(20):
        put(f"A-{number + 1}" if number else "A")
    assert keep(client, variable="A", value=VALUE).json()["code"] == "local_secret_version_conflict"


@pytest.mark.parametrize("role", ["admin", "operator", "viewer"])
def test_only_who_manages_secrets_keeps_one_and_the_form_says_so(role: str) -> None:
    person = browser(member(role, "bob"))
    answer = keep(person, variable="TOKEN", value=VALUE)
    assert answer.status_code == (200 if role == "admin" else 403)
    assert Secret.objects.filter(name="TOKEN").exists() == (role == "admin")
    if role != "viewer":
        page = person.get("/panel/p/default/tasks/new/").content.decode()
        assert ("data-keep>" in page) == (role == "admin")
        assert ("Your role cannot keep secrets" in page) == (role == "operator")
