"""Retention over a long past: how fast it removes and folds, and what starts pay for it meanwhile.

    python -m bench.retention [--runs 20000] [--files 20000] [--blocks 4] [--starts 40] [--whole]

Writes that many finished runs (attempt, lease, four events, a listed log; files for the first of them), all of them
due. Then, over one `up`, starts are measured in turns: while the jobs of retention rest, and while they work as
they always do, in bounded batches. The figure is p95 busy / p95 idle of the same run, at most 1.5. `--whole` goes on
until everything is gone, and checks that it is.
"""

from __future__ import annotations

import argparse
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from bench.latency import Client, free_port, percentiles, start, token
from bench.stage import Stage, servers, stage, stop

JOBS = ("artifacts.retain", "artifacts.fold_history")
BATCH = 20_000
AGE_DAYS = 200
SIZE = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--starts", type=int, default=40)
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    for server in servers():
        with stage(server) as place:
            measure(place, options)


def measure(place: Stage, options: Any) -> None:
    """Prints the figures of one engine."""
    port = free_port()
    up = place.manage("up", "--port", str(port))
    try:
        client = Client(port, token(place, port))
        task = client.call(
            "POST",
            "/projects/default/tasks",
            {"name": "true", "command": ["/bin/true"], "concurrency": "parallel", "max_parallel": 100},
        )
        start(client, task["slug"])
        place.script("bench.retention:rest")
        begun = time.monotonic()
        place.script("bench.retention:fill", str(options.runs), str(options.files))
        print(
            f"{place.engine}: {options.runs} finished runs written in {time.monotonic() - begun:.0f} s",
            flush=True,
        )
        for _ in range(5):
            start(client, task["slug"])
        idle, busy, spent = [], [], 0.0
        before = left(place)
        for _ in range(options.blocks):
            idle += [start(client, task["slug"]) for _ in range(options.starts)]
            place.script("bench.retention:work")
            began = time.monotonic()
            time.sleep(1)
            busy += [start(client, task["slug"]) for _ in range(options.starts)]
            spent += time.monotonic() - began
            place.script("bench.retention:rest")
        report(place, before, left(place), spent, idle, busy)
        if options.whole:
            finish(place)
    finally:
        stop(up)


def report(
    place: Stage,
    before: tuple[int, int],
    after: tuple[int, int],
    spent: float,
    idle: list[float],
    busy: list[float],
) -> None:
    """The ratio, and what went meanwhile."""
    at_rest, at_work = percentiles(idle), percentiles(busy)
    print(
        f"  start p50 {at_rest[0]:.1f} → {at_work[0]:.1f} ms, p95 {at_rest[1]:.1f} → {at_work[1]:.1f} ms while "
        f"retention works: {at_work[1] / at_rest[1]:.2f} (at most 1.5), {len(idle)} starts each"
    )
    logs, runs = before[0] - after[0], before[1] - after[1]
    print(
        f"  meanwhile, in {spent:.0f} s: {logs} logs removed ({logs / spent:.0f}/s), {runs} histories folded "
        f"({runs / spent:.0f}/s); {after[1]} left",
        flush=True,
    )


def left(place: Stage) -> tuple[int, int]:
    """Logs on the list, and runs with a history."""
    logs, runs = place.script("bench.retention:count").split()
    return int(logs), int(runs)


def finish(place: Stage) -> None:
    """Lets the jobs work until nothing is left of the past, and says how fast that goes without the pauses."""
    place.script("bench.retention:rest")
    print("  " + place.script("bench.retention:drain").strip(), flush=True)


def count() -> None:
    from apps.artifacts.models import StoredLog
    from apps.runs.models import RunAttempt

    logs, attempts = (rows.objects.filter(finished_at__lt=_long_ago()) for rows in (StoredLog, RunAttempt))
    print(logs.count(), attempts.count())


