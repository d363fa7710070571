from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core import clock, ids
from apps.core.errors import NotFound
from apps.core.pages import CursorMismatch
from apps.projects.models import Project
from apps.tasks import queries
from apps.tasks.models import Task
from apps.tasks.queries import Filters
from tests.tasks.kit import change, make

pytestmark = pytest.mark.django_db


def _project(project_id: str) -> None:
    now = clock.now()
    Project.objects.create(id=project_id, name=project_id, slug=project_id, created_at=now, updated_at=now)


def test_find_takes_the_id_first_then_the_short_name() -> None:
    task = make(slug="one")
    assert queries.find("default", "one") == queries.find("default", str(task.pk)) == task
    _project("other")
    for project_id, reference in (
        ("other", "one"), ("other", str(task.pk)), ("default", "two"), ("default", str(ids.uuid7())),
        ("default", str(task.pk).upper()), ("default", ""), ("default", "x" * 65), ("default", "a\0"),
    ):  # fmt: skip
        with pytest.raises(NotFound):
            queries.find(project_id, reference)


def test_an_archived_task_is_found_by_its_id_only() -> None:
    task = make(slug="one")
    Task.objects.update(archived_at=clock.now())
    with pytest.raises(NotFound):
        queries.find("default", "one")
    assert queries.find("default", str(task.pk)) == task
    assert queries.find("default", make(slug="one").slug).pk != task.pk


def test_pages_are_newest_first_and_whole(time: Any) -> None:
    made = []
    for index in range(7):
        made.append(make(name=f"t{index}").pk)
        time.advance(index % 2)
    _project("other")
    make("other")
    seen: list[Any] = []
    cursor = None
    while True:
        page = queries.page("default", Filters(), limit=3, cursor=cursor)
        seen += [task.pk for task in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == made[::-1]
    first = queries.page("default", Filters(), limit=3)
    with pytest.raises(CursorMismatch):
        queries.page("default", Filters(enabled=True), limit=3, cursor=first.next_cursor)


def test_filters() -> None:
    make(name="Backup", labels=["nightly", '夜间"'])
    make(name="Report", labels=["night"], enabled=False)
    make(name="Old")
    Task.objects.filter(name="Old").update(archived_at=clock.now())

    def names(**filters: Any) -> list[str]:
        return [task.name for task in queries.page("default", Filters(**filters)).items]

    assert names() == ["Report", "Backup"]
    assert names(archived=True) == ["Old"]
    assert names(enabled=False) == ["Report"]
    assert names(search="BACK") == ["Backup"]
    assert names(search="repo", enabled=True) == []
    assert names(label="nightly") == names(label='夜间"') == ["Backup"]
    assert names(label="night") == ["Report"]
    assert names(label="' OR 1=1") == []


def test_a_list_costs_the_same_for_one_row_and_for_fifty() -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as found:
            page = queries.page("default", Filters())
            assert [view.document() for view in queries.views(page.items)]
        return len(found)

    make(env={"A": "0"})
    one = cost()
    for index in range(49):
        make(env={"A": str(index)})
    assert cost() == one == 3  # the page, its project, its environments


def test_revisions_cost_the_same_for_one_and_for_many() -> None:
    task = make()

    def cost() -> int:
        with CaptureQueriesContext(connection) as found:
            assert [view.document() for view in queries.revision_page(task).items]
        return len(found)

    one = cost()
    for index in range(9):
        task = change(task, env={"A": str(index)})
    assert cost() == one == 2
    page = queries.revision_page(task, limit=4)
    assert [view.document()["revision"] for view in page.items] == ["10", "9", "8", "7"]
    rest = queries.revision_page(task, limit=4, cursor=page.next_cursor)
    assert [view.document()["revision"] for view in rest.items] == ["6", "5", "4", "3"]


def test_one_revision() -> None:
    task = change(make(shell="a", env={"A": "1"}), shell="b")
    first = queries.revision(task, "1").document()
    assert (first["shell"], first["env"], first["created_by"]) == (
        "a",
        {"A": "1"},
        {"type": "system", "id": "tests"},
    )
    for reference in ("3", "", "x" * 129, "1\n"):
        with pytest.raises(NotFound):
            queries.revision(task, reference)
