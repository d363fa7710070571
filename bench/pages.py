"""Pages of the panel over 10,000 tasks and 1,000,000 runs: time in the server, weight, and when they are seen.

    python -m bench.pages [--tasks 10000] [--runs 1000000]

Per engine: p50 and p95 in the server with the number of queries, beside the bare SQL of a page of runs; then bytes
over the wire on a first visit, bytes of HTML, and largest contentful paint in Chromium.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import time
import urllib.request
from typing import Any

from bench.lists import bare, fill, percentiles
from bench.stage import Stage, servers, stage, stop

RECENT_DAYS = 40
PASSWORD = "a long pass phrase"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=1_000_000)
    options = parser.parse_args()
    for server in servers():
        with stage(server) as place:
            print(f"{place.engine}, {options.tasks:,} tasks, {options.runs:,} runs", flush=True)
            place.script("bench.pages:furnish", str(options.runs), str(options.tasks))
            print(place.script("bench.pages:measure"), flush=True)
            look(place)


def furnish(runs: str, tasks: str) -> None:
    """Inside Django: the runs, the totals of the newest of them, and some that run and wait."""
    from django.db import connection
    from django.db.models import F

    from apps.core import clock, ids
    from apps.runs.models import Run, UncountedRun
    from apps.runs.services import fold_totals

    fill(runs, tasks)
    since = clock.from_ms(clock.now_ms() - RECENT_DAYS * 86_400_000)
    recent = Run.objects.filter(created_at__gte=since).values_list("pk", "task_id", "status", "finished_at")
    ends = [
        UncountedRun(run_id=pk, project_id="default", task_id=task, status=status, finished_at=at,
                     duration_ms=ids.uuid7().int % 90_000)
        for pk, task, status, at in recent.iterator(5_000)
    ]  # fmt: skip
    UncountedRun.objects.bulk_create(ends, batch_size=5_000)
    while fold_totals(limit=5_000):
        pass
    newest = list(Run.objects.order_by("-created_at", "-id").values_list("pk", flat=True)[:220])
    Run.objects.filter(pk__in=newest[:20]).update(
        status="running", finished_at=None, started_at=F("created_at")
    )
    Run.objects.filter(pk__in=newest[20:]).update(status="queued", finished_at=None, started_at=None)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def measure() -> None:
    """Inside Django: each page many times, by an owner with a session."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from apps.runs.models import Run

    client = owner()
    sql = "SELECT * FROM runs WHERE project_id = 'default' ORDER BY created_at DESC, id DESC LIMIT 51"
    floor = percentiles(lambda: bare(connection, sql))
    print(f"  {'bare SQL of a page of runs':36} p50 {floor[0]:6.1f} ms  p95 {floor[1]:6.1f} ms")
    for name, address, headers in pages(str(Run.objects.filter(status="failed").latest("created_at").pk)):
        with CaptureQueriesContext(connection) as captured:
            answer = client.get(address, headers=headers)
        queries = len(captured)
        assert answer.status_code == 200, (address, answer.status_code)
        p50, p95 = percentiles(lambda address=address, headers=headers: client.get(address, headers=headers))
        weight = len(answer.content) / 1024
        times = f"p50 {p50:6.1f} ms  p95 {p95:6.1f} ms"
        print(f"  {name:36} {times}  {queries:3} queries  {weight:6.1f} KB of HTML")


def pages(run: str) -> list[tuple[str, str, dict[str, str]]]:
    """Name, address and headers of what people look at."""
    p = "/panel/p/default"
    part = {"X-Part": "1"}
    return [
        ("dashboard", "/panel/", {}),
        ("dashboard, live part", "/panel/", part),
        ("dashboard, charts", "/panel/", {"X-Part": "past"}),
        ("tasks", f"{p}/tasks/", {}),
        ("tasks, live part", f"{p}/tasks/", part),
        ("runs", f"{p}/runs/", {}),
        ("runs, live part", f"{p}/runs/", part),
        ("runs that ended badly", f"{p}/runs/?status=failed&status=timed_out&status=lost", {}),
        ("runs, oldest", f"{p}/runs/?oldest=1", {}),
        ("run", f"/panel/runs/{run}/", {}),
        ("run, live part", f"/panel/runs/{run}/", part),
        ("palette", "/panel/go/?q=task 77", part),
    ]


def owner() -> Any:
    """Inside Django: a client with the session of the first account, made where it is missing."""
    from django.test import Client

    from apps.access.models import User
    from apps.access.services import setup_first_account
    from apps.projects.services import console_issuer, issue_owner_bootstrap

    user = User.objects.first()
    if user is None:
        issued = issue_owner_bootstrap("default", console_issuer())
        user = setup_first_account(issued.challenge_id, issued.token, "bench", PASSWORD)
    client = Client(headers={"host": "localhost"})
    answer = client.post("/panel/login/", {"username": user.username, "password": PASSWORD})
    assert answer.status_code == 302, answer.content
    return client


def cookie() -> None:
    """Inside Django: prints a session cookie and the newest failed run."""
    from apps.runs.models import Run

    print(owner().cookies["ql_session"].value, Run.objects.filter(status="failed").latest("created_at").pk)


def look(place: Stage) -> None:
    """The pages in a browser with an empty cache, from a web process of this stage."""
    from playwright.sync_api import sync_playwright

    session, run = place.script("bench.pages:cookie").split()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    web = place.manage("web", "--port", str(port))
    base = f"http://127.0.0.1:{port}"
    try:
        _wait(base)
        with sync_playwright() as play:
            path = shutil.which("chromium") or shutil.which("google-chrome")
            chrome = play.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
            for name, address, headers in pages(run):
                if not headers:
                    _visit(chrome, base, session, name, address)
            chrome.close()
    finally:
        stop(web)


def _wait(base: str) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{base}/livez", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the web process does not answer")


def _visit(chrome: Any, base: str, session: str, name: str, address: str) -> None:
    best: tuple[float, float, float] | None = None
    for _ in range(3):
        context = chrome.new_context(viewport={"width": 1440, "height": 900})
        context.add_cookies([{"name": "ql_session", "value": session, "url": base}])
        page = context.new_page()
        protocol = context.new_cdp_session(page)
        wire: list[float] = []
        protocol.on(
            "Network.loadingFinished", lambda event, wire=wire: wire.append(event["encodedDataLength"])
        )
        protocol.send("Network.enable")
        answer = page.goto(base + address, wait_until="load")
        page.wait_for_timeout(400)
        lcp = page.evaluate(
            "new Promise((tell) => { new PerformanceObserver((list) => tell(list.getEntries().at(-1).startTime))"
            ".observe({type: 'largest-contentful-paint', buffered: true}); setTimeout(() => tell(-1), 2000); })"
        )
        seen = (lcp, sum(wire) / 1024, len(answer.body()) / 1024)
        best = seen if best is None or seen[0] < best[0] else best
        context.close()
    assert best is not None
    print(
        f"  {name:36} LCP {best[0]:6.0f} ms  {best[1]:6.1f} KB over the wire  {best[2]:6.1f} KB of HTML",
        flush=True,
    )


if __name__ == "__main__":
    os.nice(5)
    main()
