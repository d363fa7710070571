"""The part "Files" of a run's page, and the downloads behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.artifacts.collected import LEFT_OUT
from apps.artifacts.models import Artifact, ArtifactRetention
from apps.core import clock
from apps.panel import file_words
from apps.runs.models import Run, RunEvent
from tests.artifacts.kit import attempt, leave, run
from tests.panel.kit import browser
from tests.people import account, member

pytestmark = pytest.mark.django_db


@pytest.fixture
def root(tmp_path: Path, settings: Any) -> Path:
    settings.LOG_ROOT = tmp_path / "logs"
    return tmp_path / "logs"


def ended(*files: tuple[str, bytes, str], **said: Any) -> tuple[Run, list[Artifact]]:
    of = run("succeeded", finished_at=clock.now(), started_at=clock.now())
    row = attempt(of, status="succeeded", finished_at=clock.now())
    RunEvent.objects.create(
        run=of, sequence=1, type="attempt.succeeded", actor_type="executor", attempt_id=row.pk,
        payload={"files": {"kept": len(files), "bytes": 0, "left_out": said}} if files or said else {},
    )  # fmt: skip
    return of, leave(row, *files)


def page(client: Client, of: Run, query: str = "") -> str:
    html = client.get(f"/panel/runs/{of.pk}/{query}").content.decode()
    return html[html.index('id="run-files"') :].partition("</section>")[0]


def test_names_sizes_digests_and_downloads(root: Path) -> None:
    of, rows = ended(("out/<b>.csv", b"a,b\n", "text/csv"), ("报告.txt", b"x" * 2048, "text/plain"))
    client = browser(member("viewer"))
    html = page(client, of)
    assert "out/&lt;b&gt;.csv" in html and "报告.txt" in html and "2.0 KB" in html
    assert rows[0].sha256 in html and "2 files, 2.0 KB." in html
    address = f"/panel/runs/{of.pk}/files/{rows[0].pk}/"
    assert f'href="{address}"' in html
    answer: Any = client.get(address, headers={"Accept-Encoding": "gzip"})
    assert b"".join(answer.streaming_content) == b"a,b\n"
    assert answer["Content-Disposition"] == 'attachment; filename="<b>.csv"'
    assert answer["Content-Security-Policy"] == "sandbox; default-src 'none'"
    assert answer["Content-Encoding"] == "identity"
    whole = client.get(f"/panel/runs/{of.pk}/").content.decode()
    assert "2 files kept" in whole


def test_what_was_left_out_has_words(root: Path) -> None:
    of, _rows = ended(symlink=3, unexamined=1)
    html = page(browser(member("viewer")), of)
    assert "Not kept:" in html and "links, whose target stays where it is: 3" in html
    assert "more that was not looked at" in html and "left no file" not in html
    assert tuple(file_words.WORDS) == LEFT_OUT


def test_empty_waiting_and_gone(root: Path) -> None:
    client = browser(member("viewer"))
    assert "left no file in the folder QINGLONG_ARTIFACTS" in page(client, ended()[0])
    going = run("running", started_at=clock.now())
    attempt(going)
    assert "is here once it has ended" in page(client, going)
    assert "is here once it has ended" in page(client, run("queued"))
    assert "are not kept any more" in page(client, run("succeeded", started_at=clock.now()))


def test_each_attempt_shows_its_own(root: Path) -> None:
    of = run("succeeded", finished_at=clock.now())
    for number in (1, 2):
        leave(attempt(of, number, status="failed"), (f"file-{number}", b"x", "text/plain"))
    client = browser(member("viewer"))
    assert "file-2" in page(client, of) and "file-1" not in page(client, of)
    assert "file-1" in page(client, of, "?attempt=1")


def test_removed_by_the_rule(root: Path) -> None:
    of, [row] = ended(("a.txt", b"x", "text/plain"))
    at = row.attempt.finished_at
    ArtifactRetention.objects.create(
        attempt=row.attempt, log_artifact_id=row.attempt.log_artifact_id, finished_at=at, eligible_at=at,
        disposition="deleted", bytes_reclaimed=1, recorded_at=at,
    )  # fmt: skip
    client = browser(member("viewer"))
    html = page(client, of)
    assert "a.txt" in html and "removed with the log" in html and "/files/" not in html
    assert client.get(f"/panel/runs/{of.pk}/files/{row.pk}/").status_code == 410


def test_without_the_right_there_is_nothing(root: Path) -> None:
    of, [row] = ended(("a.txt", b"x", "text/plain"))
    address = f"/panel/runs/{of.pk}/files/{row.pk}/"
    assert browser(account("eve")).get(address).status_code == 404
    other, _rows = ended()
    assert browser(member("viewer")).get(f"/panel/runs/{other.pk}/files/{row.pk}/").status_code == 404
    assert Client().get(address).status_code == 302


def test_the_page_asks_one_query_more_for_any_number(root: Path) -> None:
    client = browser(member("viewer"))

    def queries(of: Run) -> int:
        with CaptureQueriesContext(connection) as seen:
            page(client, of)
        return len(seen)

    few = ended(("a", b"", "text/plain"))[0]
    many = ended(*((str(number), b"", "text/plain") for number in range(100)))[0]
    queries(few)
    assert queries(few) == queries(many)
