"""Projects, roles, accounts, tokens, workers and the audit log in the panel."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.access.models import ApiToken, User
from apps.access.services import change_person
from apps.audit.models import AuditEntry
from apps.dispatch.models import Worker
from apps.dispatch.services.workers import register
from apps.identity.models import IdentitySubject
from apps.projects.models import Project
from apps.projects.queries import roles_of
from apps.projects.services import follow_roles, set_project_status
from apps.tasks.models import Task
from apps.triggers.drafts import TriggerDraft
from apps.triggers.models import Trigger
from apps.triggers.services import create_trigger
from tests.panel.kit import a_task, browser
from tests.people import PASSWORD, account, age_sign_ins, give, grant, member, project, subject

pytestmark = pytest.mark.django_db

PROJECT = "/panel/p/default/"


@pytest.fixture
def owner() -> User:
    return member("owner", "ann", administrator=True)


@pytest.fixture
def client(owner: User) -> Client:
    return browser(owner)


def role(user: User) -> str | None:
    return next((str(binding.role) for binding in roles_of(subject(user), "default")), None)


def test_roles_are_given_changed_and_revoked_with_their_history(client: Client) -> None:
    sam = account("sam")
    client.post(f"{PROJECT}roles/", {"username": "SAM", "role": "viewer"})
    assert role(sam) == "viewer"
    client.post(f"{PROJECT}roles/", {"username": "sam", "role": "operator"})
    html = client.get(PROJECT).content.decode()
    assert role(sam) == "operator" and "Operator" in html and "sam" in html
    sent = {"subject_type": "user", "subject_id": sam.subject_id, "version": "1"}
    stale = client.post(f"{PROJECT}roles/", sent, follow=True)
    assert "project_role_binding_version_conflict" in stale.content.decode()
    client.post(f"{PROJECT}roles/", sent | {"version": "2"})
    assert role(sam) is None
    assert client.get(f"{PROJECT}?history=1").content.decode().count(">sam") == 3


def test_refusals_about_roles_are_said(owner: User, client: Client) -> None:
    unknown = client.post(f"{PROJECT}roles/", {"username": "nobody", "role": "viewer"}, follow=True)
    assert "There is no account or application of this name." in unknown.content.decode()
    sent = {"subject_type": "user", "subject_id": owner.subject_id, "version": "1"}
    assert "last_owner" in client.post(f"{PROJECT}roles/", sent, follow=True).content.decode()
    assert role(owner) == "owner"
    admin = browser(member("admin", "adam"))
    assert admin.post(f"{PROJECT}roles/", {"username": "adam", "role": "owner"}).status_code == 403
    assert 'value="owner"' not in admin.get(PROJECT).content.decode()
    viewer = browser(member("viewer", "vic"))
    assert "roles/" not in viewer.get(PROJECT).content.decode()
    assert viewer.post(f"{PROJECT}roles/", {"username": "vic", "role": "admin"}).status_code == 403


def test_projects_are_made_renamed_archived_and_restored(client: Client) -> None:
    bad = client.post("/panel/projects/", {"name": "", "slug": "shop"})
    assert bad.status_code == 400 and 'href="#f-name"' in bad.content.decode()
    assert client.post("/panel/projects/", {"name": "X", "slug": "default"}).status_code == 400
    client.post("/panel/projects/", {"name": "Shop", "slug": "shop"})
    shop = Project.objects.get(slug="shop")
    assert (
        client.post("/panel/p/shop/", {"name": "Store", "slug": "store", "version": "1"}).status_code == 302
    )
    assert client.get("/panel/p/store/archive/").status_code == 200
    client.post("/panel/p/store/archive/", {"version": "2"})
    shop.refresh_from_db()
    assert shop.status == "archived" and shop.name == "Store"
    assert "archived" in client.get("/panel/p/store/").content.decode()
    assert client.post("/panel/p/store/tasks/new/", {"name": "x"}).status_code == 409
    client.post("/panel/p/store/restore/", {"version": "3"})
    shop.refresh_from_db()
    assert shop.status == "active"


def test_an_archived_project_loses_roles_and_gets_none(owner: User, client: Client) -> None:
    vic = member("viewer", "vic")
    set_project_status(grant(owner, "project.manage"), 1, "archived")
    refused = client.post(f"{PROJECT}roles/", {"username": "vic", "role": "admin"}, follow=True)
    assert "project_archived" in refused.content.decode() and role(vic) == "viewer"
    client.post(f"{PROJECT}roles/", {"subject_type": "user", "subject_id": vic.subject_id, "version": "1"})
    assert role(vic) is None
    assert "The chain is whole" in client.post(f"{PROJECT}audit/check/", follow=True).content.decode()


def test_the_instance_is_for_its_administrators() -> None:
    client = browser(member("owner", "olga"))
    html = client.get("/panel/").content.decode()
    assert "/panel/workers/" not in html and "/panel/people/" not in html
    for page in ("people", "workers"):
        assert client.get(f"/panel/{page}/").status_code == 403
    assert client.post("/panel/projects/", {"name": "X", "slug": "x"}).status_code == 403
    assert client.post("/panel/people/", {"username": "x", "password": PASSWORD}).status_code == 403


def test_another_projects_owner_sees_nothing_of_this_one(owner: User) -> None:
    olga = account("olga")
    project(olga, "hers")
    client = browser(olga)
    assert client.get("/panel/p/hers/tasks/").status_code == 200
    for page in ("tasks/", "runs/", "skips/", "audit/", "", "archive/", "tasks/new/"):
        assert client.get(f"{PROJECT}{page}").status_code == 404
    for page in ("roles/", "archive/", "restore/", "tasks/new/"):
        assert client.post(f"{PROJECT}{page}", {"version": "1"}).status_code == 404


def test_accounts_are_made_and_can_sign_in(client: Client) -> None:
    weak = client.post("/panel/people/", {"username": "eve", "password": "1234567890"})
    assert weak.status_code == 400 and 'href="#f-password"' in weak.content.decode()
    assert client.post("/panel/people/", {"username": "eve", "password": PASSWORD}).status_code == 302
    eve = User.objects.get(username="eve")
    assert not eve.is_superuser
    assert "no role in any project" in browser(eve).get("/panel/").content.decode()


def test_a_tokens_secret_is_shown_once_and_works_until_revoked(client: Client) -> None:
    made = client.post(
        "/panel/tokens/", {"name": "ci", "preset": "read", "lifetime": "30", "project": "default"}
    )
    found = re.search(r"ql3t_[A-Za-z0-9_-]{43}", made.content.decode())
    assert made.status_code == 201 and found
    assert found[0] not in client.get("/panel/tokens/").content.decode()
    headers = {"Authorization": f"Bearer {found[0]}"}
    assert Client().get("/api/v3/projects/default/tasks", headers=headers).status_code == 200
    token = ApiToken.objects.get()
    assert token.project_id == "default" and "run.start" not in token.scopes and token.expires_at
    client.post(f"/panel/tokens/{token.pk}/revoke/")
    assert Client().get("/api/v3/projects/default/tasks", headers=headers).status_code == 401
    assert "revoked" in client.get("/panel/tokens/").content.decode()


def test_tokens_need_a_fresh_sign_in_and_good_input(owner: User, client: Client) -> None:
    sent = {"name": "", "preset": "all", "lifetime": "90"}
    assert client.post("/panel/tokens/", sent).status_code == 400
    assert (
        client.post("/panel/tokens/", {"name": "x", "preset": "chosen", "lifetime": "90"}).status_code == 400
    )
    assert client.post("/panel/tokens/", {"name": "x", "preset": "all", "lifetime": "7"}).status_code == 400
    assert (
        client.post(
            "/panel/tokens/", {"name": "x", "preset": "all", "lifetime": "", "project": "no"}
        ).status_code
        == 404
    )
    age_sign_ins()
    stale = client.post("/panel/tokens/", {"name": "x", "preset": "all", "lifetime": "90"})
    assert stale.status_code == 403 and "session_not_fresh" in stale.content.decode()
    assert not ApiToken.objects.exists()


def test_a_sign_in_too_old_asks_who_it_is_and_goes_on_with_what_was_filled_in(
    owner: User, client: Client
) -> None:
    age_sign_ins()
    form = {"name": "nightly", "preset": "all", "lifetime": "90", "password": "not to be repeated"}
    asked = client.post("/panel/tokens/", form)
    html = asked.content.decode()
    assert asked.status_code == 403 and "Is it still you?" in html
    assert 'name="name" value="nightly"' in html and "not to be repeated" not in html
    sent = {"name": "nightly", "preset": "all", "lifetime": "90", "confirm": "1"}
    wrong = client.post("/panel/tokens/", {**sent, "confirm_password": "wrong"})
    assert wrong.status_code == 401 and not ApiToken.objects.exists()
    done = client.post("/panel/tokens/", {**sent, "confirm_password": PASSWORD})
    assert done.status_code == 201 and ApiToken.objects.get().name == "nightly"
    assert client.post("/panel/tokens/", {"name": "b", "preset": "all", "lifetime": ""}).status_code == 201


def test_wrong_passwords_inside_count_as_at_the_door(owner: User, client: Client) -> None:
    age_sign_ins()
    for _ in range(5):
        client.post("/panel/tokens/", {"confirm": "1", "confirm_password": "wrong"})
    answer = client.post("/panel/tokens/", {"confirm": "1", "confirm_password": PASSWORD})
    assert answer.status_code == 429 and answer.headers["Retry-After"] == "300"


def test_nobody_revokes_the_token_of_another(owner: User, client: Client) -> None:
    client.post("/panel/tokens/", {"name": "ci", "preset": "all", "lifetime": ""})
    token = ApiToken.objects.get()
    assert browser(member("owner", "olga")).post(f"/panel/tokens/{token.pk}/revoke/").status_code == 404
    token.refresh_from_db()
    assert token.revoked_at is None


def test_workers_drain_and_resume(client: Client) -> None:
    worker = register("0" * 32, 1, 8, ["runs"])
    html = client.get("/panel/workers/").content.decode()
    assert worker.node_id in html and "0 / 8" in html and "takes runs" in html
    assert client.get(f"/panel/workers/{worker.pk}/drain/").status_code == 404
    client.post(f"/panel/workers/{worker.pk}/drain/")
    assert Worker.objects.get().drain_requested_at is not None
    assert "takes no new runs" in client.get("/panel/workers/").content.decode()
    client.post(f"/panel/workers/{worker.pk}/resume/")
    assert Worker.objects.get().drain_requested_at is None
    answer = client.post("/panel/workers/none:1/drain/")
    assert answer.status_code == 404


def test_nodes_drain_and_resume(client: Client) -> None:
    worker = register("0" * 32, 1, 8, ["runs"])
    assert client.get(f"/panel/workers/node/{worker.node_id}/drain/").status_code == 404
    html = client.post(f"/panel/workers/node/{worker.node_id}/drain/", follow=True).content.decode()
    assert "drained" in html and "nothing runs here any more" in html
    assert Worker.objects.get().status == "draining"
    # One place of a drained node cannot be resumed, and the page does not offer it.
    assert f"/panel/workers/{worker.pk}/resume/" not in html
    html = client.post(f"/panel/workers/{worker.pk}/resume/", follow=True).content.decode()
    assert "node_draining" in html
    client.post(f"/panel/workers/node/{worker.node_id}/resume/")
    assert Worker.objects.get().status == "online"
    assert client.post("/panel/workers/node/none/drain/").status_code == 404


def test_the_audit_log_names_people(client: Client) -> None:
    client.post("/panel/p/default/roles/", {"username": account("sam").username, "role": "viewer"})
    html = client.get("/panel/p/default/audit/").content.decode()
    assert "role.granted" in html and "ann" in html


def test_a_second_person_brings_the_warning_and_a_second_project_the_switch(
    owner: User, client: Client, settings: Any
) -> None:
    html = client.get("/panel/").content.decode()
    assert "QINGLONG_RUN_AS" not in html and "ql-switch" not in html
    member("viewer", "vic")
    project(owner, "shop")
    html = client.get("/panel/").content.decode()
    assert "QINGLONG_RUN_AS" in html and "ql-switch" in html
    assert "QINGLONG_RUN_AS" not in browser(User.objects.get(username="vic")).get("/panel/").content.decode()
    settings.RUN_AS = "nobody"
    assert "QINGLONG_RUN_AS" not in client.get("/panel/").content.decode()
    assert client.get("/panel/?project=shop").status_code == 200
    assert client.get("/panel/?project=nowhere").status_code == 404


@pytest.mark.parametrize("name", ["a\0b", "x" * 200_000, "\ufdfa" * 64])
def test_no_name_is_too_odd_to_look_up(client: Client, name: str) -> None:
    answer = client.post("/panel/p/default/roles/", {"username": name, "role": "viewer"})
    assert answer.status_code == 302
    assert (
        "There is no account or application of this name." in client.get("/panel/p/default/").content.decode()
    )


@pytest.mark.parametrize(
    ("method", "address", "status"),
    [
        ("get", "/panel/p/default/tasks/?search=a%00b", 400),
        ("get", "/panel/p/default/tasks/?label=%00", 400),
        ("get", "/panel/?project=%00", 400),
        ("get", "/panel/p/a%00b/tasks/", 404),
        ("get", "/panel/p/default/task/a%00b/", 404),
        ("post", "/panel/workers/a%00b/drain/", 404),
    ],
)
def test_nul_in_an_address_reaches_no_database(
    client: Client, method: str, address: str, status: int
) -> None:
    assert getattr(client, method)(address).status_code == status


def test_the_history_says_who_changed_what_from_what_to_what_and_how(client: Client, owner: User) -> None:
    sam = account("sam")
    client.post(f"{PROJECT}roles/", {"username": "sam", "role": "viewer"})
    client.post(f"{PROJECT}roles/", {"username": "sam", "role": "operator"})
    follow_roles(subject(account("ivy")), "oidc:main", {"default": "viewer"})
    client.post(f"{PROJECT}roles/", {"subject_type": "user", "subject_id": sam.subject_id, "version": "2"})
    html = client.get(f"{PROJECT}?history=1").content.decode()
    rows = [
        [
            re.sub(r"<[^>]+>", "", re.sub(r'<span class="[^"]*ql-phone-only.*?</span>', "", cell)).strip()
            for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)
        ]
        for row in re.findall(r'<tr data-row="[^"]+">(.*?)</tr>', html, re.DOTALL)
    ]
    told = [(row[0], row[1], row[2], row[4], row[5]) for row in rows]
    assert told == [
        ("sam", "Operator", "revoked", "ann", "by hand"),
        ("ivy", "none", "Viewer", "–", "groups at oidc:main"),
        ("sam", "Viewer", "Operator", "ann", "by hand"),
        ("sam", "none", "Viewer", "ann", "by hand"),
        ("ann", "none", "Owner", "–", "tests"),
    ]


def test_the_history_costs_the_same_for_many(client: Client) -> None:
    def look() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert client.get(f"{PROJECT}?history=1").status_code == 200
        return len(seen)

    # With a second person the frame counts what waits for approval.
    give(account("second"), "viewer")
    before = look()
    for number in range(30):
        give(account(f"p{number}"), "viewer")
    assert look() == before


def test_whoever_is_shut_out_leaves_no_project_without_an_owner_by_a_slip(client: Client) -> None:
    olga = account("olga")
    project(olga, "hers")
    page = f"/panel/people/{olga.subject_id}/"
    assert "Nobody else owns:" in client.get(page).content.decode()
    sent = {"change": "disable", "version": "1"}
    said = client.post(f"{page}change/", sent, follow=True).content.decode()
    assert "last_owner" in said and IdentitySubject.objects.get(pk=olga.subject_id).status == "active"
    client.post(f"{page}change/", {**sent, "leave_ownerless": "1"})
    assert IdentitySubject.objects.get(pk=olga.subject_id).status == "disabled"
    entry = AuditEntry.objects.get(action="owner.shut_out")
    assert Project.objects.get(pk=entry.scope).slug == "hers" and entry.subject_id == olga.subject_id
    assert "Nobody else owns:" not in client.get(page).content.decode()


def test_schedules_of_disabled_people_are_listed_with_links(client: Client, owner: User) -> None:
    left, stays = member("operator", "olga"), member("operator", "otto")
    hers = account("hera")
    elsewhere = project(hers, "hers")
    give(left, "operator", elsewhere)
    cron = TriggerDraft(kind="cron", schedule="0 3 * * *")
    for who, where, name in (
        (left, "default", "Back up"),
        (stays, "default", "Sweep"),
        (left, elsewhere, "Secret plan"),
    ):
        task = a_task(owner if where == "default" else hers, name, where)
        create_trigger(grant(who, "task.update", where), grant(who, "run.start", where), task.pk, cron)
    person = f"/panel/people/{left.subject_id}/"
    shown = client.get(person).content.decode()
    assert "/panel/p/default/task/back-up/triggers/" in shown, "before somebody is disabled too"
    assert "1 more in projects in which you have no role" in shown and "Secret plan" not in shown
    assert "Schedules of people who are disabled" not in client.get("/panel/people/").content.decode()
    change_person(left.subject_id, 1, status="disabled", actor=subject(owner), origin="tests")
    listed = client.get("/panel/people/").content.decode()
    assert "/panel/p/default/task/back-up/triggers/" in listed and "olga" in listed
    assert "Sweep" not in listed and "Secret plan" not in listed
    assert "1 more in projects in which you have no role" in listed
    task = Task.objects.get(slug="back-up")
    Trigger.objects.filter(task=task).update(enabled=False, fire_at=None)
    assert "back-up/triggers" not in client.get("/panel/people/").content.decode()
