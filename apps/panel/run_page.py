"""What the page of one run tells beside the run itself: its headline, its story, what it was given and left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _

from apps.core import clock
from apps.core.errors import DomainError
from apps.dispatch.queries import waiting_for
from apps.panel import advice, queries, stop_words, terminal, timeline, words
from apps.runs import queries as runs
from apps.runs.models import ACTIVE_ATTEMPT, PIN, Run, RunAttempt, RunEvent, RunHold
from apps.runs.payloads import open_input, open_output
from apps.runs.services import holds
from apps.tasks import queries as tasks
from apps.tasks.models import TaskExecutionRevision

BAD = ("failed", "timed_out", "lost")
SHOWN = 20_000


@dataclass(frozen=True)
class Stopping:
    """How far a stop has come: asked for, then told to the processes, then killed."""

    asked_at: datetime
    told_at: datetime | None
    kill_at: datetime | None


@dataclass(frozen=True)
class Story:
    """One run as its page shows it."""

    run: Run
    attempts: list[RunAttempt]
    steps: list[timeline.Step]
    sentence: str
    starter: str
    waits: str
    blocker: Run | None
    usual_ms: int | None
    took_ms: int | None
    late_ms: int | None
    proof: list[str]
    stopping: Stopping | None
    revision: TaskExecutionRevision | None
    reviser: str
    more_events: bool
    folded_at: datetime | None
    holds: list[RunHold]
    marks: dict[str, str] = field(default_factory=lambda: words.SYMBOLS)

    @property
    def pin(self) -> RunHold | None:
        """Somebody's wish that the run is kept."""
        return next((hold for hold in self.holds if hold.holder == PIN), None)

    @property
    def needed(self) -> bool:
        """Whether something else than a person still needs the run."""
        return any(hold.holder != PIN for hold in self.holds)

    @property
    def attempt(self) -> RunAttempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def ambiguous(self) -> bool:
        """Whether several attempts are under way: nobody touches them, and a person has to look."""
        return sum(attempt.status in ACTIVE_ATTEMPT for attempt in self.attempts) > 1

    @property
    def mark(self) -> str:
        """The state as one character, for the browser's tab."""
        return self.marks.get(self.run.status, "")

    @property
    def every_s(self) -> str:
        """How often the page asks again; `0` when nothing can happen any more."""
        if self.run.ended:
            return "0"
        return (
            "2" if self.run.status in ("running", "lost", "retry_wait") and self.stopping is None else "0.7"
        )


def story(run: Run) -> Story:
    """Everything but log and payloads, in a fixed number of queries."""
    attempts = runs.attempts(run.pk)
    folded = [] if attempts or not run.ended else runs.folded_attempts([run.pk]).get(run.pk, [])
    attempts = attempts or folded
    events = runs.events(run.pk, limit=runs.MAX_EVENTS)
    revision = TaskExecutionRevision.objects.filter(
        project_id=run.project_id, task_id=str(run.task_id), task_revision=run.task_revision
    ).first()
    reviser = revision.created_by_id if revision else ""
    people = queries.names([run.triggered_by_id, reviser, *(event.actor_id for event in events)])
    waits = waiting_for([run]).get(run.pk, "")
    begun, until = run.started_at, run.finished_at or (None if run.ended else clock.now())
    queued = run.queued_at or run.created_at
    return Story(
        run=run,
        attempts=attempts,
        steps=timeline.tell(run, events, people),
        sentence=stop_words.sentence(run, events, people)
        or words.run_sentence(
            run,
            exit_code=attempts[-1].exit_code if attempts else None,
            waiting_for=waits,
            again_at=runs.next_attempts([run]).get(run.pk),
        ),
        starter=people.get(run.triggered_by_id, ""),
        waits=waits,
        blocker=_blocker(run) if waits == "place" else None,
        usual_ms=runs.usual_durations([run.task_id]).get(run.task_id),
        took_ms=words.span_ms(begun, until) if begun and until else None,
        late_ms=words.span_ms(run.scheduled_for, queued) if run.scheduled_for else None,
        proof=next(
            (found for event in reversed(events) if (found := timeline.stop_proof(event.payload))), []
        ),
        stopping=_stopping(run, events),
        revision=revision,
        reviser=people.get(reviser, ""),
        more_events=len(events) == runs.MAX_EVENTS,
        folded_at=runs.folded_at(run.pk) if not events else None,
        holds=holds.of_run(run.pk),
    )


def _blocker(run: Run) -> Run | None:
    """The run that has the place this one waits for."""
    holding = Run.objects.filter(task_id=run.task_id, holds_place=True).exclude(pk=run.pk)
    return holding.order_by("id").first()


def _stopping(run: Run, events: Sequence[RunEvent]) -> Stopping | None:
    if run.cancel_requested_at is None or run.ended:
        return None
    told = next((event.created_at for event in events if event.type == "run.cancel_dispatched"), None)
    kill_at = None
    if told is not None:
        try:
            grace = tasks.revision(run.task, run.task_revision).revision.execution.kill_grace_ms
        except DomainError:
            grace = None
        kill_at = told + timedelta(milliseconds=grace) if grace is not None else None
    return Stopping(run.cancel_requested_at, told, kill_at)


@dataclass(frozen=True)
class Ending:
    """How a log ends, and what to do about a bad end."""

    last_line: str = ""
    advice: str = ""


def ending(run: Run, exit_code: int | None, tail: bytes) -> Ending:
    """For a run that ended badly: what its log said last, and a next step."""
    if run.status not in BAD:
        return Ending()
    timeout = None
    if run.status == "timed_out":
        try:
            timeout = tasks.revision(run.task, run.task_revision).revision.execution.timeout_ms
        except DomainError:
            timeout = None
    text = tail[-4096:].decode("utf-8", "replace")
    return Ending(terminal.last_line(tail), advice.for_run(run, exit_code, text, timeout_ms=timeout))


@dataclass(frozen=True)
class Payloads:
    """What a run was given and what it left, as text; `problem` where it cannot be opened."""

    input: str = ""
    args: tuple[str, ...] = ()
    output: str = ""
    problem: str = ""


def payloads(run: Run) -> Payloads:
    """Opens what is sealed; for eyes that may read the run's artifacts."""
    try:
        given, left = open_input(run), open_output(run)
    except DomainError as error:
        return Payloads(problem=_("It cannot be opened (%(code)s).") % {"code": error.code})
    return Payloads(_pretty(given.input), given.args, _pretty(left))


def _pretty(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, indent=2)[:SHOWN]
