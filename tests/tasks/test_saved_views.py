"""A person's saved views of the task list."""

from __future__ import annotations

import pytest

from apps.core.errors import Forbidden, InvalidInput, NotFound
from apps.tasks import saved_views
from apps.tasks.models import SavedView
from apps.tasks.saved_views import ViewDraft, ViewNameTaken
from tests.people import grant, member

pytestmark = pytest.mark.django_db


def test_a_view_is_kept_changed_and_removed() -> None:
    viewer = member("viewer")
    given = grant(viewer, "task.read")
    first = saved_views.save_view(given, ViewDraft(name=" nightly ", search="label:nightly", order="-last"))
    second = saved_views.save_view(given, ViewDraft(name="夜间", compact=True, hidden=["history", "no such"]))
    assert [view.name for view in saved_views.of_person("default", viewer.subject_id)] == ["nightly", "夜间"]
    assert (second.position, second.compact, second.hidden) == (2, True, ["history"])
    saved_views.save_view(given, ViewDraft(name="other", search="x"), first.pk)
    assert SavedView.objects.get(pk=first.pk).search == "x"
    with pytest.raises(ViewNameTaken):
        saved_views.save_view(given, ViewDraft(name="夜间"))
    assert saved_views.remove_view(given, first.pk) == "other"
    assert [view.name for view in saved_views.of_person("default", viewer.subject_id)] == ["夜间"]


def test_nobody_sees_or_changes_the_views_of_another() -> None:
    mine = saved_views.save_view(grant(member("owner", "ann"), "task.read"), ViewDraft(name="mine"))
    other = member("owner", "bob")
    given = grant(other, "task.read")
    assert saved_views.of_person("default", other.subject_id) == []
    for attempt in (
        lambda: saved_views.save_view(given, ViewDraft(name="x"), mine.pk),
        lambda: saved_views.remove_view(given, mine.pk),
    ):
        with pytest.raises(NotFound):
            attempt()
    assert saved_views.save_view(given, ViewDraft(name="mine")).position == 1
    with pytest.raises(Forbidden):
        saved_views.save_view(grant(other, "run.read"), ViewDraft(name="x"))


@pytest.mark.parametrize(
    "wrong", [{"name": " "}, {"name": "x" * 65}, {"search": "x" * 201}, {"search": "\0"}, {"order": "random"}]
)
def test_what_is_no_view(wrong: dict[str, str]) -> None:
    given = grant(member("viewer"), "task.read")
    with pytest.raises(InvalidInput):
        saved_views.save_view(given, ViewDraft(**({"name": "fine"} | wrong)))
    assert not SavedView.objects.exists()


def test_thirty_views_are_the_most() -> None:
    given = grant(member("viewer"), "task.read")
    for number in range(saved_views.MAX_VIEWS):
        saved_views.save_view(given, ViewDraft(name=str(number)))
    with pytest.raises(InvalidInput):
        saved_views.save_view(given, ViewDraft(name="one more"))
