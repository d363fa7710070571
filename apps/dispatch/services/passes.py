"""One pass of a session over everything it carries: what ended, began, is ready, and what comes next.

All of it is one transaction (architecture.md §2, runs.md §6.2, §6.5, §8.4): merging what would be four made the
loop a quarter faster, and every state a script reaches is on disk before the session acts on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from apps.artifacts import collection, tallies
from apps.artifacts.models import Artifact
from apps.core import bulk, clock
from apps.core.db import write_transaction
from apps.core.errors import Busy, DomainError
from apps.core.streams import Actor
from apps.dispatch import candidates, leases
from apps.dispatch.fence import LeaseFence, WorkerFence
from apps.dispatch.models import CompletionReceiptJournal
from apps.dispatch.services import completion, receipts, workers
from apps.dispatch.services.completion import End
from apps.runs import payloads
from apps.runs import queries as run_queries
from apps.runs.errors import AttemptConflict
from apps.runs.machine import Change
from apps.runs.models import ENDED, Run, RunAttempt
from apps.runs.retries import NEVER_STARTED, NEVER_STARTED_MAX, Retries
from apps.runs.services import places, retrying, writes


@dataclass(frozen=True)
class Prepared:
    """What must be on record of a shim and its script before that may get `go`."""

    handle: str
    pid: int
    log_artifact_id: str
    token_hash: str
    timeout_ms: int | None


@dataclass(frozen=True)
class Ready:
    """A shim that waits for `go`."""

    lease: LeaseFence
    prepared: Prepared


class Preparer(Protocol):
    """Readies a run that is about to be claimed, in memory and in its folder; None where that takes longer.

    `settled` are the attempts that end in the same pass: their shims are free as soon as it is stored.
    """

    def __call__(
        self, run: Run, attempt: RunAttempt, project: str, task: str, settled: Set[UUID]
    ) -> Prepared | None: ...


@dataclass(frozen=True)
class Begun:
    """A shim that has started its script."""

    lease: LeaseFence
    started_at: datetime


@dataclass(frozen=True)
class Ended:
    """A script that ended, with its receipt."""

    lease: LeaseFence
    end: End


@dataclass(frozen=True)
class Failed:
    """An attempt that could not be started; `code` is a fixed word, `lost` when something may have run."""

    lease: LeaseFence
    code: str
    lost: bool = False
    printed: tuple[str, ...] = ()


@dataclass
class News:
    """What a session wants stored, and for how many new runs it has room."""

    ended: list[Ended] = field(default_factory=list)
    begun: list[Begun] = field(default_factory=list)
    ready: list[Ready] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    returned: list[LeaseFence] = field(default_factory=list)
    unstarted: list[LeaseFence] = field(default_factory=list)
    consumed: list[UUID] = field(default_factory=list)
    room: int = 0
    slots: int = 0
    prepare: Preparer | None = None
    needs: candidates.Needs | None = None

    def leases(self) -> list[LeaseFence]:
        """The fences of everything but what is only removed."""
        found = [item.lease for item in self.ended]
        found += [item.lease for item in self.begun]
        found += [item.lease for item in self.ready]
        found += [item.lease for item in self.failed]
        return found + self.returned + self.unstarted

    def parts(self) -> list[News]:
        """What concerns each run, alone and without room for new ones."""
        found = [News(ended=[item], slots=self.slots) for item in self.ended]
        found += [News(begun=[item], slots=self.slots) for item in self.begun]
        found += [News(ready=[item], slots=self.slots) for item in self.ready]
        found += [News(failed=[item], slots=self.slots) for item in self.failed]
        found += [News(returned=[lease], slots=self.slots) for lease in self.returned]
        return found + [News(unstarted=[lease], slots=self.slots) for lease in self.unstarted]


@dataclass(frozen=True)
class Claimed:
    """A run that the session carries from now on."""

    run: Run
    attempt: RunAttempt
    lease: LeaseFence
    project: str = ""
    task: str = ""


@dataclass
class Stored:
    """What the pass came to, by attempt id: everything in `over` is no longer the session's.

    `never_ran` are those of them that are on record as never let go. `left`: the tasks whose runs gave up places.
    `again`: runs to be tried again at once. `more`: there may be something to take at once.
    """

    go: set[UUID] = field(default_factory=set)
    running: set[UUID] = field(default_factory=set)
    stopped: set[UUID] = field(default_factory=set)
    over: set[UUID] = field(default_factory=set)
    never_ran: set[UUID] = field(default_factory=set)
    settled: set[UUID] = field(default_factory=set)
    refused: dict[UUID, DomainError] = field(default_factory=dict)
    claimed: list[Claimed] = field(default_factory=list)
    left: set[UUID] = field(default_factory=set)
    again: list[UUID] = field(default_factory=list)
    more: bool = False


class SessionReplaced(Exception):
    """Another session is this worker now; nothing was stored."""


class Raced(Busy):
    """Something that was read under its lock was not as read: nothing is stored, the next pass sees it anew."""


def store(fence: WorkerFence, news: News, ttl_ms: int) -> Stored:
    """Stores a pass, then hands on the places that were left. Raises SessionReplaced, Raced.

    What another session took over meanwhile, or what a receipt cannot prove, is not written and named in the
    answer: the session lets go of the first and puts the receipt of the second aside.
    """
    stored = _store(fence, news, ttl_ms)
    stored.more |= places.hand_on(stored.left)
    for run_id in stored.again:
        stored.more |= retrying.decide(run_id)
    return stored


@write_transaction
def _store(fence: WorkerFence, news: News, ttl_ms: int) -> Stored:
    """Three rounds of statements: read, read for claims, write."""
    work = _Work(fence, clock.now(), news)
    with bulk.together():
        work.read()
        for step in (work.settle, work.fail, work.begin, work.start):
            step()
        work.claim(ttl_ms)
        work.write()
    return work.done


class _Work:
    """The rows of one pass, read and locked once, and the changes they are to get."""

    def __init__(self, fence: WorkerFence, now: datetime, news: News) -> None:
        self.fence = fence
        self.now = now
        self.news = news
        self.done = Stored()
        self.changes: list[Change] = []
        self.completed: list[LeaseFence] = []
        self.journal: list[tuple[Any, ...]] = []
        self.followers: list[RunAttempt] = []
        self.files: list[tuple[Any, ...]] = []
        self.faults: Counter[str] = Counter()
        self.rows: dict[UUID, tuple[Run, RunAttempt]] = {}
        self.held: set[UUID] = set()
        self.claims: dict[UUID, leases.Outcome] = {}

    def read(self) -> None:
        """Locks the worker, runs, leases, and candidates where there is room."""
        held = self.news.leases()
        worker = workers.touch_later(self.fence, self.news.slots, self.now)
        where, params = bulk.among(Run, "id", {lease.run_id for lease in held})
        runs = bulk.select_rows_later(Run, where, params, order="id", lock=True)
        where, params = bulk.among(RunAttempt, "id", [lease.attempt_id for lease in held])
        attempts = bulk.select_rows_later(RunAttempt, where, params)
        unreplaced = leases.unreplaced_later(held)
        room = min(self.news.room, candidates.MAX_PAGE)
        needs = self.news.needs if room else None
        taken = candidates.take_later(self.now, room, needs.fitting if needs else ()) if room else list
        learnt = needs.look_later() if needs else bool
        found = worker()
        if found is None:
            raise SessionReplaced
        self.worker = found
        by_id = {run.id: run for run in runs()}
        self.rows = {attempt.id: (by_id[attempt.run_id], attempt) for attempt in attempts()}
        settling = {item.lease.attempt_id for item in self.news.ended}
        self.held = {pk for pk, expires_at in unreplaced().items() if expires_at > self.now or pk in settling}
        self.done.over.update(lease.attempt_id for lease in held if lease.attempt_id not in self.held)
        self.taken = taken() if found.status == "online" else []
        self.done.more |= learnt()

    def settle(self) -> None:
        ended = self._mine(self.news.ended)
        policies = self._policies(ended)
        for item in ended:
            run, attempt = self.rows[item.lease.attempt_id]
            try:
                change = completion.apply(run, attempt, item.end, self.now, policies.get(run.id))
            except DomainError as error:
                self.done.refused[attempt.id] = error
                continue
            if change is not None and change.next_attempt_at is not None:
                if change.next_attempt_at <= self.now:
                    self.done.again.append(run.id)
            elif change is not None and item.end.has_output:
                self._keep_output(run, item.end.output)
            if change is not None and item.end.files is not None:
                self.files += collection.rows(run, attempt, item.end.files, self.now)
            if change is not None and item.end.log is not None:
                self.faults.update(tallies.OF_LOG[fault] for fault in item.end.log)
            self._finish(item.lease, change)
            self.done.settled.add(attempt.id)

    def _policies(self, ended: Sequence[Ended]) -> dict[UUID, Retries]:
        """What may be tried again of what failed; no query where nothing that failed has a policy."""
        failed = [self.rows[item.lease.attempt_id] for item in ended if item.end.receipt.exit_code != 0]
        return retrying.load(pair for pair in failed if pair[0].cancel_requested_at is None)

    def fail(self) -> None:
        for item in self._mine(self.news.failed):
            run, attempt = self.rows[item.lease.attempt_id]
            change = Change(run, attempt)
            if item.lost:
                actor = Actor("reconciler", self.fence.worker_id)
                change.tell_printed(item.printed, actor)
                completion.lose(change, self._at(run, attempt), item.code, actor)
            else:
                completion.fail_start(change, self._at(run, attempt), item.code, self.fence.worker_id)
                self.done.never_ran.add(attempt.id)
            self._finish(item.lease, change)
        for lease in self._mine(self.news.returned):
            run, attempt = self.rows[lease.attempt_id]
            self.changes.append(_returned(run, attempt, lease, "start_failed"))
            self.done.over.add(lease.attempt_id)
        for lease in self._mine(self.news.unstarted):
            self._start_anew(lease)

    def _start_anew(self, lease: LeaseFence) -> None:
        run, attempt = self.rows[lease.attempt_id]
        change = Change(run, attempt)
        at = self._at(run, attempt)
        actor = Actor("reconciler", self.fence.worker_id)
        if run.cancel_requested_at is not None:
            completion.fail_start(change, at, NEVER_STARTED, self.fence.worker_id)
        elif self._never_started(attempt) >= NEVER_STARTED_MAX:
            completion.lose(change, at, NEVER_STARTED, actor)
        else:
            self.followers.append(completion.requeue(change, at, actor))
            self.done.more = True
        self._finish(lease, change)
        self.done.never_ran.add(attempt.id)

    def _never_started(self, attempt: RunAttempt) -> int:
        """How many attempts of the run were never let go, this one included."""
        if attempt.attempt < NEVER_STARTED_MAX:
            return attempt.attempt
        before = RunAttempt.objects.filter(run_id=attempt.run_id, error_code=NEVER_STARTED)
        return before.count() + 1

    def begin(self) -> None:
        for item in self._mine(self.news.begun):
            run, attempt = self.rows[item.lease.attempt_id]
            change = Change(run, attempt)
            if run.status not in ENDED:
                completion.begin(change, max(run.created_at, attempt.created_at, item.started_at))
                self.changes.append(change)
            self.done.running.add(attempt.id)

    def start(self) -> None:
        for item in self._mine(self.news.ready):
            run, attempt = self.rows[item.lease.attempt_id]
            if run.cancel_requested_at is not None:
                # It gets no `go`; the next pass ends it.
                self.done.stopped.add(attempt.id)
                continue
            change = Change(run, attempt)
            self._let_go(change, attempt, item.prepared, item.lease)
            self.changes.append(change)

    def _let_go(self, change: Change, attempt: RunAttempt, item: Prepared, lease: LeaseFence) -> None:
        run = change.run
        at = self._at(run, attempt)
        change.move_attempt(
            "starting", at, Actor("worker", self.fence.worker_id), executor_handle=item.handle, pid=item.pid,
            worker_id=self.fence.worker_id, log_artifact_id=item.log_artifact_id,
            deadline_at=at + timedelta(milliseconds=item.timeout_ms) if item.timeout_ms else None,
            callback_token_hash=item.token_hash, payload={"lease_generation": lease.lease_generation},
        )  # fmt: skip
        node_id = self.fence.worker_id.partition(":")[0]
        self.journal.append((attempt.id, run.id, node_id, "pending", self.now, self.now))
        self.done.go.add(attempt.id)

    def claim(self, ttl_ms: int) -> None:
        """Ended ones make room for their successors in the very same pass."""
        leases.complete_later(self.completed, self.now)
        if not self.taken:
            return
        where, params = bulk.among(Run, "id", self.taken)
        runs = bulk.select_rows_later(Run, where, params)
        where, params = bulk.among(RunAttempt, "run_id", self.taken)
        attempts = bulk.select_rows_later(RunAttempt, f"{where} AND status = 'claimed'", params)
        seen = leases.look(self.fence.worker_id, self.taken, self.now)
        slugs = run_queries.slugs_later(self.taken)
        by_id = {run.id: run for run in runs()}
        by_run = {attempt.run_id: attempt for attempt in attempts()}
        wanted = [leases.Wanted(by_id[pk], by_run[pk]) for pk in self.taken if pk in by_id and pk in by_run]
        self.claims = leases.plan_claims(self.worker, self.fence, wanted, seen, ttl_ms, self.now)
        names = slugs()
        for want in wanted:
            outcome = self.claims[want.attempt.id]
            if outcome.fence is None or outcome.change is None:
                continue
            names_of = names[want.run.task_id]
            self.changes.append(outcome.change)
            self.done.claimed.append(Claimed(want.run, want.attempt, outcome.fence, *names_of))
            if self.news.prepare is None:
                continue
            prepared = self.news.prepare(want.run, want.attempt, *names_of, self.done.settled)
            if prepared is not None:
                self._let_go(outcome.change, want.attempt, prepared, outcome.fence)
        self.done.more |= len(self.done.claimed) == self.news.room

    def write(self) -> None:
        """Stores everything at once; each run was read under its lock, so that all must still be as read."""
        claimed = leases.store_claims(self.claims, self.now)
        check = writes.write_locked(self.changes, self.now)
        returned = [lease for lease in self.news.returned if lease.attempt_id in self.held]
        leases.release_later(returned, "start_failed", self.now)
        bulk.insert_rows(
            RunAttempt,
            ["id", "run_id", "attempt", "status", "callback_sequence", "executor_type", "created_at"],
            [(a.id, a.run_id, a.attempt, a.status, 0, a.executor_type, a.created_at) for a in self.followers],
        )
        bulk.insert_rows(
            CompletionReceiptJournal,
            ["attempt_id", "run_id", "node_id", "state", "registered_at", "updated_at"],
            self.journal,
        )
        bulk.insert_rows(Artifact, collection.COLUMNS, self.files)
        tallies.add_later(self.faults, self.now)
        receipts.resolve(self.news.consumed)
        try:
            check()
        except AttemptConflict as error:
            raise Raced from error
        if len(claimed()) != len(self.done.claimed):
            raise Raced

    def _keep_output(self, run: Run, output: Any) -> None:
        try:
            run.output_ref = payloads.seal_output(run, output)
        except DomainError:
            # Without its key the output is gone; the end it came with is not.
            run.output_code = "output_not_sealed"

    def _finish(self, lease: LeaseFence, change: Change | None) -> None:
        if change is not None:
            self.changes.append(change)
            self.done.left.add(change.run.task_id)
        self.completed.append(lease)
        self.done.over.add(lease.attempt_id)

    def _mine(self, items: Sequence[Any]) -> list[Any]:
        return [item for item in items if getattr(item, "lease", item).attempt_id in self.held]

    def _at(self, run: Run, attempt: RunAttempt) -> datetime:
        return not_before(run, attempt, self.now)


def not_before(run: Run, attempt: RunAttempt, at: datetime) -> datetime:
    """`at`, or the newest time already on record where the clock stepped back behind it."""
    known = (run.created_at, attempt.created_at, run.started_at, attempt.started_at)
    return max([at, *(time for time in known if time is not None)])


def _returned(run: Run, attempt: RunAttempt, lease: LeaseFence, reason: str) -> Change:
    change = Change(run, attempt)
    if run.status == "dispatching":
        payload = {
            "attempt_id": str(attempt.id),
            "lease_generation": lease.lease_generation,
            "reason": reason,
        }
        key = f"run-dispatch:{attempt.id}:{lease.lease_generation}:released"
        change.tell("run.dispatch_released", Actor("worker", lease.worker.worker_id), payload, key)
    return change
