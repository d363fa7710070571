"""A large log opened at its end, through the API and as the page of its run, and searched on the server.

    python -m bench.log_tail [--megabytes 1000]

The floor is a plain read of the same bytes. A log of 1,000 MB takes as much room for the length of the run.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from typing import Any

from bench.lists import _owner, percentiles
from bench.stage import servers, stage

PAGE = 65_536


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    options = parser.parse_args()
    for server in servers():
        with stage(server) as place:
            print(place.engine, place.script("bench.log_tail:measure", str(options.megabytes)))


def measure(megabytes: str) -> None:
    """Inside Django: a finished run with a log of that size, read at its end."""
    from django.conf import settings
    from django.test import Client

    from apps.artifacts import facts
    from apps.projects.policy import Grant
    from apps.runs.models import RunAttempt
    from apps.runs.services import start_run
    from apps.tasks.services import TaskDraft, create_task

    task = create_task(
        Grant.system("default", "task.create", "bench"), TaskDraft(name="big", command=["/bin/true"])
    )
    run = start_run(Grant.system("default", "run.start", "bench"), task.pk, trigger_type="manual").run
    attempt = run.attempts.get()
    artifact = facts.artifact_id(str(run.pk), str(attempt.pk))
    RunAttempt.objects.filter(pk=attempt.pk).update(log_artifact_id=artifact)
    paths = facts.log_paths(str(settings.LOG_ROOT), artifact)
    facts.ensure_private_directory(str(settings.LOG_ROOT))
    facts.ensure_private_directory(str(Path(paths.log).parent))
    line = b"2026-11-29 18:05:03 a line of an ordinary log, with some text behind it\n"
    block = line * (10_000_000 // len(line))
    with Path(paths.log).open("wb") as file:
        for _part in range(max(1, int(megabytes) * 1_000_000 // len(block))):
            file.write(block)
        file.write(b"needle\n")
    client, headers = _owner(Client)
    url = f"/api/v3/runs/{run.pk}/log?offset=-{PAGE}&limit={PAGE}"
    answer = client.get(url, headers=headers)
    assert answer.status_code == 200 and len(answer.content) == PAGE, answer.content[:200]
    page = percentiles(lambda: client.get(url, headers=headers))
    floor = percentiles(lambda: _read(paths.log))
    print(
        f"{Path(paths.log).stat().st_size / 1e6:.0f} MB: last page p50 {page[0]:.1f} ms, p95 {page[1]:.1f} ms;"
        f" plain read {floor[0]:.2f} ms"
    )
    _search(client, headers, str(run.pk), Path(paths.log).stat().st_size)


def _search(client: Any, headers: dict[str, str], run: str, size: int) -> None:
    """Every part of the log for a word that stands in its last line only."""
    before, began, offset, calls, longest = _resident(), time.perf_counter(), 0, 0, 0.0
    while True:
        called = time.perf_counter()
        answer = client.get(f"/api/v3/runs/{run}/log/search?q=needle&offset={offset}", headers=headers).json()
        longest, calls = max(longest, time.perf_counter() - called), calls + 1
        if answer["next_offset"] is None:
            break
        offset = answer["next_offset"]
    took = time.perf_counter() - began
    assert [hit["text"] for hit in answer["items"]] == ["needle"], answer
    print(
        f"whole log searched in {took:.2f} s, {size / took / 1e6:.0f} MB/s, {calls} calls of at most"
        f" {longest * 1000:.0f} ms; memory {max(0, _resident() - before) / 1e6:.1f} MB more"
    )


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _read(path: str) -> bytes:
    with Path(path).open("rb") as file:
        file.seek(-PAGE, 2)
        return file.read()


if __name__ == "__main__":
    main()