def rest() -> None:
    """Keeps the jobs from being due, and waits until none is at work."""
    from apps.core import clock
    from apps.core.models import ControlJob

    later = clock.now() + timedelta(days=30)
    while True:
        free = ControlJob.objects.filter(name__in=JOBS, lease_expires_at__isnull=True)
        if free.update(due_at=later) == len(JOBS):
            return
        time.sleep(0.1)


def work() -> None:
    """Makes the jobs due."""
    from apps.core import clock
    from apps.core.models import ControlJob

    ControlJob.objects.filter(name__in=JOBS).update(due_at=clock.now(), cursor={})


def drain() -> None:
    """Inside Django: batch upon batch, without a pause, until all is gone."""
    from apps.artifacts.models import ArtifactRetention, StoredLog
    from apps.artifacts.retention import history, sweep
    from apps.core.pace import Pace
    from apps.runs.models import RunAttempt, RunSummary

    held: dict[str, list[float]] = {}

    class Watched(Pace):
        def learn(self, kind: str, amount: int, seconds: float) -> None:
            held.setdefault(kind, []).append(seconds * 1000)
            super().learn(kind, amount, seconds)

    pace = Watched()
    old = StoredLog.objects.filter(finished_at__lt=_long_ago())
    begun, logs = time.monotonic(), old.count()
    while sweep.cycle(pace=pace).swept.status != "complete":
        pass
    removing = time.monotonic() - begun
    kept = old.count()
    begun, place, folded = time.monotonic(), None, 0
    while True:
        place, some = history.fold(place, pace)
        folded += some
        if place is None:
            break
    folding = time.monotonic() - begun
    attempts = RunAttempt.objects.filter(finished_at__lt=_long_ago()).count()
    print(
        f"to the end without pauses: {logs - kept} logs at {(logs - kept) / removing:.0f}/s, {folded} histories at "
        f"{folded / folding:.0f}/s; kept {kept} logs and {attempts} attempts, {RunSummary.objects.count()} summaries, "
        f"{ArtifactRetention.objects.count()} tombstones; a transaction kept others out for (ms, p50 / p95 / worst) "
        + ", ".join(
            f"{kind} {percentiles(each)[0]:.1f} / {percentiles(each)[1]:.1f} / {max(each):.1f}"
            for kind, each in held.items()
        )
    )


def _long_ago() -> Any:
    from apps.core import clock

    return clock.now() - timedelta(days=AGE_DAYS - 100)


def fill(runs: str, files: str) -> None:
    """Inside Django: the past, written by the database itself in batches."""
    from django.db import connection

    from apps.artifacts.models import StoredTotal
    from apps.dispatch.models import Worker
    from apps.tasks.models import Task

    task, worker = Task.objects.get(), Worker.objects.get()
    if connection.vendor == "sqlite":
        connection.ensure_connection()
        connection.connection.create_function("artifact", 2, _artifact)
    for first in range(0, int(runs), BATCH):
        _write(task, worker, first, min(BATCH, int(runs) - first))
    StoredTotal.objects.update_or_create(
        task_id=task.pk, defaults={"project_id": "default", "logs": int(runs), "bytes": SIZE * int(runs)}
    )
    _leave_files(int(files))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _artifact(run: str, attempt: str) -> str:
    from apps.artifacts import facts

    return facts.artifact_id(str(UUID(run)), str(UUID(attempt)))


def _leave_files(many: int) -> None:
    from django.conf import settings

    from apps.artifacts import facts
    from apps.artifacts.models import StoredLog

    for name in StoredLog.objects.order_by("finished_at")[:many].values_list("log_artifact_id", flat=True):
        path = Path(facts.log_paths(str(settings.LOG_ROOT), name).log)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(b"x" * SIZE)


