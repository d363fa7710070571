"""The same scripts through other queues, for comparison; only those that are installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from bench.stage import database, stop

_PROCRASTINATE = """
import os, subprocess, sys, procrastinate
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["URL"]))
@app.task(name="script")
def script(log):
    with open(log, "wb") as file:
        return subprocess.run(["/bin/true"], stdout=file, stderr=file).returncode
if sys.argv[1] == "fill":
    with app.open():
        app.schema_manager.apply_schema()
        for number in range(int(sys.argv[2])):
            script.defer(log=f"{sys.argv[3]}/{number}.log")
else:
    app.run_worker(concurrency=8, wait=False)
"""
_CELERY = """
import os, subprocess
from celery import Celery
app = Celery("bench", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])
app.conf.task_acks_late = True
app.conf.worker_prefetch_multiplier = 1
@app.task(name="script")
def script(log):
    with open(log, "wb") as file:
        return subprocess.run(["/bin/true"], stdout=file, stderr=file).returncode
"""


def available(server: str) -> list[tuple[str, Callable[[int], float]]]:
    """Names and rates of what can be measured here."""
    found: list[tuple[str, Callable[[int], float]]] = []
    if importlib.util.find_spec("procrastinate"):
        found.append(("Procrastinate", lambda runs: procrastinate(server, runs)))
    if importlib.util.find_spec("celery") and os.environ.get("REDIS_URL"):
        found.append(("Celery with Redis", celery))
    return found


def procrastinate(server: str, runs: int) -> float:
    """Two workers of 8; from their first job to their last."""
    with database(server) as url, tempfile.TemporaryDirectory() as folder:
        assert url is not None
        program = Path(folder, "jobs.py")
        program.write_text(_PROCRASTINATE)
        env = {**os.environ, "URL": url}
        subprocess.run([sys.executable, program, "fill", str(runs), folder], env=env, check=True)
        workers = [subprocess.Popen([sys.executable, program, "work"], env=env) for _ in range(2)]
        for worker in workers:
            worker.wait()
        with psycopg.connect(url) as connection:
            span = connection.execute(
                "SELECT extract(epoch FROM max(at) - min(at)) FROM procrastinate_events"
                " WHERE type IN ('started', 'succeeded')"
            ).fetchone()
        return runs / float(span[0])


def celery(runs: int) -> float:
    """Two workers of 8 processes each, results kept; from the first start to the last end."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "celery_jobs.py").write_text(_CELERY)
        env = {**os.environ, "PYTHONPATH": folder}
        fill = (
            "import sys, celery_jobs\n"
            "celery_jobs.app.control.purge()\n"
            "for n in range(int(sys.argv[1])): celery_jobs.script.delay(f'{sys.argv[2]}/{n}.log')"
        )
        subprocess.run([sys.executable, "-c", fill, str(runs), folder], env=env, cwd=folder, check=True)
        command = [sys.executable, "-m", "celery", "-A", "celery_jobs", "worker", "-c", "8", "-l", "ERROR"]
        workers = [subprocess.Popen([*command, "-n", f"w{n}"], env=env, cwd=folder) for n in range(2)]
        try:
            return _rate(Path(folder), runs)
        finally:
            for worker in workers:
                stop(worker)


def _rate(folder: Path, runs: int) -> float:
    give_up = time.monotonic() + 300
    while len(logs := list(folder.glob("*.log"))) < runs and time.monotonic() < give_up:
        time.sleep(0.25)  # a look costs what a job does
    times = [log.stat().st_mtime for log in logs]
    return runs / (max(times) - min(times))
