"""Tasks, starts, workers and races, for tests of runs and dispatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from threading import Barrier
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from apps.core import clock
from apps.dispatch import candidates, leases
from apps.dispatch.fence import LeaseFence, WorkerFence
from apps.dispatch.leases import Outcome, Wanted
from apps.dispatch.models import Node, RunDispatchLease, Worker
from apps.dispatch.services import nodes, passes, workers
from apps.dispatch.services.passes import News, Stored
from apps.projects.policy import Grant
from apps.runs import services
from apps.runs.models import Run, RunAttempt, RunEvent
from apps.runs.services import writes
from apps.tasks.models import Task
from apps.tasks.services import TaskDraft, create_task

NODE = "a" * 32
TTL_MS = 20_000
TOKEN = "k" * 43


def grant(permission: str = "run.start", project: str = "default") -> Grant:
    return Grant.system(project, permission, "tests")


def task(name: str = "nightly", **options: Any) -> Task:
    """A task of the default project; a command that ends at once unless told otherwise."""
    if not {"command", "shell", "script"} & options.keys():
        options["command"] = ["true"]
    return create_task(
        grant("task.create", options.pop("project", "default")), TaskDraft(name=name, **options)
    )


def start(of: Task | UUID, **options: Any) -> Any:
    """What `start_run` answers."""
    task_id = of.pk if isinstance(of, Task) else of
    return services.start_run(
        options.pop("grant", None) or grant(), task_id, **{"trigger_type": "manual", **options}
    )


def run_of(task_: Task, **options: Any) -> Run:
    return start(task_, **options).run


def attempt_of(run: Run | UUID) -> RunAttempt:
    return RunAttempt.objects.filter(run_id=getattr(run, "pk", run)).order_by("-attempt")[0]


def fresh(run: Run | UUID) -> Run:
    return Run.objects.get(pk=getattr(run, "pk", run))


def events(run: Run | UUID) -> list[str]:
    rows = RunEvent.objects.filter(run_id=getattr(run, "pk", run)).order_by("sequence")
    return list(rows.values_list("type", flat=True))


def check_history(run: Run | UUID) -> None:
    """Version, sequence and the number of the newest event are one number, without a gap."""
    found = fresh(run)
    numbers = list(
        RunEvent.objects.filter(run_id=found.pk).order_by("sequence").values_list("sequence", flat=True)
    )
    assert numbers == list(range(1, found.version + 1))
    assert found.event_sequence == found.version


def worker(slot: int = 1, slots: int = 8, node: str = NODE) -> WorkerFence:
    return WorkerFence.of(workers.register(node, slot, slots, ["runs"]))


def claim(
    fence: WorkerFence, run: Run, *, token: str | None = None, ttl_ms: int = TTL_MS, store: bool = True
) -> Outcome:
    """Claims one attempt as the spec's single operation does, its event included."""
    now = clock.now()
    with transaction.atomic():
        current = fresh(run)
        attempt = attempt_of(run)
        row = Worker.objects.filter(pk=fence.worker_id).first()
        outcome = leases.claim(row, fence, [Wanted(current, attempt, token)], ttl_ms, now)[attempt.pk]
        if store and outcome.change is not None:
            writes.write_one(outcome.change, now)
    return outcome


def claimed(fence: WorkerFence, run: Run, **options: Any) -> LeaseFence:
    outcome = claim(fence, run, **options)
    assert outcome.result == "claimed" and outcome.fence is not None, outcome
    return outcome.fence


def advance(
    fence: WorkerFence, lease: LeaseFence, *, to: str = "running", timeout_ms: int | None = None
) -> Stored:
    """Brings a claimed attempt to `starting` or `running`, as a session does."""
    from apps.core import canonical

    done = passes.store(
        fence,
        News(
            ready=[
                passes.Ready(
                    lease,
                    passes.Prepared('{"boot_id":"b","pid":42,"start_ticks":1}', 42, "local-x",
                                    canonical.sha256(TOKEN), timeout_ms),
                )
            ],
            slots=8,
        ),
        TTL_MS,
    )  # fmt: skip
    if to == "running" and lease.attempt_id in done.go:
        done = passes.store(fence, News(begun=[passes.Begun(lease, clock.now())], slots=8), TTL_MS)
    return done


def finish(
    fence: WorkerFence,
    lease: LeaseFence,
    exit_code: int = 0,
    *,
    token: str = TOKEN,
    finished_at: datetime | None = None,
    **end: Any,
) -> Stored:
    """Settles a started attempt from a receipt."""
    from apps.dispatch.receipts import Receipt
    from apps.dispatch.services.completion import End

    at = clock.to_ms(finished_at) if finished_at else clock.now_ms()
    receipt = Receipt(str(lease.run_id), str(lease.attempt_id), 1, token, at, at, exit_code)
    return passes.store(fence, News(ended=[passes.Ended(lease, End(receipt, **end))], slots=8), TTL_MS)


def take(fence: WorkerFence, room: int) -> list[passes.Claimed]:
    """Claims the best candidates, as a session's pass does."""
    return passes.store(fence, News(room=room, slots=room), TTL_MS).claimed


def expire_now(lease: LeaseFence, now_ms: int | None = None) -> None:
    """Makes a lease and nothing else run out."""
    at = clock.now() if now_ms is None else clock.from_ms(now_ms)
    early = at - timedelta(milliseconds=1)
    RunDispatchLease.objects.filter(pk=lease.attempt_id).update(
        expires_at=at, acquired_at=early, renewed_at=early
    )


def candidate_runs(limit: int = 64) -> list[UUID]:
    return [found.run_id for found in candidates.page(clock.now(), limit=limit)]


def silence(node: str | None = None) -> None:
    """Nothing was heard of a node, or of any, for two minutes."""
    at = clock.now() - nodes.LOST_AFTER
    known = Node.objects.all() if node is None else Node.objects.filter(pk=node)
    Worker.objects.filter(node__in=known).update(last_heartbeat_at=at)
    known.update(last_heartbeat_at=at)


def holders(task_: Task) -> int:
    return Run.objects.filter(task=task_, holds_place=True).count()


def race(calls: Sequence[Callable[[], Any]], threads: int | None = None) -> list[Any]:
    """All calls at once, each on its own connection; an exception is a result like any other."""
    threads = threads or len(calls)
    barrier = Barrier(threads)

    def one(index: int) -> list[tuple[int, Any]]:
        results = []
        try:
            barrier.wait()
            for position in range(index, len(calls), threads):
                try:
                    results.append((position, calls[position]()))
                except Exception as error:
                    results.append((position, error))
        finally:
            connection.close()
        return results

    with ThreadPoolExecutor(threads) as pool:
        found = [pair for batch in pool.map(one, range(threads)) for pair in batch]
    return [result for _position, result in sorted(found, key=lambda pair: pair[0])]


@contextmanager
def thawed(table: str) -> Iterator[None]:
    """Lets a test write rows that the product never changes; for what only another version could have stored."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # A table with foreign keys to be checked at the end cannot be altered before they are.
            cursor.execute(f"SET CONSTRAINTS ALL IMMEDIATE; ALTER TABLE {table} DISABLE TRIGGER USER")
            yield
            cursor.execute(f"SET CONSTRAINTS ALL IMMEDIATE; ALTER TABLE {table} ENABLE TRIGGER USER")
            return
        cursor.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = %s", [table]
        )
        found = cursor.fetchall()
        for name, _sql in found:
            cursor.execute(f"DROP TRIGGER {name}")
        yield
        for _name, sql in found:
            cursor.execute(sql)
