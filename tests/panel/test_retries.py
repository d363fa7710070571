"""What people see of retries: the part of the form, the page of a run that waits, why something did not run yet."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import translation

from apps.access.models import User
from apps.core import clock
from apps.dispatch.queries import waiting_for
from apps.panel import retry_part, words
from apps.runs import queries
from apps.runs.services import retrying
from apps.tasks.models import Task
from apps.tasks.retry import RetryRule
from apps.triggers.due_words import Verdict, explain
from tests.conftest import Time
from tests.dispatch.test_retry_on_failure import fail
from tests.panel.kit import a_run, a_task
from tests.panel.test_tasks import NEW, form
from tests.runs import kit
from tests.spec.test_runs_34_36_retries import lose

pytestmark = pytest.mark.django_db
RULE = {
    "max_attempts": 4, "retry_on_lost": True, "safety": "idempotent", "backoff_base_ms": 1_500,
    "backoff_max_ms": 60_000, "retry_on_failure": True, "retry_exit_codes": [1, 75],
}  # fmt: skip
SENT = {
    "retry_attempts": "4", "retry_failure": "1", "retry_codes": "75, 1", "retry_lost": "1",
    "retry_safety": "idempotent", "retry_wait": "1.5", "retry_longest": "60",
}  # fmt: skip


def test_the_form_keeps_a_rule_and_shows_it_again(client: Client) -> None:
    client.post(NEW, form(**SENT))
    task = Task.objects.get()
    assert task.retry == RULE
    html = client.get(f"/panel/p/default/task/{task.slug}/edit/").content.decode()
    assert "up to 4 attempts" in html and 'value="1, 75"' in html and 'value="1.5"' in html
    assert html.count('name="retry_failure" value="1" checked') == 1


def test_a_form_that_says_nothing_of_it_means_never(client: Client) -> None:
    client.post(NEW, form())
    assert Task.objects.get().retry is None


@pytest.mark.parametrize(
    ("sent", "place"),
    [
        ({"retry_attempts": "many"}, "retry_attempts"),
        ({"retry_attempts": "17"}, "retry_attempts"),
        ({"retry_codes": "x"}, "retry_codes"),
        ({"retry_wait": "-1"}, "retry_attempts"),
        ({"retry_attempts": "2", "retry_lost": "1"}, "retry_attempts"),
    ],
)
def test_faults_stand_at_their_field(client: Client, sent: dict[str, str], place: str) -> None:
    html = client.post(NEW, form(**sent)).content.decode()
    assert f'href="#f-{place}"' in html and not Task.objects.exists()


def test_the_page_of_a_run_that_waits_says_until_when(time: Time, owner: User, client: Client) -> None:
    task = a_task(owner, retry={**RULE, "retry_exit_codes": []})
    run = a_run(owner, task)
    fail(run)
    found = kit.fresh(run)
    assert waiting_for([found]) == {run.pk: "retry"}
    at = queries.next_attempts([found])[run.pk]
    assert clock.to_ms(at) == time.ms + 1_500
    html = client.get(f"/panel/runs/{run.pk}/").content.decode()
    assert f"Waits to be tried again, until {words.exact(at)}." in html
    listed = client.get("/panel/p/default/runs/").content.decode()
    assert "Waits to be tried again." in listed
    said, action = explain(Verdict("waits", "retry_wait"), waiting_for="retry", again_at=at)
    assert (said, action) == (f"It waits to be tried again, until {words.exact(at)}.", "open_run")


def test_an_end_after_several_attempts_says_so(owner: User, client: Client) -> None:
    run = a_run(owner, a_task(owner, retry={"max_attempts": 2, "retry_on_failure": True}))
    for _ in range(2):
        fail(run, 9)
    html = client.get(f"/panel/runs/{run.pk}/").content.decode()
    assert "Exit code 9 in the last of its attempts" in html and "RUN_FAILURE_RETRY_EXHAUSTED" in html


def test_a_loss_that_is_not_tried_again_is_told_as_a_loss(owner: User, client: Client) -> None:
    run = a_run(owner, a_task(owner))
    lose(run)
    retrying.reconcile(run.pk)
    html = client.get(f"/panel/runs/{run.pk}/").content.decode()
    assert "The worker was lost; how the run ended is not known." in html


def test_every_part_of_a_rule_has_its_place_in_the_form() -> None:
    errors: dict[str, Any] = {}
    with translation.override("zh-hans"):
        shown = retry_part.texts(RULE)
    assert retry_part.read(shown, errors) == RULE and not errors
    assert retry_part.read(retry_part.texts(None), errors) == RetryRule().document()
