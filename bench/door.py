"""What people who are signed in notice of 200 wrong passwords a second at the door.

    python -m bench.door [--rate 200] [--rounds 6] [--seconds 5] [--guesses spread|pair|fresh]

On SQLite, or on a database of its own where DATABASE_URL names a server; the whole product with its own web process.
Turn by turn, p95 of a page and of an API call while nobody knocks and while somebody does: through a proxy that is
trusted, from 250 addresses and at as many names as guesses (`spread`), or at one name from one address (`pair`).
`fresh` is like `spread` with a connection for each guess, as most proxies make them. The floor is the idle p95 of the
same run. Who knocks does so on the same processors; what that takes of them is printed, and so is what it costs the web
process.
"""

from __future__ import annotations

import argparse
import http.client
import http.cookiejar
import multiprocessing
import os
import re
import socket
import statistics
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.e2e.person import NAME, PASSWORD, manage
from tests.e2e.up_kit import Up, database

CALLS = ("/panel/tokens/", "/api/v3/me")
KNOCKERS = 20
PAUSE_S = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")
_CSRF = "x" * 32

Times = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--guesses", choices=("spread", "pair", "fresh"), default="spread")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, database() as where:
        up = Up(Path(folder) / "home", QINGLONG_TRUSTED_PROXIES="127.0.0.1", **where)  # type: ignore[arg-type]
        try:
            up.wait_ready()
            manage(up.home, "setup", "--username", NAME, "--password-env", "P", P=PASSWORD, **where)
            rounds(up, options)
        finally:
            up.stop()


def rounds(up: Up, options: argparse.Namespace) -> None:
    """Nobody knocks, somebody knocks, and again; then the figures."""
    cookie = sign_in(up)
    worker = up.parts()["ql web worker"]
    idle: Times = {path: [] for path in CALLS}
    busy: Times = {path: [] for path in CALLS}
    ratios: dict[str, list[float]] = {path: [] for path in CALLS}
    spent = {"idle": 0.0, "busy": 0.0}
    counts: Counter[int] = Counter()
    knocking = 0.0
    for number in range(options.rounds):
        begun = processor_s(worker)
        calm = measure(up.port, cookie, options.seconds)
        between = processor_s(worker)
        with Crowd(up.port, options.rate, options.guesses, number) as crowd:
            loud = measure(up.port, cookie, options.seconds)
        spent["idle"] += between - begun
        spent["busy"] += processor_s(worker) - between
        counts += crowd.counts
        knocking += crowd.processor_s
        for path in CALLS:
            idle[path] += calm[path]
            busy[path] += loud[path]
            ratios[path].append(p95(loud[path]) / p95(calm[path]))
    lasted = options.rounds * options.seconds
    told = ", ".join(f"{status}: {count}" for status, count in sorted(counts.items()))
    print(
        f"guesses {counts.total() / lasted:.0f}/s ({told}), who knocks takes {knocking / lasted:.0%} of a processor;"
        f" the web process {spent['idle'] / lasted:.0%}, then {spent['busy'] / lasted:.0%}"
    )
    for path in CALLS:
        calm_ms, loud_ms = p95(idle[path]) * 1000, p95(busy[path]) * 1000
        middle = [statistics.median(times[path]) * 1000 for times in (idle, busy)]
        print(
            f"  {path:16} p50 {middle[0]:5.1f} → {middle[1]:5.1f} ms, p95 {calm_ms:5.1f} → {loud_ms:5.1f} ms,"
            f" {loud_ms / calm_ms:.1f} × floor (round by round {' '.join(f'{one:.1f}' for one in ratios[path])})"
        )


def sign_in(up: Up) -> str:
    """The session's cookie."""
    jar = http.cookiejar.CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    page = opener.open(f"{up.address}/panel/login/").read().decode()
    found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert found is not None
    form = {"csrfmiddlewaretoken": found[1], "username": NAME, "password": PASSWORD}
    opener.open(f"{up.address}/panel/login/", urlencode(form).encode())
    return "; ".join(f"{one.name}={one.value}" for one in jar)


