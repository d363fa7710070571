"""Approved actions on their way, handlers and providers of the test's own, and processes that die."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from unittest.mock import patch

from django.db.models import Model

from apps.access.models import User
from apps.approvals import dispatching, plans, recovery, registry, services, snapshots
from apps.approvals.contract import (
    Evidence,
    Held,
    Inspection,
    Ready,
    RecoverySnapshot,
    Result,
    Snapshot,
    holding,
)
from apps.approvals.models import (
    ApprovalRequest,
    ApprovedActionDispatch,
    ApprovedActionExecution,
    ApprovedActionPlan,
    ApprovedActionRecoveryControl,
    ApprovedRunReceipt,
)
from apps.approvals.registry import ActionType
from apps.approvals.services import Consumption, execution
from apps.approvals.services.manual import Recovery, recover
from apps.core import clock
from apps.identity.principals import Assurance, PolicySubject, Principal
from apps.runs.models import Run
from apps.tasks.models import Task
from tests import people
from tests.approvals import kit
from tests.approvals.kit import Cast

OWNER, TOKEN = "dispatcher:tests", "a" * 64
LEASE_MS = 30_000
OTHER = "tests.effect"


def handed_over(c: Cast, of: Task | None = None, id: str = "r-1", **asked: Any) -> ApprovedActionDispatch:
    """A request to start a task, approved and consumed."""
    kit.filed(c.agent, of or kit.task(f"task {id}"), id, **asked)
    return consumed(kit.decide(c.admin, kit.verdict(id)))


def handed_over_elsewhere(c: Cast, id: str = "r-1", **changed: Any) -> ApprovedActionDispatch:
    """The same by digests only; its action type may be one of the test's own."""
    return consumed(kit.approved(c, id, action=kit.action(id, **changed)))


def consumed(request: ApprovalRequest) -> ApprovedActionDispatch:
    return services.consume(Consumption.of(request)).dispatch


def now() -> datetime:
    return clock.now()


def later(ms: int) -> datetime:
    return clock.now() + timedelta(milliseconds=ms)


def claimed(
    dispatch: ApprovedActionDispatch, owner: str = OWNER, token: str = TOKEN, ms: int = LEASE_MS
) -> Held:
    found = execution.claim(dispatch.pk, owner, token, now(), ms)
    assert found.status == "claimed" and found.snapshot is not None, found
    return holding(found.snapshot.execution)


def started(dispatch: ApprovedActionDispatch, **options: Any) -> Snapshot:
    """Behind the barrier, its handler not called yet."""
    held = claimed(dispatch, **options)
    return execution.start(held, dispatch.approval_request_id, dispatch.action_digest, now())


def held(snapshot: Snapshot) -> Held:
    return holding(snapshot.execution)


def fresh(dispatch: ApprovedActionDispatch | str) -> ApprovedActionExecution:
    return ApprovedActionExecution.objects.get(pk=getattr(dispatch, "pk", dispatch))


def control(dispatch: ApprovedActionDispatch | str) -> ApprovedActionRecoveryControl:
    return ApprovedActionRecoveryControl.objects.get(pk=getattr(dispatch, "pk", dispatch))


def recovering(dispatch: ApprovedActionDispatch) -> RecoverySnapshot:
    found = snapshots.find(dispatch.pk)
    assert found is not None
    return found


def plan(dispatch: ApprovedActionDispatch) -> ApprovedActionPlan:
    found = plans.resolve(dispatch.action_ref)
    assert found is not None
    return found


def dispatch_all(**options: Any) -> dispatching.Report:
    return dispatching.dispatch_page("dispatcher:tests", **options)


def recover_all(**options: Any) -> recovery.Report:
    return recovery.recover_page("reconciler:tests", **options)


def receipts() -> list[ApprovedRunReceipt]:
    return list(ApprovedRunReceipt.objects.order_by("pk"))


def runs() -> list[Run]:
    return list(Run.objects.order_by("pk"))


@dataclass
class Effect:
    """A handler whose doings can be counted; each answer may be an exception to raise."""

    inspects: Any = None
    executes: Any = field(default_factory=lambda: Result("succeeded", "done"))
    inspected: int = 0
    executed: int = 0
    during: Callable[[Snapshot], Any] | None = None

    def inspect(self, dispatch: ApprovedActionDispatch) -> Inspection:
        self.inspected += 1
        return _answer(Ready(dispatch.action_digest) if self.inspects is None else self.inspects)

    def execute(self, snapshot: Snapshot, key: str, held: Held) -> Result:
        self.executed += 1
        if self.during is not None:
            self.during(snapshot)
        return _answer(self.executes)


@dataclass
class Witness:
    """A provider that says what it is told to."""

    says: Any = None
    capability: Literal["automatic", "manual_only"] = "automatic"
    asked: int = 0

    def observe(self, snapshot: Snapshot, key: str, observed_at: datetime) -> Evidence:
        self.asked += 1
        return _answer(self.says)


def _answer(given: Any) -> Any:
    if isinstance(given, BaseException):
        raise given
    return given


@contextmanager
def action_type(
    handler: Any = None, evidence: Any = None, name: str = OTHER, permission: str = "run.start"
) -> Iterator[None]:
    """An action type of the test's own, gone afterwards."""
    made = ActionType(name, permission, "thing", handler=handler, evidence=evidence)
    with patch.dict(registry._registry, {name: made}):
        yield


@contextmanager
def failing_to_store(model: type[Model], error: Exception) -> Iterator[None]:
    """New rows of one model cannot be written."""
    save = Model.save

    def fail(self: Model, *args: Any, **options: Any) -> None:
        if isinstance(self, model):
            raise error
        save(self, *args, **options)

    with patch.object(Model, "save", fail):
        yield


def principal(
    who: User | PolicySubject,
    assurance: Assurance = Assurance.MULTI_FACTOR,
    *,
    signed_in_ms_ago: int = 0,
) -> Principal:
    subject = who if isinstance(who, PolicySubject) else people.subject(who)
    at = clock.now_ms() - signed_in_ms_ago
    return Principal(subject, "auth-1", clock.from_ms(at), clock.from_ms(at + 3_600_000), assurance)


def wish(dispatch: ApprovedActionDispatch, **changed: Any) -> Recovery:
    """How a person closes an execution, at its versions as they are."""
    found = snapshots.find(dispatch.pk)
    values: dict[str, Any] = {
        "dispatch_id": dispatch.pk,
        "expected_execution_version": 0 if found is None else found.execution.version,
        "expected_recovery_version": 0 if found is None else found.control.version,
        "mutation_id": "m-1",
        "decision": "confirm_failed",
        "reason_code": "looked_myself",
    }
    return Recovery(**{**values, **changed})


def close_by_hand(who: User, dispatch: ApprovedActionDispatch, **changed: Any) -> Any:
    return recover(principal(who), wish(dispatch, **changed), origin="tests")
