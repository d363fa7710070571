"""By whom or what a run was stopped, said at the head of its page."""

from __future__ import annotations

import pytest

from apps.panel.stop_words import RULES
from apps.projects.models import Project
from apps.runs.models import Run
from apps.runs.services import request_cancel
from apps.triggers import services as triggers
from tests.panel.kit import a_run, a_task, browser
from tests.people import grant, member

pytestmark = pytest.mark.django_db


def said(run: Run, *, language: str = "en") -> str:
    html = browser(member("viewer", f"vic-{language}"), language=language).get(f"/panel/runs/{run.pk}/")
    return html.content.decode()


def test_a_person() -> None:
    ann = member("owner", "ann")
    run = a_run(ann, a_task(ann))
    request_cancel(grant(ann, "run.stop"), run.pk)
    assert "Stopped by ann before it began." in said(run)
    assert "由 ann 在开始前停止" in said(run, language="zh-hans")


@pytest.mark.parametrize("how", ["disabled", "archived", "emptied", "replaced", "project"])
def test_a_rule(how: str) -> None:
    ann = member("owner", "ann")
    task = a_task(ann, concurrency="replace") if how == "replaced" else a_task(ann)
    run = a_run(ann, task)
    if how == "disabled":
        triggers.set_task_enabled(grant(ann, "task.update"), task.pk, task.version, False)
    elif how == "archived":
        triggers.archive_task(grant(ann, "task.delete"), task.pk, task.version)
    elif how == "emptied":
        triggers.empty_queue(grant(ann, "run.stop"), task.pk)
    elif how == "project":
        triggers.archive_project(grant(ann, "project.manage"), Project.objects.get(pk="default").version)
    else:
        a_run(ann, task)
    run.refresh_from_db()
    assert run.status == "cancelled"
    html = said(run)
    told = [words for words in RULES.values() if f"Stopped before it began: {words}." in html]
    assert len(told) == 1, html[html.find("Stopped") :][:200]
