"""What the page of one request tells beside the request itself: what exactly would happen, and what became of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from apps.approvals import plans, queries, registry
from apps.approvals.contract import RECOVERY_REQUIRED
from apps.approvals.models import ApprovedActionPlan
from apps.approvals.queries import Seen, SeenExecution
from apps.approvals.services.lapsing import OPEN
from apps.approvals.voting import Tally, Vote
from apps.core import clock
from apps.core.errors import DomainError, NotFound
from apps.panel import approval_words, differences, terminal
from apps.panel.differences import Difference
from apps.panel.queries import names
from apps.panel.task_form import TaskForm
from apps.projects import approval_policy
from apps.projects.approval_policy import ApprovalPolicy
from apps.tasks import queries as tasks

SHOWN_DECIDERS = 5


@dataclass(frozen=True)
class Given:
    """Input and arguments word for word; `problem` where they cannot be shown."""

    input: str = field(default="", repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    problem: str = ""


@dataclass(frozen=True)
class Script:
    """What the run would execute: the pinned revision, and what differs from the one that was approved last."""

    form: TaskForm
    differences: list[Difference]
    approved: str | None
    hides: bool

    @property
    def first(self) -> bool:
        """Whether nothing of this task was approved before."""
        return self.approved is None


@dataclass(frozen=True)
class ShownVote:
    """A vote as the page shows it."""

    vote: Vote
    name: str
    reason: str


@dataclass(frozen=True)
class Facts:
    """A request as its page shows it. Facts come from the sealed plan, never from live rows."""

    seen: Seen
    plan: ApprovedActionPlan | None
    preview: Mapping[str, Any]
    script: Script | None
    execution: SeenExecution | None
    people: Mapping[str, str]
    sentence: str
    policy: ApprovalPolicy
    tally: Tally

    @property
    def open(self) -> bool:
        """Whether somebody can still decide."""
        return self.seen.status == "pending"

    @property
    def soon(self) -> bool:
        """Whether time runs out, by the minutes of the project's policy."""
        left = self.seen.request.expires_at - clock.now()
        return self.seen.status in OPEN and left <= timedelta(minutes=self.policy.remind_before_minutes)

    @property
    def every_s(self) -> str:
        """How often the page asks again; `0` when nothing can happen any more."""
        if self.open:
            return "5"
        ended = self.execution is not None and self.execution.status in ("succeeded", "failed", "blocked")
        return "0" if ended or self.seen.status in ("rejected", "expired", "void", "withdrawn") else "1"

    @property
    def several(self) -> bool:
        """Whether more than one person must approve, or had to."""
        return self.tally.needed > 1

    @property
    def missing(self) -> int:
        """How many more must approve."""
        return max(self.tally.needed - self.tally.given, 0)

    @property
    def votes(self) -> list[ShownVote]:
        """What each said, in their order, with their names."""
        return [
            ShownVote(vote, self.name(vote.voter_id), approval_words.reason(vote.reason_code))
            for vote in self.tally.votes
        ]

    @property
    def withdrawable(self) -> bool:
        """Whether who asked may still take it back."""
        kind = registry.TYPES.get(self.seen.request.action_type)
        return self.open and kind is not None and kind.withdrawable

    @property
    def for_people(self) -> bool:
        """Whether a person has to say, or may say, what became of it."""
        return self.execution is not None and self.execution.status == RECOVERY_REQUIRED

    def name(self, subject_id: str | None) -> str:
        """A person or an application by name, else the id."""
        return self.people.get(subject_id or "", subject_id or "")

    @property
    def requester(self) -> str:
        return self.name(self.seen.request.requested_by_id)

    @property
    def decider(self) -> str:
        return self.name(self.seen.request.decided_by_id)

    @property
    def closer(self) -> str:
        """Who closed it by hand."""
        return self.name(_closed_by(self.execution))

    @property
    def risk(self) -> str:
        return str(approval_words.RISKS[self.seen.request.risk])

    @property
    def decision_reason(self) -> str:
        return approval_words.reason(self.seen.request.decision_reason_code)


def facts(request_id: str, *, whole: bool) -> Facts:
    """Everything but input and arguments; without `whole` only what the live part shows. Raises what queries raise."""
    seen = queries.examine(request_id)
    row = seen.request
    plan = queries.plan_of(row)
    execution = queries.execution_of(row.pk) if row.state == "consumed" else None
    closed = _closed_by(execution)
    tally = queries.tally_of(row)
    return Facts(
        seen=seen,
        plan=plan,
        preview=(plans.preview_of(plan) if plan else None) or {},
        script=_script(plan) if plan and whole else None,
        execution=execution,
        people=names([row.requested_by_id, row.decided_by_id, closed, *(v.voter_id for v in tally.votes)]),
        sentence=approval_words.sentence(seen, execution),
        policy=approval_policy.of(row.project_id),
        tally=tally,
    )


def given(plan: ApprovedActionPlan) -> Given:
    """Input and arguments; who sees them is the caller's matter."""
    try:
        found = plans.given_of(plan)
    except DomainError as refusal:
        return Given(problem=str(refusal.detail))
    if found is None:
        return Given(problem=approval_words.lapse("input_changed"))
    text = "" if found.input is None else json.dumps(found.input, ensure_ascii=False, indent=2)
    return Given(terminal.visible(text), tuple(terminal.visible(arg) for arg in found.args))


def deciders(policy: ApprovalPolicy, requester: str, but: Iterable[str] = ()) -> list[str]:
    """Names of people who may decide about what `requester` asked for, at most SHOWN_DECIDERS; two queries.

    Without those of `but`, who said already what they think.
    """
    able = approval_policy.possible_deciders(policy)
    others = {requester, *but}
    return sorted(names([pk for pk in able if pk not in others][:SHOWN_DECIDERS]).values())


def _script(plan: ApprovedActionPlan) -> Script | None:
    try:
        task = tasks.find(plan.project_id, plan.task_id)
        form = TaskForm.of_revision(tasks.revision(task, plan.task_revision))
        approved = queries.last_approved_revision(plan)
        found = []
        if approved is not None and approved != plan.task_revision:
            found = differences.between(TaskForm.of_revision(tasks.revision(task, approved)), form)
    except NotFound:
        return None
    words = (form.text, form.values["before"], form.values["after"], form.values["args"])
    return Script(form, found, approved, any(terminal.hides(word) for word in words))


def _closed_by(execution: SeenExecution | None) -> str | None:
    control = getattr(execution.execution, "control", None) if execution else None
    resolution = getattr(control, "resolution", None)
    return resolution.resolved_by_id if resolution else None
