"""What people who are signed in notice of 200 wrong passwords a second at the door.

    python -m bench.door [--rate 200] [--seconds 10]

On SQLite, the whole product with its own web process. p95 of a page and of an API call while nobody knocks, then while
guesses come from 250 addresses at names that do not exist, through a proxy that is trusted. The floor is the idle p95
of the same run.
"""

from __future__ import annotations

import argparse
import http.client
import http.cookiejar
import multiprocessing
import re
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.e2e.person import NAME, PASSWORD, manage
from tests.e2e.up_kit import Up

CALLS = ("/panel/tokens/", "/api/v3/me")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        up = Up(Path(folder) / "home", QINGLONG_TRUSTED_PROXIES="127.0.0.1")
        try:
            up.wait_ready()
            manage(up.home, "setup", "--username", NAME, "--password-env", "P", P=PASSWORD)
            cookie = sign_in(up)
            idle = measure(up.port, cookie, options.seconds)
            # Another process: its threads must not stand in the way of the one that measures.
            over, answers = multiprocessing.Event(), multiprocessing.Queue()
            crowd = multiprocessing.Process(target=flood, args=(up.port, options.rate, over, answers))
            crowd.start()
            busy = measure(up.port, cookie, options.seconds)
            over.set()
            counts = answers.get()
            crowd.join()
            told = ", ".join(f"{status}: {count}" for status, count in sorted(counts.items()))
            print(f"guesses {counts.total() / options.seconds:.0f}/s ({told})")
            for path in CALLS:
                print(
                    f"  {path:16} p95 idle {idle[path] * 1000:6.1f} ms, under guesses {busy[path] * 1000:6.1f} ms,"
                    f" {busy[path] / idle[path]:.1f} × floor"
                )
        finally:
            up.stop()


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


def measure(port: int, cookie: str, seconds: float) -> dict[str, float]:
    """p95 of each call, one after the other as a person would."""
    times: dict[str, list[float]] = {path: [] for path in CALLS}
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
            time.sleep(0.02)
    return {path: sorted(found)[int(len(found) * 0.95)] for path, found in times.items()}


def flood(port: int, rate: int, over: Any, answers: Any) -> None:
    """Twenty who knock, until it is over; then the statuses they were answered with."""
    counts: Counter[int] = Counter()
    knockers = [
        threading.Thread(target=knock, args=(port, rate / 20, number, over, counts)) for number in range(20)
    ]
    for one in knockers:
        one.start()
    for one in knockers:
        one.join()
    answers.put(counts)


def knock(port: int, rate: float, number: int, over: Any, answers: Counter[int]) -> None:
    """Wrong passwords at an even pace, each from an address and for a name of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    csrf = "x" * 32
    count, began = 0, time.monotonic()
    while not over.is_set():
        form = {
            "csrfmiddlewaretoken": csrf,
            "username": f"guess{number}-{count}",
            "password": "wrong password",
        }
        headers = {
            "Cookie": f"ql_csrf={csrf}",
            "Content-Type": "application/x-www-form-urlencoded",
            "X-Forwarded-For": f"198.51.100.{(count + number) % 250}",
        }
        connection.request("POST", "/panel/login/", urlencode(form), headers)
        answer = connection.getresponse()
        answer.read()
        answers[answer.status] += 1
        count += 1
        over.wait(max(0.0, began + count / rate - time.monotonic()))


if __name__ == "__main__":
    main()