def measure(port: int, cookie: str, seconds: float) -> Times:
    """How long each call took, one after the other as a person would."""
    times: Times = {path: [] for path in CALLS}
    connection = http.client.HTTPConnection("127.0.0.1", port)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for path in CALLS:
            began = time.perf_counter()
            connection.request("GET", path, headers={"Cookie": cookie})
            answer = connection.getresponse()
            answer.read()
            times[path].append(time.perf_counter() - began)
            assert answer.status == 200, answer.status
            time.sleep(PAUSE_S)
    return times


def p95(times: list[float]) -> float:
    """Seconds."""
    return sorted(times)[int(len(times) * 0.95)]


def processor_s(pid: int) -> float:
    """What a process has had of a processor, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Crowd:
    """Another process: its threads must not stand in the way of the one that measures."""

    def __init__(self, *arguments: Any) -> None:
        self._over = multiprocessing.Event()
        self._answers: Any = multiprocessing.Queue()
        self._process = multiprocessing.Process(target=flood, args=(*arguments, self._over, self._answers))
        self.counts: Counter[int] = Counter()
        self.processor_s = 0.0

    def __enter__(self) -> Crowd:
        self._process.start()
        return self

    def __exit__(self, *_reason: object) -> None:
        self._over.set()
        self.counts, self.processor_s = self._answers.get()
        self._process.join()


def flood(port: int, rate: int, kind: str, number: int, over: Any, answers: Any) -> None:
    """Twenty who knock, until it is over; then the statuses they were answered with, and their processor time."""
    counts: Counter[int] = Counter()
    began = time.process_time()
    knockers = [
        threading.Thread(
            target=knock, args=(port, rate / KNOCKERS, kind, f"{number}-{one}", one, over, counts)
        )
        for one in range(KNOCKERS)
    ]
    for thread in knockers:
        thread.start()
    for thread in knockers:
        thread.join()
    answers.put((counts, time.process_time() - began))


def knock(
    port: int, rate: float, kind: str, name: str, number: int, over: Any, answers: Counter[int]
) -> None:
    """Wrong passwords at an even pace."""
    line: socket.socket | None = None
    count, began = 0, time.monotonic()
    # Not all at once.
    over.wait(number / KNOCKERS / rate)
    while not over.is_set():
        if line is None:
            line = socket.create_connection(("127.0.0.1", port))
        line.sendall(guess(kind, name, number, count))
        answers[status_of(line)] += 1
        if kind == "fresh":
            line.close()
            line = None
        count += 1
        over.wait(max(0.0, began + (count + number / KNOCKERS) / rate - time.monotonic()))


def guess(kind: str, name: str, number: int, count: int) -> bytes:
    """A request as cheap as one can be made."""
    alone = kind == "pair"
    who = "guess" if alone else f"guess{name}-{count}"
    address = "198.51.100.1" if alone else f"198.51.100.{(count * KNOCKERS + number) % 250}"
    form = f"csrfmiddlewaretoken={_CSRF}&username={who}&password=wrong+password"
    close = "Connection: close\r\n" if kind == "fresh" else ""
    return (
        f"POST /panel/login/ HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forwarded-For: {address}\r\n{close}"
        f"Cookie: ql_csrf={_CSRF}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        f"Content-Length: {len(form)}\r\n\r\n{form}"
    ).encode()


def status_of(line: socket.socket) -> int:
    """The status of one whole answer."""
    head, _, body = line.recv(65_536).partition(b"\r\n\r\n")
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    assert found is not None, head
    missing = int(found[1]) - len(body)
    while missing > 0:
        missing -= len(line.recv(65_536))
    return int(head.split(b" ", 2)[1])


if __name__ == "__main__":
    main()
