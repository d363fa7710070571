"""100,000 enabled triggers, 50 due at every full second for a minute, two schedulers, nobody who takes the runs.

    python -m bench.triggers [--triggers 100000] [--per-second 50] [--seconds 60]

Lateness is from the due time to the commit of its run. The floor, in the same run: bare inserts of as many rows, in
one transaction at each full second, by one process through the same driver.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from bench.stage import Stage, database, servers, stage, stop

SCHEDULERS = 2
TASKS = 2_000
FLOOR_SECONDS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--triggers", type=int, default=100_000)
    parser.add_argument("--per-second", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    for server in servers():
        with stage(server) as place:
            print(f"{place.engine}: {options.triggers:,} triggers, {options.per_second} due a second")
            floor = floor_of(server, place, options.per_second)
            print(f"  floor     p50 {_at(floor, 0.5):6.1f} ms   p99 {_at(floor, 0.99):6.1f} ms", flush=True)
            found = ours(place, options.triggers, options.per_second, options.seconds)
            print(
                f"  lateness  p50 {found['p50']:6.1f} ms   p99 {found['p99']:6.1f} ms   max {found['max']:6.1f} ms"
                f"   p99 is {found['p99'] / _at(floor, 0.99):.1f} × the floor's"
            )
            print(
                f"  {found['runs']:,} of {found['expected']:,} due times started, {found['double']} twice,"
                f" {found['passes']:,} passes, {found['rows']:.1f} rows of triggers read per due trigger", flush=True
            )  # fmt: skip


def ours(place: Stage, triggers: int, per_second: int, seconds: int) -> dict[str, Any]:
    """Fills, runs the schedulers, and asks what came of it."""
    place.script("bench.triggers:fill", str(triggers), str(per_second * seconds))
    logs = [place.home / f"passes-{number}.json" for number in range(SCHEDULERS)]
    processes = [place.spawn("bench.triggers:schedule", str(log)) for log in logs]
    try:
        time.sleep(5)
        begin = int(time.time()) + 3
        place.script("bench.triggers:aim", str(begin), str(per_second))
        time.sleep(max(0, begin + seconds + 3 - time.time()))
    finally:
        for process in processes:
            stop(process)
    found: dict[str, Any] = json.loads(place.script("bench.triggers:judge", *map(str, logs)))
    return found


def fill(triggers: str, due: str) -> None:
    """Inside Django: tasks with places for all, triggers due tomorrow, and those that will be due in this bench."""
    from datetime import timedelta

    from django.db import connection

    from apps.core import bulk, clock, ids
    from apps.projects.policy import Grant
    from apps.tasks.services import TaskDraft, create_task
    from apps.triggers.models import Trigger

    grant = Grant.system("default", "task.create", "bench")
    tasks = [
        create_task(
            grant,
            TaskDraft(name=f"Task {n}", command=["/bin/true"], concurrency="parallel", max_parallel=1024),
        ).pk
        for n in range(TASKS)
    ]
    now = clock.now()
    columns = [field.attname for field in Trigger._meta.concrete_fields]
    made = [
        Trigger(
            id=ids.uuid7(), project_id="default", task_id=tasks[n % TASKS], timezone="Europe/Berlin",
            due_at=now + timedelta(days=1, seconds=n % 3_600), fire_at=now + timedelta(days=1, seconds=n % 3_600),
            author_type="system", author_id="bench", created_at=now, updated_at=now,
            **(
                {"kind": "cron", "schedule": f"{n % 60} {n % 24} * * *"}
                if n >= int(due)
                else {"kind": "interval", "every_ms": 3_600_000, "anchor_at": now}
            ),
        )
        for n in range(int(triggers))
    ]  # fmt: skip
    for start in range(0, len(made), 5_000):
        batch = made[start : start + 5_000]
        bulk.insert_rows(Trigger, columns, [[getattr(row, name) for name in columns] for row in batch])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def aim(begin: str, per_second: str) -> None:
    """Inside Django: the triggers of the bench become due, so many at each full second from `begin` on."""
    from apps.core import bulk, clock, wakeups
    from apps.core.db import write_transaction
    from apps.triggers import CHANNEL
    from apps.triggers.models import Trigger

    ids = list(Trigger.objects.filter(kind="interval").order_by("pk").values_list("pk", flat=True))
    rows = [
        (pk, *[clock.from_ms((int(begin) + number // int(per_second)) * 1000)] * 3)
        for number, pk in enumerate(ids)
    ]

    @write_transaction
    def store() -> None:
        bulk.update_rows(Trigger, ["id"], ["due_at", "fire_at", "anchor_at"], rows)
        wakeups.nudge(CHANNEL)

    store()


def schedule(log: str) -> None:
    """Inside Django: a scheduler as it always is, with a note of each pass."""
    from apps.dispatch import scheduler
    from apps.triggers import queries, scheduling

    passes: list[tuple[float, float, int]] = []
    read = 0
    fire, due = scheduling.fire_due, queries.due

    def noted(*args: Any, **options: Any) -> int:
        begun = time.time()
        handled = fire(*args, **options)
        if handled:
            passes.append((begun, time.time(), handled))
        return handled

    def counted(*args: Any) -> list[Any]:
        nonlocal read
        found = due(*args)
        read += len(found)
        return found

    scheduling.fire_due = noted
    queries.due = counted
    code = scheduler.run()
    Path(log).write_text(json.dumps({"passes": passes, "read": read}))
    sys.exit(code)


def judge(*logs: str) -> None:
    """Inside Django: matches runs with the passes that stored them."""
    from apps.runs.models import Run
    from apps.triggers.models import Trigger

    notes = [json.loads(Path(log).read_text()) for log in logs]
    passes = sorted((begun, ended) for note in notes for begun, ended, _handled in note["passes"])
    late, seen = [], set()
    rows = Run.objects.values_list("trigger_id", "scheduled_for", "created_at")
    for trigger_id, scheduled_for, created_at in rows:
        assert scheduled_for is not None
        at = created_at.timestamp()
        # A pass that others overlap may have stored it: the latest of them, to be on the safe side.
        ended = max(end for begun, end in passes if begun - 0.002 <= at <= end)
        late.append((ended - scheduled_for.timestamp()) * 1000)
        seen.add((trigger_id, scheduled_for))
    expected = Trigger.objects.filter(kind="interval").count()
    read = sum(note["read"] for note in notes)
    print(
        json.dumps({
            "p50": _at(late, 0.5), "p99": _at(late, 0.99), "max": max(late), "runs": len(seen), "expected": expected,
            "double": len(late) - len(seen), "passes": len(passes), "rows": read / expected,
        })
    )  # fmt: skip


def floor_of(server: str | None, place: Stage, per_second: int) -> list[float]:
    """Lateness of bare inserts, ms: a run, an attempt and two events for each due time."""
    with database(server) as url:
        connection: Any
        if url is None:
            connection = sqlite3.connect(place.home / "floor.sqlite3", isolation_level=None)
            connection.execute("PRAGMA journal_mode = WAL")
            mark = "?"
        else:
            connection = psycopg.connect(url, autocommit=True)
            mark = "%s"
        for table in ("run", "attempt", "event"):
            connection.execute(f"CREATE TABLE {table} (id text PRIMARY KEY, head text, at text, rest text)")
        late = []
        for second in range(FLOOR_SECONDS):
            due = int(time.time()) + 1
            time.sleep(due - time.time())
            cursor = connection.cursor()
            cursor.execute("BEGIN")
            for table, each in (("run", 1), ("attempt", 1), ("event", 2)):
                rows = [(f"{second}-{n}", "head", "2026", "x" * 200) for n in range(per_second * each)]
                cursor.executemany(f"INSERT INTO {table} VALUES ({', '.join([mark] * 4)})", rows)
            cursor.execute("COMMIT")
            late.append((time.time() - due) * 1000)
        connection.close()
        return late


def _at(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


if __name__ == "__main__":
    main()
