"""The search text of the task list, on both engines."""

from __future__ import annotations

import pytest
from django.db.models import Q

from apps.tasks import search
from apps.tasks.models import Task
from apps.tasks.search import Term
from tests.panel.kit import a_task
from tests.people import member

pytestmark = pytest.mark.django_db
NOTHING_ABOVE = {"schedule": lambda _word: Q(pk__in=()), "status": lambda _word: Q(pk__in=())}


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", []),
        ("  back   up ", [Term("", "back"), Term("", "up")]),
        ('name:"back up" LABEL:nightly', [Term("name", "back up"), Term("label", "nightly")]),
        ("label：夜间 status:failed", [Term("label", "夜间"), Term("status", "failed")]),
        ("http://a:80 x", [Term("", "http://a:80"), Term("", "x")]),
        ('"never closed', [Term("", "never closed")]),
        ("name:", [Term("", "name:")]),
        ("1 2 3 4 5 6 7 8 9 10", [Term("", str(number)) for number in range(1, 9)]),
    ],
)
def test_words_and_fields(text: str, terms: list[Term]) -> None:
    assert search.parse(text) == terms


def found(text: str) -> set[str]:
    rows = search.matching(Task.objects.all(), search.parse(text), NOTHING_ABOVE)
    return set(rows.values_list("name", flat=True))


def test_what_is_found_where() -> None:
    owner = member("owner")
    a_task(owner, "Back up", labels=["夜间", "50%_off"], shell='echo "quoted" $HOME')
    a_task(owner, "同步", slug="sync", labels=["nightly"], shell="curl -s\nécho")
    assert found("BACK") == {"Back up"} and found("sync") == {"同步"} and found("同步") == {"同步"}
    assert found("label:夜") == {"Back up"} and found("夜间") == {"Back up"}
    assert found("label:%") == {"Back up"} and found("label:_") == {"Back up"} and not found("label:back")
    assert found('command:"echo \\"quoted"') == set()
    assert found("command:$home") == {"Back up"} and found("command:curl") == {"同步"}
    assert found("name:curl") == set() and found("curl") == {"同步"}
    assert found("up echo") == {"Back up"} and found("up curl") == set()
    assert found("schedule:x") == set() and found("status:failed") == set()
