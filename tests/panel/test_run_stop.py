"""The page of a run that a stop did not end: what is said, what a person may decide, who may."""

from __future__ import annotations

from typing import Any

import pytest

from apps.dispatch import cancellations
from apps.runs.models import RunEvent
from tests.dispatch.test_stop_decision import escaping, stopping
from tests.panel.kit import browser
from tests.people import member
from tests.runs import kit

pytestmark = pytest.mark.django_db


def test_a_blocked_stop_asks_for_a_decision(time: Any) -> None:
    run, _lease = stopping()
    ann, eve = browser(member("operator")), browser(member("viewer"))
    path, resolve = f"/panel/runs/{run.pk}/", f"/panel/runs/{run.pk}/stop/resolve/"
    for part in ({}, {"X-Part": "1"}):
        html = ann.get(path, headers=part).content.decode()
        assert "its process number belongs to another process now" in html and resolve in html
        assert "has not passed it on yet" not in html, "one banner, the one that knows more"
    assert resolve not in eve.get(path).content.decode()
    assert eve.get(resolve).status_code == 403 and eve.post(resolve).status_code == 403
    form = ann.get(resolve).content.decode()
    assert 'value="lost"' in form and 'value="cancelled"' in form
    refused = ann.post(resolve, {"decision": "cancelled", "reason": " "}, follow=True).content.decode()
    assert "invalid" in refused and kit.fresh(run).status == "running"
    done = ann.post(
        resolve, {"decision": "cancelled", "reason": "it is <gone>"}, follow=True
    ).content.decode()
    assert "The run is closed." in done and "it is &lt;gone&gt;" in done
    assert kit.fresh(run).status == "cancelled" and resolve not in done


def test_a_stop_that_nothing_came_of_can_be_sent_again(time: Any) -> None:
    run, _lease = stopping("termination_requested")
    ann = browser(member("operator"))
    resolve = f"/panel/runs/{run.pk}/stop/resolve/"
    early, _other = stopping(None, name="early")
    html = ann.get(f"/panel/runs/{early.pk}/stop/resolve/", follow=True).content.decode()
    assert "There is no stop of this run that waits for a decision." in html
    assert resolve not in ann.get(f"/panel/runs/{run.pk}/").content.decode()
    time.advance(21_000)
    html = ann.get(f"/panel/runs/{run.pk}/").content.decode()
    assert "The process should have ended by now." in html and resolve in html
    assert 'value="lost"' not in ann.get(resolve).content.decode()
    ann.post(resolve, {"decision": "verify", "reason": "it hangs"})
    found = cancellations.find(run.pk)
    assert found is not None and found.status == "pending"
    assert RunEvent.objects.get(run=run, type="run.stop_resolved").actor_type == "user"


def test_who_outlived_a_stop_can_be_killed(time: Any) -> None:
    run = escaping({"pid": 4_711, "start_ticks": 3}, {"pid": 4_712, "start_ticks": 4})
    ann, eve = browser(member("operator")), browser(member("viewer"))
    path, kill = f"/panel/runs/{run.pk}/", f"/panel/runs/{run.pk}/stop/kill-escaped/"
    html = ann.get(path).content.decode()
    assert "still there: process 4711, 4712" in html and "KILL was needed" in html
    assert kill in html and "End these 2 processes" in html
    assert kill not in eve.get(path).content.decode() and eve.post(kill).status_code == 403
    html = ann.post(kill, follow=True).content.decode()
    assert "The worker was asked to end what is left." in html and kill not in html
    from apps.dispatch.services import escaped

    (wish,) = escaped.waiting(kit.NODE)
    escaped.settle(wish, {"4711": "killed", "4712": "still_there"}, f"{kit.NODE}:1")
    html = ann.get(path).content.decode()
    assert (
        "process 4711: was ended" in html
        and "process 4712: was told to end, but the kernel still holds it" in html
    )


def test_a_clean_stop_is_told_with_its_proof(time: Any) -> None:
    run, lease = stopping("termination_requested")
    proof = {"processes": 3, "took_ms": 12, "killed": False, "escaped": []}
    kit.finish(lease.worker, lease, 143, cause="stop", proof=proof)
    html = browser(member("viewer")).get(f"/panel/runs/{run.pk}/").content.decode()
    for said in ("3 processes were told to end", "KILL was not needed", "all gone after"):
        assert said in html
    assert "kill-escaped" not in html and "/stop/resolve/" not in html
