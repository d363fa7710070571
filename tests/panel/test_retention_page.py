"""The pages of retention: a rule is tried before it is saved, and what was removed has its bill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apps.artifacts.models import RetentionRule
from apps.artifacts.retention import history, sweep
from apps.core import clock
from apps.runs.models import RunHold
from tests.artifacts.retention import kit
from tests.artifacts.retention.kit import DAY, OPTIONS
from tests.people import member, signed_in
from tests.runs.test_folding import kit_events
from tests.tasks.kit import make

pytestmark = pytest.mark.django_db

DAY_MS = 86_400_000
PAGE = "/panel/p/default/retention/"


@pytest.fixture(autouse=True)
def _rule(tmp_path: Path, settings: Any) -> None:
    settings.LOG_ROOT = tmp_path / "logs"
    (tmp_path / "logs").mkdir(mode=0o700)
    kit.keep(settings, keep_ms=7 * DAY_MS, pressure_ms=DAY_MS, keep_least=0)


def test_a_rule_is_tried_and_then_saved() -> None:
    made = kit.many(3, clock.now() - 2 * DAY, content=b"x" * 2048)
    browser = signed_in(member("owner"))
    empty = browser.get(PAGE).content.decode()
    assert "Nothing was removed yet." in empty and "6.0 KB" in empty
    tried = browser.post(
        PAGE, {"version": "0", "do": "try", "days": "1", "least": "", "most": "", "megabytes": ""}
    )
    text = tried.content.decode()
    assert "3 runs would lose their logs: 3 files, 6.0 KB." in text and 'value="1"' in text
    assert not RetentionRule.objects.exists() and kit.on_disk(made) == made
    saved = browser.post(
        PAGE, {"version": "0", "do": "save", "days": "1", "least": "", "most": "", "megabytes": "0.5"}
    )
    assert saved.status_code == 302
    rule = RetentionRule.objects.get()
    assert (rule.keep_ms, rule.keep_bytes, rule.keep_most) == (DAY_MS, 524_288, None)
    sweep.cycle(OPTIONS)
    assert "3 logs" in browser.get(PAGE).content.decode()


def test_wrong_numbers_are_said_at_their_fields_and_stay_typed() -> None:
    browser = signed_in(member("owner"))
    for field, text in (
        ("days", "x"),
        ("days", "400"),
        ("most", "0"),
        ("megabytes", "0.01"),
        ("least", "2000"),
    ):
        values = {
            "version": "0",
            "do": "save",
            "days": "",
            "least": "",
            "most": "",
            "megabytes": "",
            field: text,
        }
        answer = browser.post(PAGE, values)
        assert answer.status_code == 400
        page = answer.content.decode()
        assert f'id="e-{field}"' in page and f'value="{text}"' in page
    assert browser.post(PAGE, {"version": "x", "do": "save"}).status_code == 400
    assert not RetentionRule.objects.exists()


def test_who_reads_and_who_changes() -> None:
    task = make()
    for role, form in (("owner", True), ("admin", False), ("viewer", False)):
        browser = signed_in(member(role))
        for page in (PAGE, f"/panel/p/default/task/{task.slug}/retention/"):
            answer = browser.get(page)
            assert (
                answer.status_code == 200 and ('<form method="post" class' in answer.content.decode()) is form
            )
            assert browser.post(page, {"version": "0", "do": "try"}).status_code == (200 if form else 403)


def test_a_task_of_its_own() -> None:
    task = make(name="Nightly copy")
    kit.many(2, clock.now(), task=task)
    browser = signed_in(member("owner"))
    page = f"/panel/p/default/task/{task.slug}/retention/"
    values = {"version": "0", "do": "save", "days": "", "least": "", "most": "1", "megabytes": ""}
    assert browser.post(page, values).status_code == 302
    assert RetentionRule.objects.get().task_id == task.pk
    assert "Nightly copy" in browser.get(PAGE).content.decode()
    assert browser.get("/panel/p/default/task/none/retention/").status_code == 404


def test_a_run_is_kept_and_let_go() -> None:
    of = kit.ended(clock.now() - 8 * DAY, status="failed")
    browser = signed_in(member("operator"))
    page = f"/panel/runs/{of.run_id}/"
    assert "Keep this run" in browser.get(page).content.decode()
    assert browser.post(f"{page}pin/").status_code == 302
    assert RunHold.objects.count() == 1
    shown = browser.get(page).content.decode()
    assert "Do not keep any longer" in shown and "no rule removes this run" in shown
    browser.post(f"{page}unpin/")
    assert not RunHold.objects.exists()
    assert signed_in(member("viewer")).post(f"{page}pin/").status_code == 403


def test_the_page_of_a_folded_run(time: Any) -> None:
    of = kit.ended(clock.now(), status="failed")
    kit_events([of.run])
    kit.listed(of)
    time.advance(100 * DAY_MS)
    sweep.cycle(OPTIONS)
    assert history.fold()[1] == 1
    browser = signed_in(member("operator"))
    page = browser.get(f"/panel/runs/{of.run_id}/")
    text = page.content.decode()
    assert page.status_code == 200 and "folded into this summary" in text
    assert "The log was removed by the retention rule." in text and "Attempt 1" in text
    assert "Keep this run" not in text
    assert browser.get("/panel/p/default/runs/").status_code == 200


def test_the_page_asks_a_fixed_number_of_queries(django_assert_max_num_queries: Any) -> None:
    for _ in range(6):
        kit.many(1, clock.now() - 8 * DAY)
    sweep.cycle(OPTIONS)
    browser = signed_in(member("owner"))
    browser.get(PAGE)
    with django_assert_max_num_queries(24):
        browser.get(PAGE)
