"""Rules, previews, bills, pins and folded histories over the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apps.artifacts.models import UnlistedRun
from apps.artifacts.retention import history, sweep
from apps.core import clock, ids
from apps.runs.models import RunAttempt, RunEvent
from tests.artifacts.retention import kit
from tests.artifacts.retention.kit import DAY, OPTIONS
from tests.people import account, api, member
from tests.runs.test_folding import kit_events
from tests.tasks.kit import make

pytestmark = pytest.mark.django_db

DAY_MS = 86_400_000
RULE = "projects/default/retention"


@pytest.fixture(autouse=True)
def _rule(root: Path, settings: Any) -> None:
    kit.keep(settings, keep_ms=7 * DAY_MS, pressure_ms=DAY_MS, keep_least=0)


def test_a_rule_is_read_changed_and_taken_back() -> None:
    call = api(member("owner"))
    answer = call("GET", RULE)
    assert (answer.status_code, answer["ETag"]) == (200, '"0"')
    assert answer.json() == {
        "keep_ms": None, "keep_most": None, "keep_bytes": None, "keep_least": None, "version": 0,
        "effective": {"keep_ms": 7 * DAY_MS, "keep_least": 0, "pressure_ms": DAY_MS, "history_ms": 90 * DAY_MS},
        "usage": {"logs": 0, "bytes": 0}, "updated_at": None,
    }  # fmt: skip
    changed = call("PATCH", RULE, {"keep_ms": 3 * DAY_MS, "keep_most": 10}, If_Match='"0"')
    assert (changed.status_code, changed["ETag"]) == (200, '"1"')
    assert changed.json()["effective"]["keep_ms"] == 3 * DAY_MS
    again = call("PATCH", RULE, {"keep_ms": None}, If_Match='"1"').json()
    assert (again["keep_ms"], again["keep_most"], again["version"]) == (None, 10, 2)
    stale = call("PATCH", RULE, {"keep_ms": DAY_MS}, If_Match='"1"')
    assert (stale.status_code, stale.json()["current_version"]) == (409, 2)
    assert call("PATCH", RULE, {"keep_ms": DAY_MS}).status_code == 428
    for wrong in ({"keep_ms": 1}, {"keep_most": 0}, {"keep_least": -1}, {"nonsense": 1}, {"usage": {}}):
        assert call("PATCH", RULE, wrong, If_Match='"2"').status_code == 400, wrong


def test_a_task_has_a_rule_of_its_own() -> None:
    task = make()
    call = api(member("owner"))
    path = f"projects/default/tasks/{task.slug}/retention"
    assert (
        call("PATCH", path, {"keep_ms": 20 * DAY_MS}, If_Match='"0"').json()["effective"]["keep_ms"]
        == 20 * DAY_MS
    )
    assert call("GET", RULE).json()["version"] == 0
    assert call("GET", "projects/default/tasks/none/retention").status_code == 404


def test_who_may_what() -> None:
    """Everybody in the project reads; only owners change and preview; others see nothing."""
    admin, viewer, stranger = api(member("admin")), api(member("viewer")), api(account("stranger"))
    for call, status in ((admin, 200), (viewer, 200), (stranger, 404)):
        assert call("GET", RULE).status_code == status
        assert call("GET", f"{RULE}/receipts").status_code == status
    for call, status in ((admin, 403), (viewer, 403), (stranger, 404)):
        assert call("PATCH", RULE, {"keep_ms": DAY_MS}, If_Match='"0"').status_code == status
        assert call("POST", f"{RULE}/preview", {}).status_code == status


def test_a_preview_and_then_the_bill() -> None:
    task = make()
    kit.many(4, clock.now() - 8 * DAY, content=b"12345", task=task)
    young = kit.many(1, clock.now())
    call = api(member("owner"))
    found = call("POST", f"{RULE}/preview", {})
    assert found.status_code == 200
    assert found.json() == {
        "runs": 4, "logs": 4, "files": 4, "bytes": 20, "by_rule": {"age": 4}, "bounded": False,
        "oldest_kept_at": clock.rfc3339(young[0].finished_at), "kept_logs": 1, "kept_bytes": 1,
    }  # fmt: skip
    assert call("POST", f"{RULE}/preview", {"keep_ms": 365 * DAY_MS}).json()["logs"] == 0
    assert call("POST", f"{RULE}/preview", {"task": task.slug, "keep_most": 1}).json()["by_rule"] == {
        "age": 4
    }
    assert call("POST", f"{RULE}/preview", {"keep_ms": 5}).status_code == 400
    assert call("GET", f"{RULE}/receipts").json()["items"] == []
    sweep.cycle(OPTIONS)
    (bill,) = call("GET", f"{RULE}/receipts").json()["items"]
    assert (bill["rule"], bill["items"], bill["files"], bill["bytes"]) == ("age", 4, 4, 20)
    assert bill["day"] == clock.now().date().isoformat()


def test_bills_come_in_pages(time: Any) -> None:
    for _ in range(3):
        kit.many(1, clock.now() - 8 * DAY)
        sweep.cycle(OPTIONS)
        time.advance(DAY_MS)
    call = api(member("viewer"))
    first = call("GET", f"{RULE}/receipts?limit=2").json()
    second = call("GET", f"{RULE}/receipts?limit=2&cursor={first['next_cursor']}").json()
    days = [row["day"] for row in first["items"] + second["items"]]
    assert len(days) == 3 and days == sorted(days, reverse=True) and second["next_cursor"] is None


def test_a_run_is_pinned_and_let_go() -> None:
    of = kit.ended(clock.now() - 8 * DAY, status="failed")
    kit.listed(of)
    path = f"runs/{of.run_id}"
    operator, viewer = api(member("operator")), api(member("viewer"))
    assert viewer("PUT", f"{path}/pin", {}).status_code == 403
    pinned = operator("PUT", f"{path}/pin", {"reason": "evidence"})
    assert pinned.status_code == 200 and pinned.json()["reason"] == "evidence"
    assert operator("PUT", f"{path}/pin", {"reason": "x" * 201}).status_code == 400
    (hold,) = viewer("GET", f"{path}/holds").json()["items"]
    assert (hold["holder"], hold["holder_id"], hold["reason"]) == ("pin", "", "evidence")
    sweep.cycle(OPTIONS)
    assert operator("GET", f"{path}/log").status_code == 200
    assert operator("DELETE", f"{path}/pin").status_code == 204
    assert operator("DELETE", f"{path}/pin").status_code == 204
    sweep.cycle(OPTIONS)
    gone = operator("GET", f"{path}/log")
    assert (gone.status_code, gone.json()["code"]) == (410, "log_retained")
    assert operator("PUT", f"runs/{ids.uuid7()}/pin", {}).status_code == 404


def test_a_folded_run_tells_what_stays(time: Any) -> None:
    of = kit.ended(clock.now(), status="failed")
    RunAttempt.objects.filter(pk=of.pk).update(exit_code=3)
    kit_events([of.run])
    kit.listed(of)
    time.advance(100 * DAY_MS)
    call = api(member("operator"))
    before = call("GET", f"runs/{of.run_id}").json()
    sweep.cycle(OPTIONS)
    assert history.fold()[1] == 1 and not UnlistedRun.objects.exists()
    after = call("GET", f"runs/{of.run_id}").json()
    assert after["folded_at"] is not None and before["folded_at"] is None
    assert {**after, "folded_at": None} == before
    (listed,) = call("GET", "projects/default/runs").json()["items"]
    assert listed == after
    for part in ("events", "attempts"):
        gone = call("GET", f"runs/{of.run_id}/{part}")
        assert (gone.status_code, gone.json()["code"]) == (410, "history_retained")
    assert call("GET", f"runs/{of.run_id}/events?after=1").status_code == 410
    assert call("GET", f"runs/{of.run_id}/log").json()["code"] == "log_retained"
    refused = call("PUT", f"runs/{of.run_id}/pin", {})
    assert (refused.status_code, refused.json()["code"]) == (410, "history_retained")
    assert not RunEvent.objects.exists()
