"""API start → child process started: with a live session, and with a cold one that the queue brings up.

    python -m bench.latency [--starts 100] [--cold 5]

The floor is an empty API call (GET /me) over the same connection; a cold start waits for the session to end.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import time
from datetime import datetime
from typing import Any

from bench.stage import Stage, servers, stage, stop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=100)
    parser.add_argument("--cold", type=int, default=5)
    options = parser.parse_args()
    for server in servers():
        with stage(server) as place:
            measure(place, options.starts, options.cold)


class Client:
    """One kept connection with a token."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._used = 0.0
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON answer; raises for a refusal."""
        data = None if body is None else json.dumps(body)
        if self._used and time.monotonic() - self._used > 1:
            # The server closes a connection that was idle; an empty call must not pay for the new one.
            self._connection.close()
        self._used = time.monotonic()
        self._connection.request(method, "/api/v3" + path, data, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status >= 400:
            raise SystemExit(f"{method} {path}: {answer.status} {content[:300]!r}")
        return json.loads(content)


def measure(place: Stage, starts: int, cold: int) -> None:
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
        empty = percentiles([timed(lambda: client.call("GET", "/me")) for _ in range(starts)])
        live = percentiles([start(client, task["slug"]) for _ in range(starts)])
        print(f"{place.engine}: empty call p50 {empty[0]:.1f} ms")
        print(
            f"  live session p50 {live[0]:.1f} ms, p95 {live[1]:.1f} ms;"
            f" above the empty call {live[0] - empty[0]:.1f} ms"
        )
        samples = []
        for _ in range(cold):
            while any(worker["alive"] for worker in client.call("GET", "/workers")["items"]):
                time.sleep(2)
            samples.append(start(client, task["slug"]))
        if samples:
            at = percentiles(samples)
            print(f"  cold session p50 {at[0]:.1f} ms, worst of {cold} {max(samples):.1f} ms")
    finally:
        stop(up)


def start(client: Client, slug: str) -> float:
    """Milliseconds from the request to the start of the process."""
    begun = time.time() * 1000
    run = client.call("POST", f"/projects/default/tasks/{slug}/runs", {})
    while run["started_at"] is None:
        time.sleep(0.01)
        run = client.call("GET", f"/runs/{run['id']}")
    while run["finished_at"] is None:
        time.sleep(0.01)
        run = client.call("GET", f"/runs/{run['id']}")
    return datetime.fromisoformat(run["started_at"]).timestamp() * 1000 - begun


def timed(call: Any) -> float:
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1000


def percentiles(values: list[float]) -> tuple[float, float]:
    values = sorted(values)
    return values[len(values) // 2], values[int(len(values) * 0.95)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def token(place: Stage, port: int) -> str:
    """Waits for the panel and makes the first account's token."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            time.sleep(0.2)
    place.call("setup", "--username", "bench", "--password-env", "PASSWORD", PASSWORD="a long pass phrase")
    return place.output("create_token", "--username", "bench", "--name", "bench").split()[-1]


if __name__ == "__main__":
    main()
