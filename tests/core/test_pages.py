"""Keyset pages: order, cursors that were bent, borrowed or made with an older key."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core import signing

from apps.core import clock, pages
from apps.core.errors import InvalidInput
from apps.core.models import ControlJob
from apps.core.pages import CursorInvalid, CursorMismatch, Key, identifier, moment

BY_NAME = [Key("name")]


def jobs(count: int) -> None:
    now = clock.now()
    ControlJob.objects.bulk_create(
        ControlJob(name=f"{n:03}", due_at=now + timedelta(milliseconds=n // 3), failures=n % 4)
        for n in range(count)
    )


def walk(keys: list[Key], limit: int, **options: Any) -> list[str]:
    names: list[str] = []
    cursor = None
    for _ in range(100):
        page = pages.paginate(
            ControlJob.objects.all(), keys, kind="jobs", scope={}, limit=limit, cursor=cursor, **options
        )
        assert len(page.items) <= limit
        names += [row.name for row in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return names
        assert page.items
    raise AssertionError("no end")


ORDERS = [
    [Key("name")],
    [Key("name", True)],
    [moment("due_at"), Key("name")],
    [moment("due_at", descending=True), Key("name", True)],
    [moment("due_at", descending=True), Key("name")],
    [moment("due_at"), Key("name", True)],
    [Key("failures", True), moment("due_at"), Key("name", True)],
    [Key("failures"), moment("due_at"), Key("name")],
]


@pytest.mark.django_db
@pytest.mark.parametrize("keys", ORDERS)
@pytest.mark.parametrize("limit", [1, 3, 7, 23, 24])
def test_every_order_is_walked_backwards_too(keys: list[Key], limit: int) -> None:
    jobs(23)
    forward = walk(keys, limit)
    names: list[str] = []
    cursor = None
    for _ in range(100):
        page = pages.paginate(
            ControlJob.objects.all(), keys, kind="jobs", scope={}, limit=limit, cursor=cursor, backward=True
        )
        names = [row.name for row in page.items] + names
        cursor = page.previous_cursor
        if cursor is None:
            break
    assert names == forward


@pytest.mark.django_db
@pytest.mark.parametrize("keys", ORDERS)
@pytest.mark.parametrize("limit", [1, 3, 7, 23, 24])
def test_every_order_is_walked_once(keys: list[Key], limit: int) -> None:
    jobs(23)
    order = [("-" if key.descending else "") + key.name for key in keys]
    assert walk(keys, limit) == list(ControlJob.objects.order_by(*order).values_list("name", flat=True))


@pytest.mark.django_db
def test_rows_that_come_and_go_meanwhile() -> None:
    jobs(6)
    first = pages.paginate(ControlJob.objects.all(), BY_NAME, kind="jobs", scope={}, limit=3)
    ControlJob.objects.filter(name="002").delete()
    ControlJob.objects.create(name="000a", due_at=clock.now())
    second = pages.paginate(
        ControlJob.objects.all(), BY_NAME, kind="jobs", scope={}, limit=3, cursor=first.next_cursor
    )
    assert [row.name for row in second.items] == ["003", "004", "005"] and second.next_cursor is None


@pytest.mark.django_db
def test_no_rows() -> None:
    assert walk(BY_NAME, 5) == []


def test_bent_cursors_are_invalid() -> None:
    good = pages.encode("jobs", "s", ["x"])
    assert pages.decode(good, "jobs", "s", BY_NAME) == ["x"]
    bent = [
        good[:-1], good + "A", good[1:], good.swapcase(), "x" + good, good.replace(":", ";"), ":", "::", "x",
        "\0", "ü:" + good, "\ud800", "A" * pages.MAX_CURSOR, good + "A" * pages.MAX_CURSOR, " " + good,
        signing.dumps({"k": "jobs", "s": "s", "p": ["x"]}, salt="another"),
        signing.dumps({"k": "jobs", "s": "s", "p": ["x"]}),
    ]  # fmt: skip
    for text in bent:
        with pytest.raises(CursorInvalid):
            pages.decode(text, "jobs", "s", BY_NAME)


@pytest.mark.parametrize(
    "document",
    [[], None, 1, "x", {}, {"k": "jobs", "s": "s"}, {"k": "jobs", "s": "s", "p": []},
     {"k": "jobs", "s": "s", "p": ["a", "b"]}, {"k": "jobs", "s": "s", "p": None}, {"k": "jobs", "s": "s", "p": 3}],
)  # fmt: skip
def test_signed_nonsense_is_invalid(document: Any) -> None:
    text = signing.dumps(document, salt="qinglong.pages")
    with pytest.raises(CursorInvalid):
        pages.decode(text, "jobs", "s", BY_NAME)


@pytest.mark.parametrize("value", [True, 1.5, "2026", None, -1, 2**60, [1], {}])
def test_positions_are_read_strictly(value: Any) -> None:
    with pytest.raises(CursorInvalid):
        pages.decode(pages.encode("jobs", "s", [value]), "jobs", "s", [moment("due_at")])


@pytest.mark.parametrize("value", [None, 1, "x", [], {}])
def test_ids_are_read_strictly(value: Any) -> None:
    with pytest.raises(CursorInvalid):
        pages.decode(pages.encode("jobs", "s", [value]), "jobs", "s", [identifier()])


def test_a_cursor_of_another_list_is_a_mismatch() -> None:
    good = pages.encode("jobs", "s", ["x"])
    for kind, scope in (("runs", "s"), ("jobs", "t")):
        with pytest.raises(CursorMismatch):
            pages.decode(good, kind, scope, BY_NAME)


@pytest.mark.django_db
def test_scope_and_limit_bind_a_cursor() -> None:
    jobs(5)

    def page(cursor: str | None, *, limit: int = 2, **scope: Any) -> Any:
        return pages.paginate(
            ControlJob.objects.all(), BY_NAME, kind="jobs", scope=scope, limit=limit, cursor=cursor
        )

    cursor = page(None, project="a", status=["x"]).next_cursor
    assert page(cursor, status=["x"], project="a").items
    for options in (
        {"project": "b", "status": ["x"]},
        {"project": "a"},
        {"limit": 3, "project": "a", "status": ["x"]},
    ):
        with pytest.raises(CursorMismatch):
            page(cursor, **options)


@pytest.mark.parametrize("letter", ["x", "长", "😀", "\x7f"])
def test_the_longest_name_fits_into_an_address(letter: str) -> None:
    name = letter * 255
    cursor = pages.encode("panel.tasks", "0" * 64, [name, "0" * 36])
    assert len(cursor) < pages.MAX_CURSOR
    assert pages.decode(cursor, "panel.tasks", "0" * 64, [Key("name"), Key("id")])[0] == name


def test_keys_rotate(settings: Any) -> None:
    old = settings.SECRET_KEY
    cursor = pages.encode("jobs", "s", ["x"])
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new key " * 8, [old]
    assert pages.decode(cursor, "jobs", "s", BY_NAME) == ["x"]
    newer = pages.encode("jobs", "s", ["x"])
    settings.SECRET_KEY_FALLBACKS = []
    assert pages.decode(newer, "jobs", "s", BY_NAME) == ["x"]
    with pytest.raises(CursorInvalid):
        pages.decode(cursor, "jobs", "s", BY_NAME)


@pytest.mark.parametrize(
    "text", ["0", "201", "-1", "1.0", "１", " 5", "5 ", "x", "1e2", "0002009", "9" * 40, "00" * 99]
)
def test_limits_out_of_range(text: str) -> None:
    with pytest.raises(InvalidInput):
        pages.read_limit(text)


def test_limits() -> None:
    assert [pages.read_limit(text) for text in (None, "", "1", "200", "007")] == [50, 50, 1, 200, 7]
    assert pages.read_limit("500", largest=500) == 500
