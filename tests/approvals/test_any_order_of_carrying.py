"""Create, decide, consume, claim, start, crash and recover in any order: at most one effect per approval, ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from apps.approvals import dispatching, recovery, snapshots
from apps.approvals.action_records import check_execution, check_receipt
from apps.approvals.actions.run_create import RunCreate
from apps.approvals.contract import ENDED, Held, Snapshot, holding
from apps.approvals.models import (
    ApprovalRequest,
    ApprovalVote,
    ApprovedActionDispatch,
    ApprovedActionExecution,
    ApprovedRunReceipt,
)
from apps.approvals.services import execution, manual
from apps.approvals.services.deciding import decisions
from apps.core import clock
from apps.core.errors import DomainError
from apps.projects import approval_policy
from apps.projects.models import ProjectRoleBinding
from apps.projects.policy import Grant
from apps.runs.models import Run
from apps.runs.services import Alone, start_run
from apps.tasks.models import Task
from apps.tasks.services import update_task
from tests import people
from tests.approvals import action_kit, kit
from tests.conftest import Time

UPDATE = Grant.system("default", "task.update", "tests")
REQUESTS = ("r-0", "r-1")
WORKERS = ("w-0", "w-1")
request_id = st.sampled_from(REQUESTS)
worker = st.sampled_from(WORKERS)

# How often what was reached: an order that leads nowhere shows nothing.
reached: dict[str, int] = {}


class Carrying(RuleBasedStateMachine):
    """Two dispatchers taken step by step, each may die anywhere, beside the real jobs and a person."""

    def __init__(self) -> None:
        super().__init__()
        decisions.clear()
        manual.recoveries.clear()
        self.atomic = transaction.atomic()
        self.atomic.__enter__()
        self.time = Time(1_790_000_000_000)
        self.clock = clock.fixed(self.time)
        self.clock.__enter__()
        self.cast = kit.cast()
        self.second = people.member("admin", "second")
        # It needs an approval whoever starts it, so that every run has stood at the door.
        self.task = kit.task(concurrency="parallel", max_parallel=4, requires_approval=True)
        self.hands: dict[str, Held] = {}
        self.behind: dict[str, Snapshot] = {}
        self.ended: dict[str, tuple[str, str | None]] = {}
        self.begun: dict[str, Any] = {}
        self.words = 0
        for id in REQUESTS:
            action_kit.handed_over(self.cast, self.task, id)

    def teardown(self) -> None:
        for row in ApprovedActionExecution.objects.all():
            reached[row.status] = reached.get(row.status, 0) + 1
            if row.status == "executing" and Run.objects.filter(idempotency_key=row.pk).exists():
                reached["died with a run"] = reached.get("died with a run", 0) + 1
        transaction.set_rollback(True)
        self.clock.__exit__(None, None, None)
        self.atomic.__exit__(None, None, None)

    def attempt(self, call: Callable[[], Any]) -> Any:
        """What it answers; None where it is refused, and then nothing of it stays."""
        try:
            with transaction.atomic():
                return call()
        except DomainError as error:
            reached[error.code] = reached.get(error.code, 0) + 1
            return None

    def dispatch_of(self, id: str) -> ApprovedActionDispatch | None:
        return ApprovedActionDispatch.objects.filter(approval_request=id).first()

    @rule(id=request_id, decision=st.sampled_from(["approved", "approved", "rejected"]))
    def ask_and_decide(self, id: str, decision: str) -> None:
        self.attempt(lambda: kit.filed(self.cast.agent, Task.objects.get(pk=self.task.pk), id))
        self.attempt(lambda: kit.decide(self.cast.admin, kit.verdict(id, decision=decision)))
        self.attempt(lambda: kit.decide(self.second, kit.verdict(id, decision_id=f"v-{id}")))
        found = ApprovalRequest.objects.filter(pk=id).first()
        if found is not None:
            self.attempt(lambda: action_kit.consumed(found))

    @rule(who=worker, id=request_id)
    def begin(self, who: str, id: str) -> None:
        self.claim(who, id)
        self.start(who)

    @rule(who=worker, id=request_id)
    def begin_act_and_die(self, who: str, id: str) -> None:
        self.begin(who, id)
        self.act(who)
        self.crash(who)

    @rule(who=worker, id=request_id, outcome=st.sampled_from(["succeeded", "failed", "indeterminate"]))
    def begin_and_end(self, who: str, id: str, outcome: str) -> None:
        self.begin(who, id)
        self.end(who, outcome)

    @rule(who=worker, id=request_id)
    def claim(self, who: str, id: str) -> None:
        dispatch = self.dispatch_of(id)
        if dispatch is None:
            return
        found = self.attempt(lambda: execution.claim(dispatch.pk, who, f"token-{who}", clock.now()))
        if found is not None and found.status == "claimed" and found.snapshot.execution.status == "leased":
            self.hands[who] = holding(found.snapshot.execution)

    @rule(who=worker)
    def start(self, who: str) -> None:
        held = self.hands.get(who)
        if held is None:
            return
        dispatch = ApprovedActionDispatch.objects.get(pk=held.subject.pk)
        found = self.attempt(
            lambda: execution.start(held, dispatch.approval_request_id, dispatch.action_digest, clock.now())
        )
        if found is not None:
            self.behind[who] = found
            self.hands[who] = holding(found.execution)

    @rule(who=worker)
    def give_back(self, who: str) -> None:
        if held := self.hands.get(who):
            at = clock.now()
            again = action_kit.later(1_000)
            self.attempt(lambda: execution.release_before_start(held, "x-1", "not_now", at, again))

    @rule(who=worker)
    def renew(self, who: str) -> None:
        if held := self.hands.get(who):
            found = self.attempt(lambda: execution.renew(held, clock.now()))
            if found is not None:
                self.hands[who] = holding(found.execution)

    @rule(who=worker)
    def act(self, who: str) -> None:
        """As often as it likes: whoever is behind the barrier may be slow, not twice as effective."""
        if found := self.behind.get(who):
            self.attempt(lambda: RunCreate().execute(found, found.dispatch.pk, holding(found.execution)))

    @rule(who=worker, outcome=st.sampled_from(["succeeded", "failed", "indeterminate"]))
    def end(self, who: str, outcome: str) -> None:
        if held := self.hands.get(who):
            self.words += 1
            word = f"e-{self.words}"
            self.attempt(lambda: execution.complete(held, word, outcome, "ended", clock.now()))

    @rule(who=worker)
    def crash(self, who: str) -> None:
        self.hands.pop(who, None)
        self.behind.pop(who, None)

    @rule()
    def dispatch(self) -> None:
        dispatching.dispatch_page("dispatcher:jobs")

    @rule()
    def recover(self) -> None:
        recovery.recover_page("reconciler:jobs")

    @rule(id=request_id, decision=st.sampled_from(["confirm_succeeded", "confirm_failed", "abandon_unknown"]))
    def by_hand(self, id: str, decision: str) -> None:
        dispatch = self.dispatch_of(id)
        if dispatch is None or snapshots.find(dispatch.pk) is None:
            return
        self.words += 1
        word = f"m-{self.words}"
        self.attempt(
            lambda: action_kit.close_by_hand(self.cast.admin, dispatch, mutation_id=word, decision=decision)
        )

    @rule(ms=st.sampled_from([1_000, 29_999, 30_000, 300_000]))
    def wait(self, ms: int) -> None:
        self.time.advance(ms)

    @rule(
        what=st.sampled_from(
            ["operator", "viewer", "nobody", "task", "task", "none", "none", "alone", "quorum"]
        )
    )
    def change(self, what: str) -> None:
        if what == "quorum":
            policy = approval_policy.of("default")
            self.attempt(
                lambda: kit.policy_of_project(self.cast.admin, policy.version, quorum=3 - policy.quorum)
            )
        elif what == "alone":
            self.start_alone()
        elif what == "task":
            task = Task.objects.get(pk=self.task.pk)
            env = {"N": str(task.version)}
            self.attempt(lambda: update_task(UPDATE, task.pk, task.version, {"env": env}))
        elif what != "none":
            version = ProjectRoleBinding.objects.filter(subject_id=self.cast.agent.id).count()
            role = None if what == "nobody" else what
            self.attempt(lambda: people.give(self.cast.agent, role, version=version + 1))

    def start_alone(self) -> None:
        """With the keys of dispatches, too, which anybody can work out."""
        who = people.grant(self.cast.admin, "run.start")
        before = Run.objects.count()
        for key in [None, *(one.pk for one in ApprovedActionDispatch.objects.all())]:
            for alone in (None, Alone(), Alone("it burns")):
                self.attempt(
                    lambda key=key, alone=alone: start_run(
                        who, self.task.pk, trigger_type="manual", idempotency_key=key, alone=alone
                    )
                )
        assert Run.objects.count() == before

    @invariant()
    def one_effect(self) -> None:
        dispatches = {
            one.pk: one for one in ApprovedActionDispatch.objects.select_related("approval_request")
        }
        assert len({one.approval_request_id for one in dispatches.values()}) == len(dispatches)
        keys = [run.idempotency_key for run in Run.objects.all()]
        assert len(set(keys)) == len(keys) and set(keys) <= dispatches.keys()
        receipts = {one.pk: check_receipt(one) for one in ApprovedRunReceipt.objects.all()}
        assert receipts.keys() == set(keys), "no run without its receipt, and none of it without a run"
        for key in keys:
            assert key is not None
            request = dispatches[key].approval_request
            assert (request.state, request.decision) == ("consumed", "approved")
            votes = ApprovalVote.objects.filter(request=request, decision="approved")
            voters = set(votes.values_list("voter_id", flat=True))
            assert request.decided_by_id in voters <= {self.cast.admin.subject_id, self.second.subject_id}
            assert len(voters) >= request.quorum and request.requested_by_id not in voters

    @invariant()
    def rows_are_sound(self) -> None:
        for row in ApprovedActionExecution.objects.all():
            check_execution(row)
            found = snapshots.find(row.pk)
            assert (found is not None) == (row.started_at is not None)
            if row.started_at is not None:
                assert self.begun.setdefault(row.pk, row.started_at) == row.started_at
            ended = (row.status, row.result_mutation_id)
            if row.pk in self.ended:
                assert self.ended[row.pk] == ended, "an end is an end"
            elif row.status in ENDED:
                self.ended[row.pk] = ended


@pytest.mark.django_db
def test_any_order_of_carrying() -> None:
    reached.clear()
    run_state_machine_as_test(
        Carrying,
        settings=settings(
            max_examples=30,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    for place in ("succeeded", "failed", "blocked", "executing", "died with a run"):
        assert reached.get(place), (place, reached)
    assert (
        reached["approved_action_dispatch_fence_rejected"]
        and reached["approved_action_recovery_fence_rejected"]
    )
