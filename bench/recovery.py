"""What a crash costs: a session killed behind an end, a session that stands still, scripts to be adopted.

    python -m bench.recovery [--kills 20] [--frozen 3] [--scripts 200]

The first two are measured with `up`, from the fault (or, later, the script's end) to the settled run over the API;
the floor is an empty API call (GET /me). Adoption is measured in one session's rows: from its registration to the
last lease it took over.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.latency import Client, free_port, percentiles, timed, token
from bench.stage import Stage, servers, stage, stop

KILLED_LIMIT_S = 2.0
FROZEN_LIMIT_S = 15.0
ADOPTED_LIMIT_S = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--frozen", type=int, default=3)
    parser.add_argument("--scripts", type=int, default=200)
    options = parser.parse_args()
    for server in servers():
        with stage(server) as place:
            faults(place, options.kills, options.frozen)
        with stage(server) as place:
            adoption(place, options.scripts)


def faults(place: Stage, kills: int, frozen: int) -> None:
    """Prints what a killed and a frozen session cost, on one engine."""
    port = free_port()
    up = place.manage("up", "--port", str(port))
    try:
        client = Client(port, token(place, port))
        empty = percentiles([timed(lambda: client.call("GET", "/me")) for _ in range(50)])
        task = client.call("POST", "/projects/default/tasks", {"name": "short", "shell": "sleep 0.3"})
        node = place.home / "node"
        print(f"{place.engine}: empty call p50 {empty[0]:.1f} ms")
        killed = sorted(_killed(client, node, task["slug"]) for _ in range(kills))
        if killed:
            p95 = percentiles(killed)[1]
            print(
                f"  session killed behind its script's end → settled p50 {percentiles(killed)[0]:.2f} s,"
                f" p95 {p95:.2f} s, worst {killed[-1]:.2f} s (limit {KILLED_LIMIT_S:g} s)"
            )
        stood = sorted(_frozen(client, node, task["slug"]) for _ in range(frozen))
        if stood:
            print(
                f"  session frozen, its script ends → settled {', '.join(f'{s:.1f}' for s in stood)} s"
                f" (limit {FROZEN_LIMIT_S:g} s)"
            )
    finally:
        stop(up)


def _killed(client: Client, node: Path, slug: str) -> float:
    """Seconds from `kill -9` of a session, whose script has left its receipt, to the settled run."""
    run, pids = _held_up(client, node, slug)
    begun = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return _settled(client, run, begun)


def _frozen(client: Client, node: Path, slug: str) -> float:
    """Seconds from the receipt of a script, whose session stands still, to the settled run."""
    run, _pids = _held_up(client, node, slug)
    return _settled(client, run, time.monotonic())


def _held_up(client: Client, node: Path, slug: str) -> tuple[str, list[int]]:
    """A run whose session was stopped while its script ran, and whose receipt is there now."""
    run = client.call("POST", f"/projects/default/tasks/{slug}/runs", {})["id"]
    _until(lambda: client.call("GET", f"/runs/{run}")["started_at"])
    pids = sessions(node)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    attempt = client.call("GET", f"/runs/{run}/attempts")["items"][-1]["id"]
    _until(lambda: list((node / "receipts").glob(f"*/{attempt}.json")))
    return run, pids


def _settled(client: Client, run: str, begun: float) -> float:
    found = _until(lambda: _ended(client.call("GET", f"/runs/{run}")))
    took = time.monotonic() - begun
    if found["status"] != "succeeded" or found["attempt_count"] != 1:
        raise SystemExit(f"not settled from its receipt: {found['status']} {found['error_code']}")
    return took


def _ended(run: Any) -> Any:
    return run if run["finished_at"] is not None else None


def adoption(place: Stage, scripts: int) -> None:
    """Prints how long one session takes to adopt many live scripts, on one engine."""
    worker = place.manage("worker", QINGLONG_SLOTS=str(scripts))
    place.script("bench.recovery:start", str(scripts))
    try:
        _wait_for_rows(place, lambda rows: rows["running"] == scripts)
        worker.kill()
        worker.wait()
        worker = place.manage("worker", QINGLONG_SLOTS=str(scripts))
        rows = _wait_for_rows(place, lambda rows: rows["adopted"] == scripts)
        print(
            f"{place.engine}: {scripts} live scripts adopted in {rows['seconds']:.2f} s (limit {ADOPTED_LIMIT_S:g} s)"
        )
    finally:
        worker.kill()
        worker.wait()
        for pid in json.loads(place.script("bench.recovery:shims")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def _wait_for_rows(place: Stage, enough: Callable[[Any], bool]) -> Any:
    return _until(
        lambda: (rows := json.loads(place.script("bench.recovery:rows"))) and enough(rows) and rows, 120
    )


def start(count: str) -> None:
    """Inside Django: a task and its runs."""
    from apps.projects.policy import Grant
    from apps.runs.services import start_run
    from apps.tasks.services import TaskDraft, create_task

    grant = Grant.system("default", "task.create", "bench")
    task = create_task(
        grant, TaskDraft(name="long", command=["sleep", "300"], concurrency="parallel", max_parallel=1000)
    )
    for _ in range(int(count)):
        start_run(Grant.system("default", "run.start", "bench"), task.pk, trigger_type="manual")


def rows() -> None:
    """Inside Django: how far sessions and their leases are."""
    from apps.dispatch.models import RunDispatchLease, Worker
    from apps.runs.models import Run

    worker = Worker.objects.first()
    leases = RunDispatchLease.objects.filter(status="leased", lease_generation__gt=1)
    last = leases.order_by("-acquired_at").first()
    seconds = (last.acquired_at - worker.registered_at).total_seconds() if last and worker else 0
    print(json.dumps({
        "running": Run.objects.filter(status="running").count(), "adopted": leases.count(), "seconds": seconds,
    }))  # fmt: skip


def shims() -> None:
    """Inside Django: the pids of all shims."""
    from apps.runs.models import RunAttempt

    print(json.dumps(list(RunAttempt.objects.filter(pid__isnull=False).values_list("pid", flat=True))))


def sessions(node: Path) -> list[int]:
    """Pids of the living sessions of a node, by the locks of their places."""
    wanted = {path.stat().st_ino for path in (node / "workers").glob("*.lock")}
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return [
        int(fields[4])
        for fields in lines
        if fields[1] == "FLOCK" and fields[3] == "WRITE" and int(fields[5].rpartition(":")[2]) in wanted
    ]


def _until(look: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > end:
            raise SystemExit("waited in vain")
        time.sleep(0.01)
    return found


if __name__ == "__main__":
    main()
