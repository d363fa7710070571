"""A flood of guesses at the door: what it may cost, and that it keeps out nobody who has the right password."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.conf import settings
from django.db import connection
from django.http import HttpResponse, UnreadablePostError
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext, override_settings
from django.urls import set_script_prefix
from django.utils import timezone

from apps.access import hashing, locks
from apps.access.doorkeeper import MAX_FORM_BYTES, Doorkeeper
from tests.conftest import Time
from tests.people import PASSWORD, account

pytestmark = pytest.mark.django_db
LOGIN = "/panel/login/"


def knock(name: str = "ann", password: str = "wrong", address: str = "203.0.113.7", **more: Any) -> Any:
    return Client(REMOTE_ADDR=address).post(LOGIN, {"username": name, "password": password}, **more)


def lock(name: str = "ann") -> None:
    assert [knock(name).status_code for _ in range(5)] == [401] * 5


@contextmanager
def full_queue() -> Iterator[None]:
    with hashing.queue("a"), hashing.queue("b"), hashing.queue("c"):
        yield


def queries_of(**guess: str) -> tuple[int, int]:
    """Status and number of statements."""
    with CaptureQueriesContext(connection) as queries:
        status = knock(**guess).status_code
    return status, len(queries)


def test_a_locked_pair_is_refused_without_the_database_but_once_a_second(time: Time) -> None:
    account("ann")
    lock()
    assert queries_of(password=PASSWORD) == (429, 1), "what was locked is looked up"
    assert [queries_of(password=PASSWORD) for _ in range(5)] == [(429, 0)] * 5
    time.advance(locks.KNOWN_FOR_MS)
    assert queries_of() == (429, 1)
    assert queries_of() == (429, 0)


def test_a_lock_of_another_process_is_learnt_from_the_first_refusal(time: Time) -> None:
    account("ann")
    lock()
    locks.forget()
    status, asked = queries_of()
    assert status == 429 and asked > 0
    queries_of()
    assert queries_of() == (429, 0)


def test_a_lock_that_was_taken_away_early_is_seen_within_a_second(time: Time) -> None:
    account("ann")
    lock()
    assert knock().status_code == knock().status_code == 429
    AccessAttempt.objects.all().delete()
    time.advance(locks.KNOWN_FOR_MS)
    assert knock(password=PASSWORD).status_code == 302


def test_a_remembered_lock_ends_when_the_database_says_so(time: Time) -> None:
    account("ann")
    lock()
    assert knock().status_code == 429
    left_ms = locks.seconds_left(next(iter(locks._ends))) * 1000
    assert 0 < left_ms <= settings.AXES_COOLOFF_TIME.total_seconds() * 1000
    time.advance(left_ms)
    AccessAttempt.objects.update(attempt_time=timezone.now() - settings.AXES_COOLOFF_TIME)
    assert knock(password=PASSWORD).status_code == 302


def test_a_clock_that_goes_back_prolongs_no_lock(time: Time) -> None:
    account("ann")
    lock()
    assert knock().status_code == 429
    time.advance(-3_600_000)
    AccessAttempt.objects.all().delete()
    assert knock(password=PASSWORD).status_code == 302


def test_the_memory_holds_pairs_and_neither_names_nor_addresses() -> None:
    account("ann"), account("bob")
    lock()
    assert knock().status_code == knock(password=PASSWORD).status_code == 429
    assert knock("bob", PASSWORD).status_code == 302
    assert knock("ann", PASSWORD, "203.0.113.8").status_code == 302
    assert "ann" not in str(locks._ends)


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "REMEMBERED", 2)
    for name in ("a", "b", "c"):
        lock(name)
    assert len(locks._ends) == 2
    assert knock("c").status_code == 429, "what is not remembered is asked for"


def test_a_name_that_does_not_exist_gets_the_same_answer_byte_for_byte() -> None:
    account("ann")
    answers = []
    for name in ("ann", "nobody"):
        lock(name)
        knock(name)
        again = knock(name)
        answers.append((again.status_code, again.content, sorted(again.headers.items())))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("language", "word"), [("en", "Too many failed attempts"), ("zh-hans", "失败次数过多")]
)
def test_the_small_answer_is_whole(language: str, word: str) -> None:
    lock("nobody")
    knock("nobody")
    answer = knock("nobody", headers={"Accept-Language": language})
    assert answer.status_code == 429 and not answer.cookies
    assert word in answer.content.decode() and f'lang="{language}"' in answer.content.decode()
    assert answer["Retry-After"] == "300" and answer["Content-Language"] == language
    assert answer["Content-Length"] == str(len(answer.content)), "without it every answer comes in pieces"
    assert "no-store" in answer["Cache-Control"] and "Accept-Language" in answer["Vary"]
    assert "default-src 'none'" in answer["Content-Security-Policy"]
    assert answer["X-Frame-Options"] == "DENY" and answer["X-Content-Type-Options"] == "nosniff"
    assert LOGIN in answer.content.decode()


def test_a_full_queue_turns_away_before_sessions_and_cookies() -> None:
    client = Client(REMOTE_ADDR="203.0.113.7")
    client.cookies["ql_session"] = "x" * 32
    with (
        hashing.queue("a"),
        hashing.queue("b"),
        hashing.queue("c"),
        CaptureQueriesContext(connection) as queries,
    ):
        answer = client.post(LOGIN, {"username": "ann", "password": PASSWORD})
    assert answer.status_code == 429 and answer["Retry-After"] == "1" and not queries.captured_queries
    assert not answer.cookies


def test_the_door_is_found_under_a_sub_path() -> None:
    doorkeeper = Doorkeeper(lambda _request: HttpResponse("further on"))
    try:
        with override_settings(FORCE_SCRIPT_NAME="/ql"), full_queue():
            set_script_prefix("/ql/")
            answer: Any = doorkeeper(RequestFactory().post(LOGIN, {"username": "ann"}))
    finally:
        set_script_prefix("/")
    assert answer.status_code == 429 and 'href="/ql/panel/login/"' in answer.content.decode()
    with full_queue():
        assert 'href="/panel/login/"' in knock().content.decode()


def test_passkeys_do_not_wait_behind_passwords() -> None:
    with full_queue():
        answer = Client().post(LOGIN, {"username": "ann", "answer": "{}"})
    assert answer.status_code == 401


def test_other_pages_are_not_the_doorkeepers() -> None:
    with full_queue():
        assert Client().get(LOGIN).status_code == 200
        assert Client().post("/panel/theme/", {"username": "ann"}).status_code == 302


def test_a_form_too_long_for_a_sign_in_is_not_read() -> None:
    answer = knock(name="x" * MAX_FORM_BYTES)
    assert answer.status_code == 400
    assert knock(name="x" * (MAX_FORM_BYTES // 2)).status_code == 401


def test_whoever_hangs_up_gets_no_further_and_breaks_nothing() -> None:
    class Gone(io.BytesIO):
        def read(self, *_size: Any) -> bytes:
            raise UnreadablePostError("gone")

    request = RequestFactory().post(LOGIN, {"username": "ann", "password": "x"})
    request._stream = Gone()
    went_on = Doorkeeper(lambda _request: HttpResponse("further on"))(request)
    assert went_on.status_code == 200


def test_who_failed_twice_waits_for_an_empty_queue_and_newcomers_do_not() -> None:
    account("ann")
    assert [knock("x1").status_code, knock("x2").status_code] == [401, 401]
    assert knock(password=PASSWORD).status_code == 302, "nobody else is there"
    with hashing.queue("somebody"):
        assert knock(password=PASSWORD).status_code == 429
        assert knock(password=PASSWORD, address="203.0.113.8").status_code == 302
    assert knock(password=PASSWORD).status_code == 302


def test_a_failure_is_one_write_and_looks_after_its_own_pair_only() -> None:
    account("ann")
    knock("old", address="198.51.100.9")
    AccessAttempt.objects.update(attempt_time=timezone.now() - settings.AXES_COOLOFF_TIME)
    with CaptureQueriesContext(connection) as queries:
        assert knock().status_code == 401
    writes = [one["sql"] for one in queries if one["sql"].startswith(("INSERT", "UPDATE", "DELETE"))]
    assert len(writes) == 1 and writes[0].startswith("INSERT")
    assert sum(one["sql"].startswith("BEGIN") for one in queries) <= 1
    assert AccessAttempt.objects.count() == 2, "what is over is for `tidy`"


def test_failures_that_are_over_do_not_count_on() -> None:
    account("ann")
    for _ in range(4):
        knock()
    AccessAttempt.objects.update(attempt_time=timezone.now() - settings.AXES_COOLOFF_TIME)
    assert [knock().status_code for _ in range(6)] == [401] * 5 + [429]


def test_a_flood_of_addresses_is_not_remembered_for_knocking_alone() -> None:
    with full_queue():
        for number in range(20):
            assert hashing.is_full(f"198.51.100.{number}")
    assert not hashing._failures._calls
