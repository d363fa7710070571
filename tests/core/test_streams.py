"""Streams: the bounds of a payload, dedupe keys, one number for revision and newest event."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from apps.core import clock, ids
from apps.core.streams import Actor, DuplicateEvent, NewEvent, PayloadNotObject, PayloadTooLarge
from apps.runs.models import Run, RunEvent
from apps.runs.services.writes import RunEvents
from tests.runs import kit

ACTOR = Actor("system", "tests")


def event(payload: Any = None, key: str | None = None) -> NewEvent:
    return NewEvent("tests.told", ACTOR, {} if payload is None else payload, key)


def insert(run: Run, *events: NewEvent) -> None:
    with transaction.atomic():
        RunEvents.insert([(run.pk, run.version, events)], clock.now())


@pytest.fixture
def run(db: None) -> Run:
    return kit.run_of(kit.task())


def test_the_largest_payload(run: Run) -> None:
    insert(run, event({"x": "a" * (16_384 - 8)}))
    assert len(RunEvent.objects.get(type="tests.told").payload["x"]) == 16_376


@pytest.mark.parametrize("text", ["a" * 16_377, "é" * 8_189])
def test_bytes_are_counted_not_characters(run: Run, text: str) -> None:
    with pytest.raises(PayloadTooLarge) as refused:
        insert(run, event({"x": text}))
    assert refused.value.extra["allowed"] == 16_384 < refused.value.extra["actual"]
    assert not RunEvent.objects.filter(type="tests.told").exists()


@pytest.mark.parametrize("payload", [[], [1], "x", 1, True])
def test_only_objects(run: Run, payload: Any) -> None:
    with pytest.raises(PayloadNotObject):
        insert(run, event(payload))


@pytest.mark.parametrize("payload", [{"x": float("nan")}, {"x": object()}, {"x": "\ud800"}])
def test_what_is_no_json_is_refused(run: Run, payload: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        insert(run, event(payload))
    assert not RunEvent.objects.filter(type="tests.told").exists()


def test_a_dedupe_key_counts_within_its_head(run: Run) -> None:
    other = kit.run_of(kit.task("other"))
    insert(run, event(key="once"))
    insert(other, event(key="once"))
    run.version += 1
    with pytest.raises(DuplicateEvent):
        insert(run, event(), event(key="once"))
    assert RunEvent.objects.filter(type="tests.told").count() == 2


def test_a_number_is_given_once(run: Run) -> None:
    insert(run, event())
    with pytest.raises(DuplicateEvent):
        insert(run, event())


def test_many_heads_in_one_statement(run: Run, django_assert_num_queries: Any) -> None:
    runs = [run, *(kit.run_of(kit.task(f"t{number}")) for number in range(4))]
    with django_assert_num_queries(1):
        RunEvents.insert([(item.pk, item.version, [event(), event()]) for item in runs], clock.now())
    for item in runs:
        told = RunEvent.objects.filter(run=item, type="tests.told").order_by("sequence")
        assert [row.sequence for row in told] == [item.version + 1, item.version + 2]
        assert all(ids.is_uuid7(str(row.pk)) for row in told)


def test_no_events_ask_nothing(run: Run, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        RunEvents.insert([], clock.now())
        RunEvents.insert([(run.pk, 0, [])], clock.now())
