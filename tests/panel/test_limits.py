"""What people see of limits: the part of the form, the page of a script, the story of a run that met one."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import translation

from apps.panel import timeline
from apps.tasks import queries
from apps.tasks.models import Task
from tests.panel.test_tasks import NEW, form

pytestmark = pytest.mark.django_db
SENT = {
    "limit_memory": "64",
    "limit_cpu": "50",
    "limit_time": "5",
    "limit_processes": "20",
    "limit_files": "64",
}


def test_the_form_keeps_limits_and_shows_them_again(client: Client) -> None:
    client.post(NEW, form(**SENT))
    task = Task.objects.get()
    assert queries.view(task).document()["limits"] == {
        "cpu_seconds": 5, "cpu_percent": 50, "memory_bytes": 64 << 20, "processes": 20, "open_files": 64,
    }  # fmt: skip
    html = client.get(f"/panel/p/default/task/{task.slug}/edit/").content.decode()
    for name, value in SENT.items():
        assert f'name="{name}" value="{value}"' in html
    assert "Memory, in MB: 64" in client.get(f"/panel/p/default/task/{task.slug}/script/").content.decode()
    client.post(f"/panel/p/default/task/{task.slug}/edit/", form(version="1", slug=task.slug))
    assert set(queries.view(Task.objects.get()).document()["limits"].values()) == {None}


@pytest.mark.parametrize(("name", "text"), [("limit_files", "many"), ("limit_memory", "1")])
def test_a_limit_that_cannot_be_is_said_at_its_field(client: Client, name: str, text: str) -> None:
    html = client.post(NEW, form(**{name: text})).content.decode()
    assert not Task.objects.exists()
    assert f'id="f-{name}"' in html and 'aria-invalid="true"' in html


def test_the_limit_that_was_met_is_told() -> None:
    assert timeline.limit_met({"limit": "memory_bytes"}) == ["limit met: Memory, in MB"]
    assert timeline.limit_met({}) == timeline.limit_met({"limit": "<b>"}) == []
    with translation.override("zh-hans"):
        assert "内存" in timeline.limit_met({"limit": "memory_bytes"})[0]
