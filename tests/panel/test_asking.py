"""A task that needs an approval, as people see it: the mark, asking, alone, the broken glass, votes, taking back."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.access.models import User
from apps.approvals import jobs, queries
from apps.approvals.models import ApprovalRequest
from apps.audit.models import AuditEntry
from apps.core import clock
from apps.projects import approval_policy
from apps.projects.services import change_approval_policy
from apps.runs.models import AloneStart, Run
from apps.tasks.models import Task
from apps.triggers.drafts import TriggerDraft
from apps.triggers.services import create_trigger
from tests.approvals.kit import ready
from tests.conftest import Time
from tests.panel.kit import a_run, a_task, browser
from tests.panel.test_task_pages import a_trigger
from tests.panel.test_tasks import form as task_form
from tests.people import PASSWORD, account, grant, member, signed_in
from tests.triggers.kit import fire

pytestmark = pytest.mark.django_db
__all__ = ["ready"]
P = "/panel/p/default"
ASK = f"{P}/task/deploy/run-with/"


@pytest.fixture
def task(owner: User) -> Task:
    return a_task(owner, "Deploy shop", slug="deploy", requires_approval=True)


@pytest.fixture
def ursula() -> User:
    return member("admin", "ursula")


def rules(owner: User, **changes: Any) -> None:
    version = approval_policy.of("default").version
    change_approval_policy(grant(owner, "policy.manage"), version, changes)


def ask(client: Client, **sent: str) -> Any:
    values = {
        "once": "abcdefgh1234",
        "how": "ask",
        "risk": "high",
        "life": "3600000",
        "input": "",
        "args": "",
    }
    return client.post(ASK, values | sent)


def asked(client: Client, **sent: str) -> ApprovalRequest:
    answer = ask(client, **sent)
    assert answer.status_code == 302, answer.content.decode()
    pk = re.fullmatch(r"/panel/approvals/([^/]+)/", answer.headers["Location"])
    assert pk
    return ApprovalRequest.objects.get(pk=pk[1])


def decide(client: Client, request: ApprovalRequest, decision: str = "approved") -> str:
    page = f"/panel/approvals/{request.pk}/"
    once = re.search(r'name="once" value="(\w+)"', client.get(page).content.decode())
    assert once
    sent = {
        "version": "1", "once": once[1], "decision": decision, "approved_reason": "tested",
        "rejected_reason": "not_now",
    }  # fmt: skip
    return client.post(f"{page}decide/", sent, follow=True).content.decode()


def test_the_form_marks_a_task_and_never_takes_the_mark_back(client: Client, owner: User) -> None:
    client.post(f"{P}/tasks/new/", task_form(slug="risky", requires_approval="1"))
    made = Task.objects.get(slug="risky")
    assert made.requires_approval
    html = client.get(f"{P}/task/risky/edit/").content.decode()
    assert 'id="f-requires_approval" checked disabled' in html and f"{P}/task/risky/settings/" in html
    sent = task_form(slug="risky", name="Other", version=str(made.version))
    assert client.post(f"{P}/task/risky/edit/", sent).status_code == 302
    made.refresh_from_db()
    assert made.requires_approval and made.name == "Other"


def test_the_mark_is_set_and_taken_back_on_the_settings(owner: User, time: Time) -> None:
    task = a_task(owner, "Deploy shop", slug="deploy")
    operator = signed_in(member("operator", "bob"))
    operator.post(f"{P}/task/deploy/approval/require/")
    task.refresh_from_db()
    assert task.requires_approval
    assert "task-approval-clear" not in operator.get(f"{P}/task/deploy/settings/").content.decode()
    assert operator.post(f"{P}/task/deploy/approval/clear/").status_code == 403
    client = signed_in(owner)
    assert "/approval/clear/" in client.get(f"{P}/task/deploy/settings/").content.decode()
    time.advance(16 * 60_000)
    question = client.post(f"{P}/task/deploy/approval/clear/").content.decode()
    task.refresh_from_db()
    assert "Is it still you?" in question and task.requires_approval
    client.post(f"{P}/task/deploy/approval/clear/", {"confirm": "1", "confirm_password": PASSWORD})
    task.refresh_from_db()
    assert not task.requires_approval
    acts = set(AuditEntry.objects.values_list("action", flat=True))
    assert {"task.approval_required", "task.approval_cleared"} <= acts


def test_list_head_and_palette_say_it(client: Client, task: Task, owner: User) -> None:
    a_task(owner, "Other", slug="other")
    html = client.get(f"{P}/tasks/").content.decode()
    assert html.count("Each start needs an approval") == 2, "as a title and for those who hear it, once"
    assert f'href="{ASK}"' in html and f'formaction="{P}/task/deploy/run/"' not in html
    head = client.get(f"{P}/task/deploy/").content.decode()
    assert "Each start needs an approval" in head and "Ask for approval" in head
    assert f"{P}/task/deploy/run/" not in head
    found = client.get("/panel/go/?q=deploy").content.decode()
    assert "Ask for approval to run Deploy shop" in found


@pytest.mark.parametrize("door", ["run", "run-with"])
def test_whoever_starts_it_is_led_to_asking(client: Client, task: Task, door: str) -> None:
    answer = client.post(f"{P}/task/deploy/{door}/", {"once": "abcdefgh1234"}, follow=True)
    html = answer.content.decode()
    assert "Ask for approval to run Deploy shop" in html and "approval" in html
    assert not Run.objects.exists()


def test_saved_and_asked(client: Client, task: Task) -> None:
    sent = task_form(slug="deploy", version=str(task.version), do="save-and-run")
    answer = client.post(f"{P}/task/deploy/edit/", sent)
    assert answer.headers["Location"] == ASK and not Run.objects.exists()


def test_again_is_asked_with_what_it_was_given(client: Client, owner: User) -> None:
    task = a_task(owner, "Deploy shop", slug="deploy")
    run = a_run(owner, task, input={"tag": "v2"}, args=["x"])
    Run.objects.filter(pk=run.pk).update(
        status="failed", started_at=clock.now(), finished_at=clock.now(), holds_place=False
    )
    client.post(f"{P}/task/deploy/approval/require/")
    assert "Ask to run it again" in client.get(f"/panel/runs/{run.pk}/").content.decode()
    html = client.post(f"/panel/runs/{run.pk}/retry/", follow=True).content.decode()
    assert "&quot;tag&quot;: &quot;v2&quot;" in html and "Nothing was started" in html
    assert Run.objects.count() == 1


def test_many_at_once_start_what_needs_none_and_name_the_rest(
    client: Client, owner: User, task: Task
) -> None:
    other = a_task(owner, "Other", slug="other")
    sent = {"do": "run", "task": [str(task.pk), str(other.pk)], "once": "abcdefgh1234"}
    html = client.post(f"{P}/tasks/bulk/", sent).content.decode()
    assert "1 started, 1 not." in html and "(approval_required)" in html and f'href="{ASK}"' in html
    assert [run.task_id for run in Run.objects.all()] == [other.pk]


def test_asked_approved_by_somebody_else_and_run(client: Client, ursula: User, task: Task) -> None:
    form = client.get(ASK).content.decode()
    assert "These can: ursula" in re.sub(r"\s+", " ", form)
    request = asked(client, input='{"tag": "v2"}', args="a\nb", priority="3")
    assert (request.risk, request.state, request.requested_by_type) == ("high", "pending", "user")
    assert asked(client, input='{"tag": "v2"}', args="a\nb", priority="3").pk == request.pk, "a second press"
    assert asked(client, input='{"tag": "v3"}', args="a\nb", priority="3").pk != request.pk
    page = client.get(f"/panel/approvals/{request.pk}/").content.decode()
    assert "You asked for this" in page and "ql-decide" not in page and "the word of who asks" in page
    decide(browser(ursula), request)
    jobs.consume({})
    jobs.cycle.cache_clear()
    jobs.execute({})
    [run] = Run.objects.all()
    assert run.trigger_type == "approved_action" and run.priority == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"input": "{"}, {"input": "[1]"}, {"priority": "x"}, {"priority": "99999"}, {"risk": "none"}, {"life": ""},
        {"life": "1"}, {"how": "break_glass"}, {"how": "break_glass", "reason": "x" * 501, "sure": "1"},
        {"how": "break_glass", "reason": "because"}, {"how": "break_glass", "reason": "because", "sure": "1"},
        {"how": "exempt"}, {"how": "nonsense"}, {"how": ""}, {"args": "x" * 70_000},
        {"reason": "a\0b", "how": "break_glass"},
    ],
)  # fmt: skip
def test_bad_input_gets_a_sentence(client: Client, task: Task, wrong: dict[str, str]) -> None:
    answer = ask(client, **wrong)
    assert 400 <= answer.status_code < 500, answer.status_code
    assert "ql-error" in answer.content.decode()
    assert not ApprovalRequest.objects.exists() and not Run.objects.exists()


@pytest.mark.parametrize("role", ["owner", "admin", "operator", "viewer", None])
def test_who_sees_which_way(owner: User, task: Task, role: str | None) -> None:
    rules(owner, exempt_roles=["owner"], break_glass_roles=["owner", "admin"])
    person = {"owner": owner, None: account("eve")}.get(role) or member(str(role), "bob")
    client = browser(person)
    answer = client.get(ASK)
    assert answer.status_code == {"viewer": 403, None: 404}.get(role, 200)
    html = answer.content.decode()
    assert ('value="exempt"' in html) == (role == "owner")
    assert ('value="break_glass"' in html) == (role in ("owner", "admin"))
    for how in ("exempt", "break_glass"):
        sent = {"once": f"abcdefgh{how}", "how": how, "reason": "now", "sure": "1"}
        started = client.post(ASK, sent).status_code == 302
        assert started == (role == "owner" or (role == "admin" and how == "break_glass")), how
    assert Run.objects.count() == {"owner": 2, "admin": 1}.get(role or "", 0)


def test_alone_as_the_rules_let(client: Client, owner: User, task: Task) -> None:
    rules(owner, exempt_roles=["owner"])
    answer = client.post(ASK, {"once": "abcdefgh1234", "how": "exempt", "args": "x"})
    [run] = Run.objects.all()
    assert answer.headers["Location"] == f"/panel/runs/{run.pk}/"
    assert "started it alone" in client.get(answer.headers["Location"]).content.decode()
    assert "broke the glass" not in client.get("/panel/").content.decode()
    assert AloneStart.objects.get().kind == "exempt"


def test_the_glass_is_broken_with_a_reason_and_everybody_sees_it(owner: User, task: Task, time: Time) -> None:
    rules(owner, break_glass_roles=["owner"])
    client = signed_in(owner)
    other = signed_in(member("viewer", "vic"))
    time.advance(16 * 60_000)
    sent = {"once": "abcdefgh1234", "how": "break_glass", "reason": "shop <is> down", "sure": "1"}
    question = client.post(ASK, sent).content.decode()
    assert "Is it still you?" in question and not Run.objects.exists()
    kept = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', question))
    assert kept["reason"] == "shop &lt;is&gt; down"
    answer = client.post(ASK, {**sent, "confirm": "1", "confirm_password": PASSWORD})
    [run] = Run.objects.all()
    assert answer.headers["Location"] == f"/panel/runs/{run.pk}/"
    assert "broke the glass" in client.get(answer.headers["Location"]).content.decode()
    assert AuditEntry.objects.filter(action="run.break_glass").exists()
    html = other.get("/panel/").content.decode()
    assert "ann broke the glass" in html and "shop &lt;is&gt; down" in html
    time.advance(7 * 86_400_000 + 1)
    assert "broke the glass" not in signed_in(owner).get("/panel/").content.decode()


def test_two_must_approve(client: Client, owner: User, ursula: User, task: Task) -> None:
    third = member("admin", "tom")
    rules(owner, quorum=2)
    asker = browser(member("operator", "bob"))
    request = asked(asker)
    one, two = browser(ursula), browser(third)
    assert "2 more must approve" in one.get(f"/panel/approvals/{request.pk}/").content.decode()
    said = decide(one, request)
    assert "Your approval counts; 1 more must approve." in said and "1 of 2 approvals" in said
    assert "You approved it" in said and "ql-decide" not in said
    names = re.sub(r"\s+", " ", said)
    assert "These can: ann, tom" in names
    assert ApprovalRequest.objects.get(pk=request.pk).state == "pending"
    inbox = one.get(f"{P}/approvals/").content.decode()
    assert "1 of 2 approvals" in inbox and "yours too" in inbox

    def badge(client: Client) -> str:
        found = re.search(
            r'data-badge="approvals".*?data-count>(\w*)<', client.get("/panel/").content.decode(), re.DOTALL
        )
        assert found
        return found[1]

    assert (badge(one), badge(two)) == ("", "1")
    part = one.get(f"/panel/approvals/{request.pk}/", headers={"X-Part": "1"}).content.decode()
    assert 'data-into="deciding"' in part and "You approved it" in part
    again = one.post(
        f"/panel/approvals/{request.pk}/decide/",
        {"version": "1", "once": "x" * 20, "decision": "approved", "approved_reason": "tested"},
        follow=True,
    )
    assert "approval_already_voted" in again.content.decode()
    said = decide(two, request)
    assert "Approved." in said and "2 of 2 approvals" in said and "Who said what" in said
    assert ApprovalRequest.objects.get(pk=request.pk).state == "approved"


def test_one_rejection_rejects(owner: User, ursula: User, task: Task) -> None:
    rules(owner, quorum=2)
    request = asked(browser(member("operator", "bob")))
    decide(browser(owner), request)
    said = decide(browser(ursula), request, "rejected")
    assert "Rejected." in said and ApprovalRequest.objects.get(pk=request.pk).state == "rejected"


def test_who_is_not_among_the_deciders_sees_why(
    client: Client, owner: User, ursula: User, task: Task
) -> None:
    rules(owner, decider_roles=["owner"])
    a_run(owner, a_task(owner, "Other", slug="other"))
    request = asked(browser(member("operator", "bob")))
    admin = browser(ursula)
    html = admin.get(f"/panel/approvals/{request.pk}/").content.decode()
    assert "you are not among them" in html and "ql-decide" not in html and "These can:" in html
    assert "Needs approval" in client.get("/panel/").content.decode()
    assert "Nothing waits for you" not in client.get(f"{P}/approvals/").content.decode()
    refused = admin.post(
        f"/panel/approvals/{request.pk}/decide/",
        {"version": "1", "once": "x" * 20, "decision": "approved", "approved_reason": "tested"},
    )
    assert refused.status_code == 403 and ApprovalRequest.objects.get(pk=request.pk).state == "pending"


def test_who_asked_takes_it_back_and_nobody_else(client: Client, ursula: User, task: Task) -> None:
    request = asked(client)
    page = f"/panel/approvals/{request.pk}/"
    admin = browser(ursula)
    assert "withdraw" not in admin.get(page).content.decode()
    assert admin.post(f"{page}withdraw/").status_code == 403
    assert queries.find(request.pk).status == "pending"
    assert f"{page}withdraw/" in client.get(page).content.decode()
    html = client.post(f"{page}withdraw/", follow=True).content.decode()
    assert "Withdrawn" in html and "withdraw/" not in html and "Who asked took it back." in html
    assert "ql-decide" not in admin.get(page).content.decode()
    assert client.post(f"{page}withdraw/", follow=True).status_code == 200
    assert browser(account("eve")).post(f"{page}withdraw/").status_code == 404
    assert "Withdrawn" in client.get(f"{P}/approvals/?tab=own").content.decode()


def test_what_is_decided_cannot_be_taken_back(client: Client, ursula: User, task: Task) -> None:
    request = asked(client)
    decide(browser(ursula), request)
    html = client.post(f"/panel/approvals/{request.pk}/withdraw/", follow=True).content.decode()
    assert "approval_request_state_conflict" in html


@pytest.mark.parametrize(("minutes", "soon"), [(61, True), (59, False), (0, False)])
def test_the_dashboard_reminds_by_the_minutes_of_the_rules(
    owner: User, ursula: User, task: Task, minutes: int, soon: bool
) -> None:
    rules(owner, remind_before_minutes=minutes)
    a_run(owner, a_task(owner, "Other", slug="other"))
    asked(browser(member("operator", "bob")))
    html = browser(ursula).get("/panel/").content.decode()
    assert "ql-yours" in html and ("about to expire:" in html) == soon


def test_a_list_with_votes_costs_the_same_however_long_it_is(owner: User, ursula: User, task: Task) -> None:
    rules(owner, quorum=2)
    bob, one = browser(member("operator", "bob")), browser(ursula)
    decide(one, asked(bob))

    def cost() -> int:
        with CaptureQueriesContext(connection) as found:
            assert one.get(f"{P}/approvals/").status_code == 200
        return len(found)

    cost()
    few = cost()
    for number in range(12):
        decide(one, asked(bob, args=str(number)))
    assert cost() == few


def test_the_pages_of_a_task_say_that_its_schedule_asks(client: Client, owner: User, task: Task) -> None:
    a_trigger(owner, task, schedule="0 3 * * *")
    assert "then asks for an approval" in client.get(f"{P}/task/deploy/triggers/").content.decode()


def test_a_due_time_that_asked_leads_to_its_request(owner: User, task: Task, time: Time) -> None:
    trigger_rights = (grant(owner, "task.update"), grant(owner, "run.start"))
    create_trigger(*trigger_rights, task.pk, TriggerDraft(kind="interval", every_ms=60_000))
    client = signed_in(owner)
    time.advance(60_000)
    assert fire() == 1
    time.advance(500)
    html = client.get(f"{P}/task/deploy/why/").content.decode()
    assert "It needs an approval, which is about to be asked for." in html
    assert "1 time no run was started." in html
    jobs.ask({})
    [request] = ApprovalRequest.objects.all()
    page = f"/panel/approvals/{request.pk}/"
    html = client.get(f"{P}/task/deploy/why/").content.decode()
    assert "It needs an approval, which was asked for." in html and f'href="{page}"' in html
    assert f'href="{page}"' in client.get(f"{P}/skips/").content.decode()
    assert f'href="{page}"' in client.get(f"{P}/task/deploy/").content.decode()
    assert client.get(page).status_code == 200 and not Run.objects.exists()
