"""The last page of a 50 MB log through the API.

    python -m bench.log_tail [--megabytes 50]

The floor is a plain read of the same bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.lists import _owner, _percentiles
from bench.stage import servers, stage

PAGE = 65_536


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=50)
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
    Path(paths.log).write_bytes(line * (int(megabytes) * 1_000_000 // len(line)))
    client, headers = _owner(Client)
    url = f"/api/v3/runs/{run.pk}/log?offset=-{PAGE}&limit={PAGE}"
    answer = client.get(url, headers=headers)
    assert answer.status_code == 200 and len(answer.content) == PAGE, answer.content[:200]
    page = _percentiles(lambda: client.get(url, headers=headers))
    floor = _percentiles(lambda: _read(paths.log))
    print(f"last page p50 {page[0]:.1f} ms, p95 {page[1]:.1f} ms; plain read {floor[0]:.2f} ms")


def _read(path: str) -> bytes:
    with Path(path).open("rb") as file:
        file.seek(-PAGE, 2)
        return file.read()


if __name__ == "__main__":
    main()
