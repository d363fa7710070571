"""Run list and task list over 1,000,000 runs: time in the server and number of queries.

    python -m bench.lists [--runs 1000000]

The floor is the bare SQL of the same page through the same connection.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from bench.stage import servers, stage

REQUESTS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    options = parser.parse_args()
    for server in servers():
        with stage(server) as place:
            print(f"{place.engine}, {options.runs:,} runs", flush=True)
            place.script("bench.lists:fill", str(options.runs))
            print(place.script("bench.lists:measure"))


def fill(runs: str, count: str = "1000") -> None:
    """Inside Django: tasks and the runs, each with an attempt, over 400 days; a tenth failed."""
    from django.db import connection

    from apps.core import bulk, clock, ids
    from apps.projects.policy import Grant
    from apps.runs.models import Run, RunAttempt
    from apps.tasks.services import TaskDraft, create_task

    grant = Grant.system("default", "task.create", "bench")
    tasks = [
        create_task(grant, TaskDraft(name=f"Task {n}", command=["/bin/true"], labels=["nightly"]))
        for n in range(int(count))
    ]
    total, batch = int(runs), 5_000
    begin = clock.now_ms() - 400 * 86_400_000
    step = 400 * 86_400_000 // total
    columns = [
        "id", "project_id", "task_id", "task_revision", "task_name", "trigger_type", "execution_origin",
        "execution_owner", "triggered_by_type", "triggered_by_id", "status", "version", "event_sequence",
        "priority", "holds_place", "requires", "may_retry", "created_at", "queued_at", "started_at", "finished_at",
    ]  # fmt: skip
    for start in range(0, total, batch):
        run_rows, attempt_rows = [], []
        for number in range(start, min(start + batch, total)):
            task = tasks[number % len(tasks)]
            at = clock.from_ms(begin + number * step)
            status = "failed" if number % 10 == 0 else "succeeded"
            run_id = ids.uuid7()
            run_rows.append(
                (run_id, "default", task.pk, "1", task.name, "cron", "manual", "runtime", "system", "scheduler",
                 status, 8, 8, 0, False, "", False, at, at, at, at)
            )  # fmt: skip
            attempt_rows.append((ids.uuid7(), run_id, 1, status, "local_process", 1, at, at, at, 0))
        bulk.insert_rows(Run, columns, run_rows)
        bulk.insert_rows(
            RunAttempt,
            ["id", "run_id", "attempt", "status", "executor_type", "callback_sequence", "created_at", "started_at",
             "finished_at", "exit_code"],
            attempt_rows,
        )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def measure() -> None:
    """Inside Django: each page many times, by an owner with a token."""
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    client, headers = _owner(Client)
    first = client.get("/api/v3/projects/default/runs", headers=headers).json()
    deep = first["next_cursor"]
    for _ in range(40):
        page = client.get("/api/v3/projects/default/runs", {"cursor": deep}, headers=headers)
        deep = page.json()["next_cursor"]
    sql = "SELECT * FROM runs WHERE project_id = 'default' ORDER BY created_at DESC, id DESC LIMIT 51"
    floor = percentiles(lambda: bare(connection, sql))
    print(f"  {'bare SQL of the page':34} p50 {floor[0]:6.1f} ms  p95 {floor[1]:6.1f} ms")
    pages: list[tuple[str, dict[str, str]]] = [
        ("/api/v3/projects/default/runs", {}),
        ("/api/v3/projects/default/runs", {"cursor": deep}),
        ("/api/v3/projects/default/runs", {"status": "failed"}),
        ("/api/v3/projects/default/runs", {"task": "task-7"}),
        ("/api/v3/projects/default/runs", {"status": "running"}),
        ("/api/v3/projects/default/tasks", {}),
        ("/panel/p/default/runs/", {}),
        ("/panel/p/default/tasks/", {}),
        ("/panel/", {}),
    ]
    for path, query in pages:
        with CaptureQueriesContext(connection) as captured:
            answer = client.get(path, query, headers=headers)
        queries = len(captured)
        if answer.status_code != 200:
            print(f"  {path} {query}: {answer.status_code}")
            continue
        p50, p95 = percentiles(lambda path=path, query=query: client.get(path, query, headers=headers))
        name = path.removeprefix("/api/v3/projects/default") + ("?" + next(iter(query)) if query else "")
        print(
            f"  {name:34} p50 {p50:6.1f} ms  p95 {p95:6.1f} ms  {queries} queries  {p50 / floor[0]:.1f} × floor"
        )


def _owner(client_class: Any) -> tuple[Any, dict[str, str]]:
    from apps.access.scopes import ALL, Credential
    from apps.access.services import create_token, setup_first_account
    from apps.identity.principals import PolicySubject
    from apps.projects.services import console_issuer, issue_owner_bootstrap

    issued = issue_owner_bootstrap("default", console_issuer())
    user = setup_first_account(issued.challenge_id, issued.token, "bench", "a long pass phrase")
    owner = PolicySubject("user", user.subject_id)
    token = create_token(owner, name="bench", scopes=[ALL], maker=Credential("session"), origin="command")
    client = client_class(headers={"host": "localhost"})
    client.post("/panel/login/", {"username": "bench", "password": "a long pass phrase"})
    return client, {"Authorization": f"Bearer {token.secret}"}


def bare(connection: Any, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        cursor.fetchall()


def percentiles(call: Callable[[], Any]) -> tuple[float, float]:
    for _ in range(5):
        call()
    times = []
    for _ in range(REQUESTS):
        begun = time.perf_counter()
        call()
        times.append((time.perf_counter() - begun) * 1000)
    times.sort()
    return times[len(times) // 2], times[int(len(times) * 0.95)]


if __name__ == "__main__":
    main()
