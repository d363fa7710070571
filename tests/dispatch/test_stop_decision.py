"""What a person can do where a stop came to nothing, and about processes that outlived one; over services and API."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from apps.audit.models import AuditEntry
from apps.core import clock
from apps.core.errors import InvalidInput
from apps.dispatch import cancellations
from apps.dispatch import escaped as processes
from apps.dispatch.errors import NothingEscaped, StopNotOpen
from apps.dispatch.fence import LeaseFence
from apps.dispatch.launcher.client import Handle
from apps.dispatch.launcher.tree import boot_id, read_stat
from apps.dispatch.models import RunDispatchLease
from apps.dispatch.services import cancellation, escaped, stop_decision
from apps.dispatch.services.cancellation import Told, Wanted
from apps.runs import services
from apps.runs.errors import RunEnded, RunNotFound
from apps.runs.models import Run, RunAttempt
from tests.people import api, grant, member
from tests.runs import kit

OWNER = f"{kit.NODE}:1"
TOKEN = "t" * 43
STOP = "run.stop"


def stopping(
    result: str | None = "identity_mismatch", reason: str = "user", **task: Any
) -> tuple[Run, LeaseFence]:
    """A run whose stop came to this, and its lease."""
    run = kit.run_of(kit.task(**task))
    fence = kit.worker()
    lease = kit.claimed(fence, run)
    kit.advance(fence, lease)
    services.request_cancel(kit.grant(STOP), run.pk, reason=reason)
    run = kit.fresh(run)
    if result is not None:
        told(run, result)
    return run, lease


def told(run: Run, result: str) -> None:
    attempt = kit.attempt_of(run).pk
    assert run.cancel_requested_at is not None
    found = cancellation.claim(OWNER, [Wanted(run.pk, attempt, run.cancel_requested_at)], token=TOKEN)[run.pk]
    assert found.outcome == "claimed" and found.record is not None
    delay = 1_000 if result == "dispatch_error" else None
    cancellation.record(OWNER, TOKEN, [Told(run.pk, attempt, found.record.version, result, delay)])


def audited(run: Run) -> dict[str, Any]:
    entry = AuditEntry.objects.get(action="run.stop_resolved", subject_id=str(run.pk))
    return dict(entry.metadata)


@pytest.mark.django_db
@pytest.mark.parametrize("result", ["identity_mismatch", "termination_requested", "dispatch_error"])
def test_verify_delivers_again(time: Any, result: str) -> None:
    run, _lease = stopping(result)
    operator = member("operator")
    stop_decision.resolve(grant(operator, STOP), run.pk, "verify", "looked at the machine")
    found = cancellations.find(run.pk)
    assert found is not None and (found.status, found.next_attempt_at) == ("pending", clock.now())
    assert kit.fresh(run).status == "running"
    assert audited(run) == {"decision": "verify", "reason": "looked at the machine"}
    told(run, "already_exited")
    found = cancellations.find(run.pk)
    assert found is not None and (found.status, found.dispatch_count) == ("dispatched", 2)
    kit.check_history(run)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("decision", "reason", "run_state", "attempt_state", "code"),
    [
        ("cancelled", "user", "cancelled", "cancelled", "EXECUTION_CANCELLED"),
        ("cancelled", "timeout", "timed_out", "timed_out", "EXECUTION_TIMED_OUT"),
        ("lost", "user", "lost", "lost", "RUN_MARKED_LOST"),
    ],
)
def test_a_blocked_stop_can_be_closed(
    time: Any, decision: str, reason: str, run_state: str, attempt_state: str, code: str
) -> None:
    run, lease = stopping(reason=reason, concurrency="queue")
    waiting = kit.run_of(run.task)
    assert not waiting.holds_place
    stop_decision.resolve(grant(member("operator"), STOP), run.pk, decision, "it is gone")
    found, attempt = kit.fresh(run), kit.attempt_of(run)
    assert (found.status, attempt.status, found.error_code) == (run_state, attempt_state, code)
    assert RunDispatchLease.objects.get(pk=lease.attempt_id).status == "completed"
    assert kit.fresh(waiting).holds_place
    assert "run.stop_resolved" in kit.events(run) and audited(run)["decision"] == decision
    # The session that carried it has nothing left to say.
    kit.finish(lease.worker, lease, 0)
    assert kit.fresh(run).status == run_state
    kit.check_history(run)


@pytest.mark.django_db
def test_what_is_refused(time: Any) -> None:
    ann = member("operator")
    run, lease = stopping(None)
    for decision, reason in (
        ("other", "x"), ("verify", ""), ("verify", "  "), ("lost", "x" * 201), ("lost", "a\nb"), ("lost", "\ud800"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput):
            stop_decision.resolve(grant(ann, STOP), run.pk, decision, reason)
    for decision in stop_decision.DECISIONS:
        with pytest.raises(StopNotOpen):
            stop_decision.resolve(grant(ann, STOP), run.pk, decision, "none was delivered")
    told(run, "termination_requested")
    for decision in ("lost", "cancelled"):
        with pytest.raises(StopNotOpen):
            stop_decision.resolve(grant(ann, STOP), run.pk, decision, "it may still run")
    assert kit.fresh(run).status == "running"
    kit.finish(lease.worker, lease, 0)
    with pytest.raises(RunEnded):
        stop_decision.resolve(grant(ann, STOP), run.pk, "verify", "late")
    with pytest.raises(RunNotFound):
        stop_decision.resolve(grant(ann, STOP), lease.attempt_id, "verify", "no such run")
    assert not AuditEntry.objects.filter(action="run.stop_resolved").exists()


@pytest.mark.django_db
def test_over_the_api(time: Any) -> None:
    run, _lease = stopping()
    operator, viewer = api(member("operator")), api(member("viewer"))
    attempts = viewer("GET", f"runs/{run.pk}/attempts").json()["items"]
    assert attempts[0]["stop"] == {
        "delivery": {
            "status": "blocked", "result": "identity_mismatch", "count": 1, "next_attempt_at": None,
            "last_dispatched_at": clock.rfc3339(clock.now()),
        },
        "proof": None,
        "kill": None,
    }  # fmt: skip
    assert TOKEN not in str(attempts)
    path = f"runs/{run.pk}/stop/resolve"
    body = {"decision": "cancelled", "reason": "seen to be gone"}
    assert viewer("POST", path, body).status_code == 403
    assert operator("POST", path, {"decision": "cancelled"}).status_code == 400
    assert operator("POST", path, {**body, "more": 1}).status_code == 400
    answer = operator("POST", path, body)
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert operator("POST", path, body).json()["code"] == "run_ended"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def identity(pid: int) -> dict[str, int]:
    found = read_stat(pid)
    assert found is not None
    return {"pid": pid, "start_ticks": found.start_ticks}


def escaping(*left: dict[str, int], boot: str | None = None) -> Run:
    """A run whose stop left processes behind."""
    run, lease = stopping("termination_requested")
    handle = Handle(2, 1, boot or boot_id()).encode()
    RunAttempt.objects.filter(run=run).update(executor_handle=handle)
    proof = {"processes": 3, "took_ms": 5_012, "killed": True, "escaped": list(left)}
    kit.finish(lease.worker, lease, 137, cause="stop", proof=proof)
    return run


def carry_out() -> dict[str, str]:
    (wish,) = escaped.waiting(kit.NODE)
    outcome = processes.kill(wish.processes, wish.boot_id)
    assert escaped.settle(wish, outcome, OWNER)
    return outcome


@pytest.mark.django_db
def test_what_escaped_is_killed_by_its_identity(time: Any, sleeper: subprocess.Popen[bytes]) -> None:
    mine = identity(sleeper.pid)
    run = escaping(mine, {"pid": 1, "start_ticks": 3}, {"pid": 2**30, "start_ticks": 9})
    operator, viewer = api(member("operator")), api(member("viewer"))
    (before,) = viewer("GET", f"runs/{run.pk}/attempts").json()["items"]
    assert before["stop"]["proof"] == {
        "cause": "stop", "processes": 3, "took_ms": 5_012, "killed": True,
        "escaped": [mine, {"pid": 1, "start_ticks": 3}, {"pid": 2**30, "start_ticks": 9}],
    }  # fmt: skip
    path = f"runs/{run.pk}/stop/kill-escaped"
    assert viewer("POST", path).status_code == 403
    answer = operator("POST", path)
    assert (answer.status_code, answer.json()["done_at"]) == (202, None)
    assert operator("POST", path).json() == answer.json()
    assert kit.events(run).count("run.escaped_kill_requested") == 1
    assert AuditEntry.objects.filter(action="run.escaped_kill_requested").count() == 1
    assert escaped.waiting("b" * 32) == []
    expected = {str(sleeper.pid): "killed", "1": "identity_mismatch", str(2**30): "already_gone"}
    assert carry_out() == expected
    assert sleeper.wait(5) == -9
    (after,) = viewer("GET", f"runs/{run.pk}/attempts").json()["items"]
    assert after["stop"]["kill"]["outcome"] == expected and after["stop"]["kill"]["done_at"]
    assert escaped.waiting(kit.NODE) == [] and kit.events(run)[-1] == "run.escaped_killed"
    # Asked again, it is looked again.
    assert operator("POST", path).json()["done_at"] is None
    assert carry_out()[str(sleeper.pid)] == "already_gone"
    kit.check_history(run)


@pytest.mark.django_db
def test_another_boot_another_process(time: Any, sleeper: subprocess.Popen[bytes]) -> None:
    run = escaping(identity(sleeper.pid), boot="another-boot")
    escaped.request_kill(kit.grant(STOP), run.pk)
    assert carry_out() == {str(sleeper.pid): "already_gone"} and sleeper.poll() is None


@pytest.mark.django_db
def test_the_panel_is_never_meant(time: Any) -> None:
    """A script can forge what its shim left; what is the panel's own is not killed for it."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        run = escaping(identity(process.pid))
        escaped.request_kill(kit.grant(STOP), run.pk)
        assert carry_out() == {str(process.pid): "refused"} and process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.django_db