def _write(task: Any, worker: Any, first: int, many: int) -> None:
    from django.db import connection

    from apps.core import clock
    from apps.core.db import write_transaction

    postgresql = connection.vendor == "postgresql"
    begun = clock.now() - timedelta(days=AGE_DAYS)

    def pk(kind: int, number: str) -> str:
        """An id of version 7 made of a number."""
        head = f"0190000000007000800{kind}"
        if postgresql:
            return f"('{head}' || lpad(to_hex({number}), 12, '0'))::uuid"
        return f"printf('{head}%%012x', {number})"

    if postgresql:
        series = f"generate_series({first}, {first + many - 1}) AS s(n)"
        at = f"(timestamptz '{begun.isoformat()}' + n * interval '10 ms')"
        later = f"({at} + interval '20 s')"
        text = [f"convert_to({pk(kind, 'n')}::text, 'UTF8')" for kind in (0, 1)]
        name = f"'local-' || left(encode(sha256({text[0]} || '\\x00'::bytea || {text[1]}), 'hex'), 30)"
        task_id = f"'{task.pk}'::uuid"
    else:
        series = (
            f"(WITH RECURSIVE s(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM s WHERE n < {first + many - 1}) "
            "SELECT n FROM s)"
        )
        base = begun.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
        at = f"strftime('%%Y-%%m-%%d %%H:%%M:%%f', '{base}', (n / 100.0) || ' seconds')"
        later = f"strftime('%%Y-%%m-%%d %%H:%%M:%%f', '{base}', (n / 100.0 + 20) || ' seconds')"
        name = f"artifact({pk(0, 'n')}, {pk(1, 'n')})"
        task_id = f"'{task.pk.hex}'"
    run, attempt = pk(0, "n"), pk(1, "n")
    rows: list[tuple[str, dict[str, str]]] = [
        (
            "runs",
            {
                "id": run, "project_id": "'default'", "task_id": task_id, "task_revision": "'1'", "task_name": "'true'",
                "trigger_type": "'cron'", "execution_origin": "'manual'", "execution_owner": "'runtime'",
                "triggered_by_type": "'system'", "triggered_by_id": "'scheduler'", "status": "'failed'", "version": "4",
                "event_sequence": "4", "priority": "0", "holds_place": "false", "requires": "''", "may_retry": "false",
                "created_at": at, "queued_at": at, "started_at": at, "finished_at": at,
            },
        ),
        (
            "run_attempts",
            {
                "id": attempt, "run_id": run, "attempt": "1", "status": "'failed'", "executor_type": "'local_process'",
                "callback_sequence": "1", "log_artifact_id": name, "created_at": at, "started_at": at,
                "finished_at": at, "exit_code": "1",
            },
        ),
        *(
            (
                "run_events",
                {
                    "id": pk(2, f"n * 4 + {sequence}"), "run_id": run, "sequence": str(sequence), "type": f"'{kind}'",
                    "actor_type": "'system'", "actor_id": "'bench'", "attempt_id": attempt, "payload": "'{}'",
                    "created_at": at,
                },
            )
            for sequence, kind in enumerate(("run.created", "run.queued", "attempt.started", "attempt.failed"), start=1)
        ),
        (
            "run_dispatch_leases",
            {
                "attempt_id": attempt, "run_id": run, "status": "'completed'", "version": "1", "lease_generation": "1",
                "worker_id": f"'{worker.pk}'", "worker_session_id": f"'{worker.session_id}'",
                "worker_generation": "1", "lease_token": "'bench-' || n", "acquired_at": at, "renewed_at": at,
                "expires_at": later, "completed_at": at, "updated_at": at,
            },
        ),
        (
            "artifact_stored_logs",
            {
                "attempt_id": attempt, "run_id": run, "project_id": "'default'", "task_id": task_id,
                "log_artifact_id": name, "finished_at": at, "succeeded": "false", "bytes": str(SIZE), "files": "1",
            },
        ),
    ]  # fmt: skip

    @write_transaction
    def store() -> None:
        with connection.cursor() as cursor:
            for table, columns in rows:
                names, values = ", ".join(columns), ", ".join(columns.values())
                cursor.execute(f"INSERT INTO {table} ({names}) SELECT {values} FROM {series}", [])

    store()


if __name__ == "__main__":
    main()
