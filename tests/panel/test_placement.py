"""What a task needs of a worker, in the form, on its page and on the page of a run that nobody can take."""

from __future__ import annotations

import pytest
from django.test import Client

from apps.access.models import User
from apps.tasks import placement
from apps.tasks.models import Task
from tests.panel.test_tasks import form
from tests.runs import kit

pytestmark = pytest.mark.django_db
P = "/panel/p/default"


def test_the_form_says_which_labels_a_worker_must_have(owner: User, client: Client) -> None:
    client.post(f"{P}/tasks/new/", form(slug="far", requires=" gpu = a100，zone=eu, ssd "))
    task = Task.objects.get(slug="far")
    assert placement.labels_of(task.revision.requires) == {"gpu": "a100", "zone": "eu", "ssd": ""}
    shown = "gpu=a100, ssd, zone=eu"
    assert f'value="{shown}"' in client.get(f"{P}/task/far/edit/").content.decode()
    assert f"<code>{shown}</code>" in client.get(f"{P}/task/far/script/").content.decode()
    client.post(f"{P}/task/far/edit/", form(slug="far", version="1", requires=shown))
    task.refresh_from_db()
    assert task.version == 1, "the same text changes nothing"
    client.post(f"{P}/task/far/edit/", form(slug="far", version="1", requires=""))
    task.refresh_from_db()
    assert task.revision.requires == ""


@pytest.mark.parametrize(
    ("text", "said"), [("GPU=x", "lower-case letters"), ("a=1,a=2", "stands there twice")]
)
def test_what_is_no_label_is_said_at_its_field(client: Client, owner: User, text: str, said: str) -> None:
    html = client.post(f"{P}/tasks/new/", form(requires=text)).content.decode()
    assert said in html and 'href="#f-requires"' in html
    assert not Task.objects.exists()


def test_a_run_says_which_labels_nobody_has(client: Client, owner: User) -> None:
    kit.worker()
    run = kit.run_of(kit.task(requires={"labels": {"gpu": "a100"}}))
    html = client.get(f"/panel/runs/{run.pk}/").content.decode()
    assert "no worker has the labels gpu=a100" in html
