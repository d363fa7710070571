"""Twenty clients at a running panel: what a busy day does, counted (lessons D24)."""

from __future__ import annotations

import http.client
import json
import random
import secrets
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

CLIENTS = 20
TASKS = "/api/v3/projects/default/tasks"


@dataclass
class Figures:
    """What came back: seconds per call by kind, statuses, and everything no user should see."""

    seconds: float = 0.0
    times: dict[str, list[float]] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)

    def all_times(self) -> list[float]:
        return sorted(second for found in self.times.values() for second in found)


def quantile(values: list[float], share: float) -> float:
    """The value below which a share of the sorted values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


class Client(threading.Thread):
    """One client with its own connection and its own tasks, doing one thing after the other without a pause."""

    def __init__(self, port: int, token: str, until: float, seed: int, figures: Figures) -> None:
        super().__init__(daemon=True)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._token = token
        self._until = until
        self._random = random.Random(seed)
        self._figures = figures
        self._tasks: list[str] = []
        self._runs: list[str] = []

    def run(self) -> None:
        try:
            while time.monotonic() < self._until:
                self._turn()
        except Exception as error:  # a thread must not die unseen
            self._figures.wrong.append(f"{type(error).__name__}: {error}")
        finally:
            self._connection.close()

    def _turn(self) -> None:
        chance = self._random.random()
        if not self._tasks or chance < 0.08:
            body = {
                "name": f"load {secrets.token_hex(4)}", "shell": f"echo $QINGLONG_RUN_ID; sleep {chance / 2:.2f}",
                "env": {"A": secrets.token_hex(20)}, "concurrency": "parallel", "max_parallel": 4,
            }  # fmt: skip
            made = self._call("create", "POST", TASKS, body)
            if made:
                self._tasks.append(made["slug"])
        elif chance < 0.35:
            task = self._random.choice(self._tasks)
            made = self._call("start", "POST", f"{TASKS}/{task}/runs", {}, key=secrets.token_hex(8))
            if made:
                self._runs.append(made["id"])
                self._figures.runs.append(made["id"])
        elif chance < 0.5:
            self._call("runs", "GET", "/api/v3/projects/default/runs?limit=50")
        elif chance < 0.6:
            self._call("tasks", "GET", f"{TASKS}?limit=50")
        elif not self._runs:
            return
        elif chance < 0.75:
            self._call("log", "GET", f"/api/v3/runs/{self._random.choice(self._runs)}/log?offset=-4096")
        elif chance < 0.9:
            self._call("run", "GET", f"/api/v3/runs/{self._random.choice(self._runs[-10:])}")
        else:
            self._call("stop", "POST", f"/api/v3/runs/{self._runs[-1]}/stop")

    def _call(self, kind: str, method: str, path: str, body: Any = None, key: str = "") -> Any:
        headers = {"Authorization": f"Bearer {self._token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if key:
            headers["Idempotency-Key"] = key
        content = None if body is None else json.dumps(body)
        begun = time.perf_counter()
        try:
            self._connection.request(method, path, content, headers)
            answer = self._connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            # A kept connection may be closed between two calls; only a fresh one that is refused counts.
            self._connection.close()
            self._connection.request(method, path, content, headers)
            answer = self._connection.getresponse()
        text = answer.read()
        self._figures.times.setdefault(kind, []).append(time.perf_counter() - begun)
        self._figures.statuses[answer.status] += 1
        expected = (409,) if kind == "stop" else ()
        if (answer.status >= 400 and answer.status not in expected) or b"database is locked" in text:
            self._figures.wrong.append(f"{method} {path}: {answer.status} {text[:300]!r}")
        return json.loads(text) if answer.status in (200, 201) and kind != "log" else None


def drive(port: int, token: str, seconds: float, clients: int = CLIENTS) -> Figures:
    """Runs the clients and gives what they saw."""
    figures = Figures()
    begun = time.monotonic()
    threads = [Client(port, token, begun + seconds, seed, figures) for seed in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 120)
    figures.seconds = time.monotonic() - begun
    return figures
