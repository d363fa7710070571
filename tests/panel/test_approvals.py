"""The approvals inbox: what waits, what would happen word for word, who decides, what became of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.access.models import User
from apps.access.services import create_application
from apps.approvals import jobs
from apps.approvals.models import ApprovedActionExecution, ApprovedActionRecoveryAuthorization
from apps.approvals.services import manual
from apps.audit.models import AuditEntry
from apps.identity.principals import Assurance, PolicySubject
from apps.runs.models import Run
from apps.tasks.models import Task
from apps.tasks.services import update_task
from tests.approvals import action_kit, kit
from tests.approvals.kit import ready
from tests.conftest import Time
from tests.panel.kit import a_run, a_task, browser
from tests.people import PASSWORD, ROOT, give, grant, member, project, signed_in

pytestmark = pytest.mark.django_db
__all__ = ["ready"]

INBOX = "/panel/p/default/approvals/"
PAGE = "/panel/approvals/r-1/"


@pytest.fixture
def bot() -> PolicySubject:
    made = create_application("agent", "release-bot", actor=ROOT, origin="tests")
    found = PolicySubject("agent", made.subject_id)
    give(found, "operator")
    return found


@pytest.fixture
def task(owner: User) -> Task:
    return a_task(owner, "Deploy shop", shell="echo one\necho two", slug="deploy")


def form(client: Client, decision: str = "approved", page: str = PAGE, **changed: str) -> dict[str, str]:
    """What the form on the page sends for one of its buttons."""
    html = client.get(page).content.decode()
    once = re.search(
        r'class="ql-decide".*?name="version" value="(\d)".*?name="once" value="(\w+)"', html, re.DOTALL
    )
    assert once, html
    return {
        "version": once[1], "once": once[2], "decision": decision, "approved_reason": "tested",
        "rejected_reason": "not_now", **changed,
    }  # fmt: skip


def decide(client: Client, decision: str = "approved", **changed: str) -> Any:
    return client.post(f"{PAGE}decide/", form(client, decision, **changed), follow=True)


def carry_out() -> None:
    jobs.consume({})
    jobs.cycle.cache_clear()
    jobs.execute({})


def test_the_inbox_lists_what_waits_soonest_first(client: Client, bot: PolicySubject, task: Task) -> None:
    for number, life in enumerate((3_600_000, 600_000, 7_200_000)):
        kit.filed(bot, task, f"r-{number}", args=[str(number)], expires_in_ms=life)
    html = client.get(INBOX).content.decode()
    assert re.findall(r'data-row="(r-\d)"', html) == ["r-1", "r-0", "r-2"]
    assert "release-bot" in html and "Deploy shop" in html and "data-left=" in html
    badge = re.search(r'data-badge="approvals".*?data-count>(\w*)<', html, re.DOTALL)
    assert badge and badge[1] == "3"
    kit.decide(member("admin", "ursula"), kit.verdict("r-1", decision="rejected"))
    assert re.findall(r'data-row="(r-\d)"', client.get(INBOX).content.decode()) == ["r-0", "r-2"]
    assert re.findall(r'data-row="(r-\d)"', client.get(f"{INBOX}?tab=rejected").content.decode()) == ["r-1"]
    assert client.get(f"{INBOX}?tab=none").status_code == 404


def test_a_list_costs_the_same_however_long_it_is(client: Client, bot: PolicySubject, task: Task) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as found:
            assert client.get(f"{INBOX}?tab=all").status_code == 200
        return len(found)

    kit.filed(bot, task, "r-0")
    client.get(INBOX)
    one = cost()
    for number in range(1, 60):
        kit.filed(bot, task, f"r-{number}", args=[str(number)])
    assert cost() == one
    html = client.get(INBOX).content.decode()
    assert html.count("data-row=") == 50
    following = re.search(r'rel="next" href="([^"]+)"', html)
    assert following
    rest = client.get(INBOX + following[1].replace("&amp;", "&")).content.decode()
    assert rest.count("data-row=") == 10


def test_nobody_asks_so_nothing_is_offered(client: Client, owner: User, bot: PolicySubject) -> None:
    assert "/approvals/" in client.get("/panel/").content.decode()
    give(bot, None, version=2)
    assert "/approvals/" not in client.get("/panel/").content.decode()


def test_the_way_in_leads_to_where_something_waits(
    client: Client, owner: User, bot: PolicySubject, task: Task
) -> None:
    other = project(owner)
    assert client.get("/panel/approvals/").headers["Location"] == INBOX
    give(bot, "operator", other)
    kit.requested(bot, "r-9", project_id=other)
    assert client.get("/panel/approvals/").headers["Location"] == "/panel/p/second/approvals/"
    assert "Second (1)" in client.get(INBOX).content.decode()


def test_the_page_shows_what_exactly_would_happen(
    client: Client, owner: User, bot: PolicySubject, task: Task
) -> None:
    kit.filed(bot, task, input={"tag": "v2.4", "odd": "a\u202eb"}, args=["now", "--fast"], risk="critical")
    html = client.get(PAGE).content.decode()
    for told in (
        "Deploy shop",
        "revision 1",
        "v2.4",
        "--fast",
        "release-bot",
        "critical",
        "echo two",
        "run.create",
    ):
        assert told in html, told
    assert "‹U+202E›" in html and "\u202e" not in html
    assert "Nothing of this task was approved before" in html


def test_it_shows_what_changed_since_the_last_approval(
    client: Client, owner: User, bot: PolicySubject, task: Task
) -> None:
    kit.filed(bot, task, "r-0")
    kit.decide(owner, kit.verdict("r-0"))
    kit.filed(bot, task)
    assert "What runs is what was approved last." in client.get(PAGE).content.decode()
    task.refresh_from_db()
    update_task(grant(owner, "task.update"), task.pk, task.version, {"shell": "echo one\necho three"})
    kit.filed(bot, task, "r-2")
    html = client.get("/panel/approvals/r-2/").content.decode()
    assert "<del>echo two</del>" in html and "<ins>echo three</ins>" in html
    assert "Changes since revision 1" in html
    void = client.get(PAGE).content.decode()
    assert "task_revision_changed" in void and "ql-decide" not in void


def test_input_is_for_who_decides(owner: User, bot: PolicySubject, task: Task) -> None:
    kit.filed(bot, task, input={"tag": "v2.4"})
    operator = browser(member("operator", "victor"))
    html = operator.get(PAGE).content.decode()
    assert "v2.4" not in html and "Your role here cannot decide." in html and "ann" in html
    assert "ql-decide" not in html
    assert operator.post(f"{PAGE}decide/", {"decision": "approved"}).status_code == 403
    stranger = member("owner", "olga", project_id=project(owner))
    for address in (PAGE, f"{PAGE}recover/"):
        assert browser(stranger).get(address).status_code == 404
    assert browser(stranger).post(f"{PAGE}decide/", {"decision": "approved"}).status_code == 404


def test_from_the_button_to_the_receipt(client: Client, owner: User, bot: PolicySubject, task: Task) -> None:
    kit.filed(bot, task, input={"tag": "v2.4"})
    html = decide(client).content.decode()
    row = kit.fresh()
    assert (row.state, row.decision_reason_code, row.decided_by_id) == (
        "approved",
        "tested",
        owner.subject_id,
    )
    assert "approved by ann: Tested" in html and "about to be handed over" in html
    assert AuditEntry.objects.get(action="approval.approved").origin == "panel"
    assert f'href="{PAGE}"' in client.get("/panel/p/default/audit/").content.decode()
    carry_out()
    run = Run.objects.get()
    html = client.get(PAGE).content.decode()
    assert f"/panel/runs/{run.pk}/" in html and "Carried out: the run is queued." in html
    assert kit.fresh().state == "consumed"
    assert "Receipt" in html and 'data-state-of-part="0"' in html
    assert PAGE in client.get(f"/panel/runs/{run.pk}/").content.decode()
    assert re.findall(r'data-row="(r-\d)"', client.get(f"{INBOX}?tab=done").content.decode()) == ["r-1"]


def test_rejecting_says_so_and_nothing_runs(client: Client, bot: PolicySubject, task: Task) -> None:
    kit.filed(bot, task)
    assert "rejected by ann: Not now" in decide(client, "rejected").content.decode()
    carry_out()
    assert kit.fresh().state == "rejected" and not Run.objects.exists()


def test_pressed_twice_it_is_one_decision_and_the_other_button_comes_too_late(
    client: Client, bot: PolicySubject, task: Task
) -> None:
    kit.filed(bot, task)
    sent = form(client)
    assert client.post(f"{PAGE}decide/", sent).status_code == 302
    again = client.post(f"{PAGE}decide/", sent, follow=True).content.decode()
    assert "approval_mutation_conflict" not in again and "Approved." in again
    late = client.post(f"{PAGE}decide/", {**sent, "decision": "rejected"}, follow=True).content.decode()
    assert "approval_request_version_conflict" in late
    assert kit.fresh().state == "approved"


@pytest.mark.parametrize(
    "sent", [{"decision": "maybe"}, {"version": "x"}, {"once": "\u00e9"}, {"approved_reason": ""}]
)
def test_what_the_form_does_not_send_decides_nothing(
    client: Client, bot: PolicySubject, task: Task, sent: dict[str, str]
) -> None:
    kit.filed(bot, task)
    assert client.post(f"{PAGE}decide/", {**form(client), **sent}).status_code == 302
    assert kit.fresh().state == "pending"


def test_an_old_sign_in_is_asked_first_and_then_goes_on(
    owner: User, bot: PolicySubject, task: Task, time: Time
) -> None:
    client = signed_in(owner)
    kit.filed(bot, task)
    time.advance(16 * 60_000)
    sent = form(client)
    asked = client.post(f"{PAGE}decide/", sent)
    html = asked.content.decode()
    assert asked.status_code == 403 and "What you decided counts as soon as" in html
    assert kit.fresh().state == "pending"
    kept = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', html))
    done = client.post(f"{PAGE}decide/", {**kept, "confirm": "1", "confirm_password": PASSWORD})
    assert done.status_code == 302 and kit.fresh().state == "approved"


def test_expired_says_so_and_cannot_be_decided(
    owner: User, bot: PolicySubject, task: Task, time: Time
) -> None:
    client = signed_in(owner)
    kit.filed(bot, task, expires_in_ms=60_000)
    sent = form(client)
    time.advance(60_000)
    html = client.get(PAGE).content.decode()
    assert "Expired" in html and "ql-decide" not in html
    late = client.post(f"{PAGE}decide/", sent, follow=True).content.decode()
    assert "approval_request_expired" in late and kit.fresh().state == "pending"
    part = client.get(PAGE, headers={"X-Part": "1"}).content.decode()
    assert 'data-into="deciding"' in part


def test_the_task_and_the_dashboard_point_at_what_waits(
    client: Client, owner: User, bot: PolicySubject, task: Task
) -> None:
    a_run(owner, task)
    kit.filed(bot, task)
    assert PAGE in client.get(f"/panel/p/default/task/{task.slug}/").content.decode()
    dashboard = client.get("/panel/").content.decode()
    assert "ql-yours" in dashboard and INBOX in dashboard and "the first:" in dashboard


def stuck(owner: User, bot: PolicySubject, task: Task, time: Time) -> None:
    """An action whose process died behind the barrier."""
    manual.recoveries.clear()
    kit.filed(bot, task)
    kit.decide(owner)
    jobs.consume({})
    action_kit.started(kit.dispatches()[0])
    time.advance(action_kit.LEASE_MS)


def answer(client: Client, **changed: str) -> Any:
    html = client.get(f"{PAGE}recover/").content.decode()
    sent = dict(
        re.findall(r'type="hidden" name="(once|execution_version|recovery_version)" value="(\w+)"', html)
    )
    given = {**sent, "decision": "confirm_failed", "reason": "looked_outside", **changed}
    return client.post(f"{PAGE}recover/", given, follow=True)


def test_a_strong_sign_in_closes_by_hand(owner: User, bot: PolicySubject, task: Task, time: Time) -> None:
    stuck(owner, bot, task, time)
    client = signed_in(owner, assurance=Assurance.MULTI_FACTOR)
    assert f"{PAGE}recover/" in client.get(f"{INBOX}?tab=recovery").content.decode()
    html = client.get(PAGE).content.decode()
    assert "Its process died after the start." in html and f"{PAGE}recover/" in html
    assert "second factor of the last five minutes" not in client.get(f"{PAGE}recover/").content.decode()
    html = answer(client).content.decode()
    assert "Closed." in html and "It did not happen." in html and "confirm_failed" in html and "ann" in html
    fact = ApprovedActionRecoveryAuthorization.objects.get()
    assert (fact.resolved_by_id, fact.assurance) == (owner.subject_id, "multi_factor")
    assert client.get(f"{PAGE}recover/").headers["Location"] == PAGE


def test_a_weak_one_closes_nothing_and_says_what_is_missing(
    owner: User, bot: PolicySubject, task: Task, time: Time
) -> None:
    stuck(owner, bot, task, time)
    weak = signed_in(owner)
    assert "second factor of the last five minutes" in weak.get(f"{PAGE}recover/").content.decode()
    html = answer(weak).content.decode()
    assert "approved_action_recovery_strong_authentication_required" in html
    assert ApprovedActionExecution.objects.get().status == "executing"


def test_an_old_strong_one_is_proved_again_within_five_minutes(
    owner: User, bot: PolicySubject, task: Task, time: Time
) -> None:
    stuck(owner, bot, task, time)
    client = signed_in(owner, assurance=Assurance.MULTI_FACTOR)
    time.advance(301_000)
    html = answer(client).content.decode()
    assert "Is it still you?" in html and ApprovedActionExecution.objects.get().status == "executing"
    kept = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', html))
    client.post(f"{PAGE}recover/", {**kept, "confirm": "1", "confirm_password": PASSWORD})
    assert ApprovedActionExecution.objects.get().status == "failed"


def test_only_who_may_recover_sees_the_queue(owner: User, bot: PolicySubject, task: Task, time: Time) -> None:
    stuck(owner, bot, task, time)
    operator = signed_in(member("operator", "victor"), assurance=Assurance.MULTI_FACTOR)
    assert operator.get(f"{INBOX}?tab=recovery").status_code == 404
    assert operator.get(f"{PAGE}recover/").status_code == 403
    assert operator.post(f"{PAGE}recover/", {"decision": "confirm_failed"}).status_code == 403
    assert f"{PAGE}recover/" not in operator.get(PAGE).content.decode()
