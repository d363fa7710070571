"""API stop → the script's process tree is empty, with a live session and a script that obeys TERM.

    python -m bench.stop [--stops 40]

The end is the receipt's, written once nothing of the tree is left. The floor is an empty API call (GET /me) over the
same connection; `in the shim` is the part from TERM to the last process.
"""

from __future__ import annotations

import argparse
import time
from datetime import datetime
from typing import Any

from bench.latency import Client, free_port, percentiles, timed, token
from bench.stage import Stage, servers, stage, stop

# A shell and two children: three processes, none of which minds the signal.
SCRIPT = "sleep 300 & sleep 300 & wait"
LIMIT_MS = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stops", type=int, default=40)
    options = parser.parse_args()
    for server in servers():
        with stage(server) as place:
            measure(place, options.stops)


def measure(place: Stage, stops: int) -> None:
    """Prints the figures of one engine."""
    port = free_port()
    up = place.manage("up", "--port", str(port))
    try:
        client = Client(port, token(place, port))
        options = {"name": "sleeper", "shell": SCRIPT, "concurrency": "parallel", "max_parallel": 100}
        slug = client.call("POST", "/projects/default/tasks", options)["slug"]
        stop_one(client, slug)
        empty = percentiles([timed(lambda: client.call("GET", "/me")) for _ in range(stops)])
        found = [stop_one(client, slug) for _ in range(stops)]
        whole, shim = percentiles([one[0] for one in found]), percentiles([one[1] for one in found])
        print(f"{place.engine}: empty call p50 {empty[0]:.1f} ms, p95 {empty[1]:.1f} ms")
        print(
            f"  stop → tree empty p50 {whole[0]:.1f} ms, p95 {whole[1]:.1f} ms (limit {LIMIT_MS});"
            f" p95 is {whole[1] / empty[1]:.1f} × the empty call's"
        )
        print(f"  in the shim p50 {shim[0]:.1f} ms, p95 {shim[1]:.1f} ms")
    finally:
        stop(up)


def stop_one(client: Client, slug: str) -> tuple[float, float]:
    """Milliseconds from the request to the empty tree, and of these the shim's."""
    run = client.call("POST", f"/projects/default/tasks/{slug}/runs", {})
    until(client, run["id"], "started_at")
    time.sleep(0.1)  # the shell has started its children by now
    begun = time.time() * 1000
    client.call("POST", f"/runs/{run['id']}/stop", {})
    run = until(client, run["id"], "finished_at")
    (attempt,) = client.call("GET", f"/runs/{run['id']}/attempts")["items"]
    proof = attempt["stop"]["proof"]
    if run["status"] != "cancelled" or proof["killed"] or proof["escaped"]:
        raise SystemExit(f"not a clean stop: {run['status']} {proof}")
    ended = datetime.fromisoformat(run["finished_at"]).timestamp() * 1000
    return ended - begun, proof["took_ms"]


def until(client: Client, run_id: str, moment: str) -> Any:
    """The run, once it has that time."""
    while True:
        run = client.call("GET", f"/runs/{run_id}")
        if run[moment] is not None:
            return run
        time.sleep(0.01)


if __name__ == "__main__":
    main()
