"""Whatever happens in whatever order: an action is handed over at most once, and only as somebody else approved it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from django.db import transaction

from apps.approvals import jobs, queries, services
from apps.approvals.models import ApprovalLapse, ApprovalRequest, ApprovalVote
from apps.approvals.services.deciding import decisions
from apps.audit.models import AuditEntry
from apps.audit.queries import verify
from apps.identity.principals import PolicySubject
from apps.projects import approval_policy
from apps.projects.models import ProjectRoleBinding
from apps.projects.policy import Grant
from apps.runs.services import Alone, start_run
from apps.tasks.models import Task
from apps.tasks.services import clear_approval_mark, update_task
from apps.triggers import services as triggers
from tests import people
from tests.approvals import kit
from tests.conftest import Time

REQUESTS = ("r-0", "r-1", "r-2")
# How often each step comes: mostly what leads somewhere, else hardly any order would get as far as a dispatch.
STEPS = {
    "approve": 5, "vote": 4, "decide": 2, "consume": 4, "jobs": 2, "file": 1, "wait": 1, "change": 1, "switch": 1,
    "role": 1, "mark": 1, "start": 2, "quorum": 1, "withdraw": 1,
}  # fmt: skip
LENGTH = 14
UPDATE = Grant.system("default", "task.update", "tests")


class World:
    def __init__(self, time: Time) -> None:
        self.time = time
        self.cast = kit.cast()
        self.second = people.member("admin", "second")
        self.task = kit.task(requires_approval=True, concurrency="parallel", max_parallel=50)
        self.facts: dict[str, tuple[Any, ...]] = {}

    def now(self, id: str) -> tuple[Any, ...]:
        """All that a request stands on."""
        task = Task.objects.select_related("revision").get(pk=self.task.pk)
        who = ApprovalRequest.objects.get(pk=id).requested_by_id
        binding = ProjectRoleBinding.objects.filter(subject_id=who).order_by("-version")[0]
        return task.revision.task_revision, task.enabled, binding.version

    def step(self, name: str, chance: Random) -> None:
        before = {row.pk: row.state for row in ApprovalRequest.objects.all()}
        kit.outcome(lambda: getattr(self, name)(chance))
        for row in ApprovalRequest.objects.all():
            if row.pk not in before:
                self.facts[row.pk] = self.now(row.pk)
            elif row.state != before[row.pk]:
                assert name in ("approve", "vote", "decide", "consume", "jobs")
                assert self.now(row.pk) == self.facts[row.pk], (
                    "only what was asked for is decided and handed over"
                )
                assert not ApprovalLapse.objects.filter(pk=row.pk).exists()
        self.sound()

    def sound(self) -> None:
        dispatches = kit.dispatches()
        assert (
            len({one.approval_request_id for one in dispatches}) == len(dispatches) == len(kit.executions())
        )
        for one in dispatches:
            request = ApprovalRequest.objects.get(pk=one.approval_request_id)
            assert (request.state, request.decision, request.decided_by_type) == (
                "consumed",
                "approved",
                "user",
            )
            deciders = {self.cast.admin.subject_id, self.second.subject_id}
            votes = ApprovalVote.objects.filter(request=request, decision="approved")
            voters = set(votes.values_list("voter_id", flat=True))
            assert request.decided_by_id in voters <= deciders - {request.requested_by_id}
            assert len(voters) >= request.quorum
            assert request.requested_at <= request.decided_at <= one.created_at < request.expires_at
            assert one.action_digest == request.action_digest
        assert ApprovalRequest.objects.filter(state="consumed").count() == len(dispatches)
        assert AuditEntry.objects.filter(action="approval.consumed").count() == len(dispatches)
        for id in ApprovalRequest.objects.values_list("pk", flat=True):
            queries.examine(id)

    def file(self, chance: Random) -> None:
        life = chance.choice([kit.HOUR_MS, kit.HOUR_MS, 1])
        kit.filed(
            self.cast.agent, Task.objects.get(pk=self.task.pk), chance.choice(REQUESTS), expires_in_ms=life
        )

    def approve(self, chance: Random) -> None:
        kit.decide(
            self.cast.admin,
            kit.verdict(chance.choice(REQUESTS), decision_id=chance.choice(["d-1", "d-2", "d-3"])),
        )

    def vote(self, chance: Random) -> None:
        given = kit.verdict(chance.choice(REQUESTS), decision_id=chance.choice(["v-1", "v-2", "v-3"]))
        kit.decide(self.second, given)

    def quorum(self, chance: Random) -> None:
        version = approval_policy.of("default").version
        kit.policy_of_project(self.cast.admin, version, quorum=chance.choice([1, 2]))

    def mark(self, chance: Random) -> None:
        task = Task.objects.get(pk=self.task.pk)
        if task.requires_approval:
            clear_approval_mark(people.grant(self.cast.admin, "policy.manage"), task.pk, task.version)
        else:
            update_task(UPDATE, task.pk, task.version, {"requires_approval": True})

    def start(self, chance: Random) -> None:
        who = chance.choice([self.cast.admin, self.cast.operator])
        marked = Task.objects.get(pk=self.task.pk).requires_approval
        start_run(people.grant(who, "run.start"), self.task.pk, trigger_type="manual", alone=Alone())
        assert not marked, "nobody starts alone what needs an approval"

    def withdraw(self, chance: Random) -> None:
        services.withdraw(
            people.principal(self.cast.agent), chance.choice([*REQUESTS, "r-2", "r-2"]), origin="tests"
        )

    def decide(self, chance: Random) -> None:
        given = kit.verdict(
            chance.choice(REQUESTS), decision=chance.choice(["approved", "rejected"]),
            decision_id=chance.choice(["d-1", "d-2", "d-4"]), expected_version=chance.choice([1, 2]),
        )  # fmt: skip
        kit.decide(chance.choice([self.cast.admin, self.cast.operator, self.cast.agent, self.second]), given)

    def consume(self, chance: Random) -> None:
        request = ApprovalRequest.objects.get(pk=chance.choice(REQUESTS))
        services.consume(
            kit.consumption(
                request, consumption_id=chance.choice(["c-1", "c-2"]), dispatch_id=chance.choice(["x-1", "x-2"]),
                consumed_by=PolicySubject(chance.choice(["system", "worker", "user"]), "somebody"), expected_version=2,
            )
        )  # fmt: skip

    def wait(self, chance: Random) -> None:
        self.time.advance(chance.choice([1, kit.HOUR_MS - 1, kit.HOUR_MS]))

    def change(self, chance: Random) -> None:
        task = Task.objects.get(pk=self.task.pk)
        update_task(UPDATE, task.pk, task.version, {"env": {"N": str(task.version)}})

    def switch(self, chance: Random) -> None:
        task = Task.objects.get(pk=self.task.pk)
        triggers.set_task_enabled(UPDATE, task.pk, task.version, not task.enabled)

    def role(self, chance: Random) -> None:
        version = ProjectRoleBinding.objects.filter(subject_id=self.cast.agent.id).count()
        people.give(self.cast.agent, chance.choice(["operator", "viewer", None]), version=version + 1)

    def jobs(self, chance: Random) -> None:
        jobs.lapse({})
        jobs.consume({})


@pytest.mark.django_db
@pytest.mark.parametrize("seed", range(1, 5))
def test_any_order(time: Time, seed: int) -> None:
    chance = Random(seed)
    handed_over = lapsed = 0
    for _round in range(8):
        with transaction.atomic():
            decisions.clear()
            world = World(time)
            if _round % 2:
                kit.policy_of_project(world.cast.admin, quorum=2)
            for id in REQUESTS:
                kit.filed(world.cast.operator if id == "r-0" else world.cast.agent, world.task, id)
                world.facts[id] = world.now(id)
            for name in chance.choices(list(STEPS), list(STEPS.values()), k=LENGTH):
                world.step(name, chance)
            assert verify("default").valid
            handed_over += len(kit.dispatches())
            lapsed += ApprovalLapse.objects.count()
            transaction.set_rollback(True)
    assert handed_over and lapsed, "an order that leads nowhere shows nothing"
