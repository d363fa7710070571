"""1,000 queued runs of /bin/true with log, receipt and full facts, on 2 sessions × 8 slots.

    python -m bench.throughput [--runs 1000] [--others]

The floor is a psycopg claim with SKIP LOCKED, one spawn and one settle per run, in two processes. `--others`
runs the same scripts through Procrastinate, and through Celery with the Redis of REDIS_URL, where installed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable

import psycopg

from bench import others
from bench.stage import Stage, database, servers, stage, stop

SESSIONS = 2
SLOTS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--others", action="store_true")
    options = parser.parse_args()
    server = os.environ.get("DATABASE_URL")
    if server is None:
        raise SystemExit("the floor needs a PostgreSQL server in DATABASE_URL")
    figures: dict[str, list[float]] = {}

    def measure(name: str, rate: Callable[[], float]) -> None:
        figures.setdefault(name, []).append(rate())
        print(f"{name:34} {figures[name][-1]:8.0f} runs/s", flush=True)

    for _round in range(options.rounds):
        measure("floor", lambda: floor(server, options.runs))
        for target in servers():
            measure("PostgreSQL" if target else "SQLite", lambda target=target: ours(target, options.runs))
        if options.others:
            for name, rate in others.available(server):
                measure(name, lambda rate=rate: rate(options.runs))
    print()
    for name, values in figures.items():
        ratios = sorted(value / base for value, base in zip(values, figures["floor"], strict=True))
        median = sorted(values)[len(values) // 2]
        print(f"{name:34} {median:8.0f} runs/s   {ratios[len(ratios) // 2]:.2f} of the floor (median)")


def floor(server: str, runs: int) -> float:
    """Runs per second of the least that could be called a queue."""
    with database(server) as url:
        assert url is not None
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE job (id bigserial PRIMARY KEY, state text, code int)")
            connection.execute("INSERT INTO job (state) SELECT 'queued' FROM generate_series(1, %s)", [runs])
            connection.execute("CREATE INDEX ON job (id) WHERE state = 'queued'")
        begun = time.monotonic()
        workers = [multiprocessing.Process(target=_floor_worker, args=(url,)) for _ in range(SESSIONS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return runs / (time.monotonic() - begun)


def _floor_worker(url: str) -> None:
    claim = (
        "UPDATE job SET state = 'running' WHERE id = (SELECT id FROM job WHERE state = 'queued' ORDER BY id"
        " LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id"
    )
    with psycopg.connect(url, autocommit=True, prepare_threshold=1) as connection:
        while (row := connection.execute(claim).fetchone()) is not None:
            code = subprocess.run(["/bin/true"], check=False).returncode
            connection.execute("UPDATE job SET state = 'done', code = %s WHERE id = %s", [code, row[0]])


def ours(server: str | None, runs: int) -> float:
    """Runs per second between the first lease and the last settled run."""
    with stage(server) as place:
        place.script("bench.throughput:enqueue", str(runs))
        # It is ready before the sessions are: what it takes to start is no part of what they do.
        watching = place.spawn("bench.throughput:watch", str(runs), stdout=subprocess.PIPE)
        assert watching.stdout is not None
        watching.stdout.readline()
        workers = [place.manage("worker", QINGLONG_SLOTS=str(SLOTS)) for _ in range(SESSIONS)]
        try:
            return float(watching.communicate()[0])
        finally:
            for worker in workers:
                stop(worker)


def enqueue(runs: str) -> None:
    """Inside Django: tasks with places for all, and the runs."""
    from apps.projects.policy import Grant
    from apps.runs.services import start_run
    from apps.tasks.services import TaskDraft, create_task

    draft = TaskDraft(name="true", command=["/bin/true"], concurrency="parallel", max_parallel=1024)
    create = Grant.system("default", "task.create", "bench")
    tasks = [create_task(create, draft) for _ in range(0, int(runs), 1000)]
    grant = Grant.system("default", "run.start", "bench")
    for number in range(int(runs)):
        start_run(grant, tasks[number % len(tasks)].pk, trigger_type="manual")


def watch(runs: str) -> None:
    """Inside Django: waits for the last run, checks all, prints the rate."""
    from django.db.models import Max, Min

    from apps.dispatch.models import RunDispatchLease
    from apps.runs.models import Run

    print("ready", flush=True)
    give_up = time.monotonic() + 300
    while Run.objects.filter(status__in=["queued", "dispatching", "running"]).exists():
        if time.monotonic() > give_up:
            raise SystemExit("the runs did not end")
        time.sleep(0.5)
    if Run.objects.filter(status="succeeded", version=8).count() != int(runs):
        raise SystemExit("some runs did not end as they should")
    span = RunDispatchLease.objects.aggregate(first=Min("acquired_at"), last=Max("completed_at"))
    print(int(runs) / (span["last"] - span["first"]).total_seconds())


__all__ = ["Stage", "enqueue", "floor", "main", "ours", "watch"]

if __name__ == "__main__":
    main()