def test_where_nothing_escaped(time: Any) -> None:
    run = escaping()
    with pytest.raises(NothingEscaped):
        escaped.request_kill(kit.grant(STOP), run.pk)
    with pytest.raises(NothingEscaped):
        escaped.request_kill(kit.grant(STOP), kit.run_of(kit.task("other")).pk)
    older = escaping_before_its_shim()
    with pytest.raises(NothingEscaped):
        escaped.request_kill(kit.grant(STOP), older.pk)


def escaping_before_its_shim() -> Run:
    run, lease = stopping("termination_requested", name="forged")
    RunAttempt.objects.filter(run=run).update(executor_handle=Handle(2, 500, boot_id()).encode())
    proof = {"processes": 1, "took_ms": 1, "killed": False, "escaped": [{"pid": 77, "start_ticks": 499}]}
    kit.finish(lease.worker, lease, 0, cause="stop", proof=proof)
    return run


@pytest.mark.django_db
def test_reading_stops_costs_three_statements(time: Any, django_assert_num_queries: Any) -> None:
    plain, stopped = kit.run_of(kit.task("plain")), escaping({"pid": 9, "start_ticks": 9})
    with django_assert_num_queries(2):
        assert cancellations.stops(plain.pk) == {}
    with django_assert_num_queries(3):
        assert len(cancellations.stops(stopped.pk)) == 1
