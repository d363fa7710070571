"""“Use this again” makes a new revision of an old one; what changes an example makes it somebody's own."""

from __future__ import annotations

import pytest

from apps.audit.models import AuditEntry
from apps.core.errors import Forbidden, NotFound, VersionConflict
from apps.tasks import queries
from apps.tasks.models import Task
from apps.tasks.services import TaskDraft, create_task, reuse_revision, update_task
from tests.people import grant, member

pytestmark = pytest.mark.django_db


def test_an_old_revision_is_used_again_byte_for_byte() -> None:
    owner = member("owner")
    given = grant(owner, "task.update")
    task = create_task(
        grant(owner, "task.create"),
        TaskDraft(name="x", shell="a\r\n\tb  ", env={"A": " 1\n"}, timeout_ms=5_000),
    )
    task = update_task(given, task.pk, 1, {"command": ["true"], "env": {}, "timeout_ms": None, "priority": 3})
    again = reuse_revision(given, task.pk, task.version, "1")
    view = queries.view(Task.objects.select_related("project", "revision").get(pk=task.pk))
    assert (view.revision.task_revision, again.version, again.priority) == ("3", 3, 3)
    document = view.document()
    assert (document["shell"], document["env"], document["timeout_ms"]) == (
        "a\r\n\tb  ",
        {"A": " 1\n"},
        5_000,
    )
    newest = AuditEntry.objects.order_by("-id").first()
    assert newest is not None and newest.action == "task.updated"
    # What it executes already changes nothing.
    assert reuse_revision(given, task.pk, 3, "1").version == 3
    assert queries.revision(again, "1").revision.digest


def test_what_may_not_be_used_again() -> None:
    owner = member("owner")
    task = create_task(grant(owner, "task.create"), TaskDraft(name="x", shell="a"))
    given = grant(owner, "task.update")
    with pytest.raises(NotFound):
        reuse_revision(given, task.pk, 1, "2")
    with pytest.raises(VersionConflict):
        reuse_revision(given, task.pk, 2, "1")
    with pytest.raises(Forbidden):
        reuse_revision(grant(owner, "task.read"), task.pk, 1, "1")


def test_an_example_stays_one_until_somebody_changes_it() -> None:
    owner = member("owner")
    task = create_task(grant(owner, "task.create"), TaskDraft(name="x", shell="a"), example="hello")
    given = grant(owner, "task.update")
    task = update_task(given, task.pk, 1, {"pinned": True})
    assert task.example == "hello"
    task = update_task(given, task.pk, 2, {"name": "mine"})
    assert task.example is None
