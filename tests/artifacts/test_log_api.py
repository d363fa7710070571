from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from apps.core import ids
from apps.runs.models import RunAttempt
from tests.artifacts.kit import attempt, publish, run, write
from tests.people import Api, api, member

pytestmark = pytest.mark.django_db
CONTENT = bytes(index % 256 for index in range(1_000))


@pytest.fixture
def viewer() -> Api:
    return api(member("viewer"))


@pytest.fixture
def url(root: Path) -> str:
    """The log of a finished run with 1,000 bytes."""
    of = run("succeeded")
    row = attempt(of, status="succeeded")
    write(row, CONTENT)
    publish(row, False)
    return f"runs/{of.pk}/log"


def _log(answer: Any) -> tuple[str, str, str, str]:
    return tuple(answer[f"X-Log-{name}"] for name in ("Size", "Offset", "Complete", "Truncated"))  # type: ignore[return-value]


def test_the_whole_of_a_short_log(viewer: Api, url: str) -> None:
    answer = viewer("GET", url)
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert _log(answer) == ("1000", "0", "true", "false")
    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Cache-Control"] == "no-store"
    assert answer["Accept-Ranges"] == "bytes"


@pytest.mark.parametrize(
    ("query", "start", "end"),
    [
        ("offset=900", 900, 1_000),
        ("offset=900&limit=50", 900, 950),
        ("offset=-10", 990, 1_000),
        ("offset=-10&limit=3", 990, 993),
        ("offset=-5000&limit=3", 0, 3),
        ("offset=5000", 1_000, 1_000),
        ("limit=262144", 0, 1_000),
        ("attempt=1", 0, 1_000),
        ("attempt=&offset=", 0, 1_000),
    ],
)
def test_pages(viewer: Api, url: str, query: str, start: int, end: int) -> None:
    answer = viewer("GET", f"{url}?{query}")
    assert (answer.content, answer["X-Log-Offset"]) == (CONTENT[start:end], str(start))
    head = viewer("HEAD", f"{url}?{query}")
    assert (head.status_code, head.content) == (200, b"")
    assert (_log(head), head["Content-Length"]) == (_log(answer), str(end - start))


@pytest.mark.parametrize(
    "query",
    [
        "offset=x", "offset=1.5", "offset=9007199254740992", "limit=0", "limit=262145", "limit=-1", "attempt=0",
        "attempt=x", "attempt=99999999999", "offset=%2B1", "limit=%D9%A1",
    ],
)  # fmt: skip
def test_bad_numbers(viewer: Api, url: str, query: str) -> None:
    for method in ("GET", "HEAD"):
        answer = viewer(method, f"{url}?{query}")
        assert answer.status_code == 400
    assert list(viewer("GET", f"{url}?{query}").json()["errors"]) == [query.partition("=")[0]]


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [("bytes=0-0", 0, 1), ("bytes=10-19", 10, 20), ("bytes=990-", 990, 1_000), ("bytes=-7", 993, 1_000),
     ("bytes=-5000", 0, 1_000), ("bytes=999-99999", 999, 1_000)],
)  # fmt: skip
def test_ranges(viewer: Api, url: str, header: str, start: int, end: int) -> None:
    answer = viewer("GET", url, Range=header, Accept_Encoding="gzip")
    assert (answer.status_code, answer.getvalue()) == (206, CONTENT[start:end])
    assert answer["Content-Range"] == f"bytes {start}-{end - 1}/1000"
    assert answer["Content-Length"] == str(end - start)
    assert _log(answer) == ("1000", str(start), "true", "false")


@pytest.mark.parametrize("header", ["bytes=1000-", "bytes=5000-6000", "bytes=-0", "bytes=20-10"])
def test_ranges_that_are_not_there(viewer: Api, url: str, header: str) -> None:
    answer = viewer("GET", url, Range=header)
    assert (answer.status_code, answer.json()["code"]) == (416, "range_not_satisfiable")
    assert answer["Content-Range"] == "bytes */1000"


@pytest.mark.parametrize("header", ["bytes=-", "bytes=1-2,4-5", "lines=1-2", "bytes=a-b", "bytes"])
def test_ranges_we_do_not_understand_are_left_out(viewer: Api, url: str, header: str) -> None:
    assert (viewer("GET", url, Range=header).status_code, viewer("GET", url).content) == (200, CONTENT)


def test_a_range_gives_way(viewer: Api, url: str) -> None:
    assert viewer("GET", f"{url}?limit=5", Range="bytes=7-8").content == CONTENT[:5]
    assert viewer("GET", url, Range="bytes=7-8", If_Range='"x"').content == CONTENT


def test_before_the_first_output(viewer: Api, root: Path) -> None:
    of = run()
    for _step in range(2):
        answer = viewer("GET", f"runs/{of.pk}/log")
        assert (answer.status_code, answer.content, _log(answer)[0], _log(answer)[2]) == (
            200,
            b"",
            "0",
            "false",
        )
        assert viewer("GET", f"runs/{of.pk}/log?download=1").getvalue() == b""
        assert viewer("GET", f"runs/{of.pk}/log", Range="bytes=0-").status_code == 416
        if not RunAttempt.objects.exists():
            attempt(of)


def test_a_page_is_at_most_256_kib_and_a_download_is_whole(viewer: Api, root: Path) -> None:
    of = run()
    row = attempt(of)
    content = CONTENT * 700
    write(row, content)
    page = viewer("GET", f"runs/{of.pk}/log")
    assert (page.content, _log(page)) == (content[:262_144], ("700000", "0", "false", "unknown"))
    answer = viewer("GET", f"runs/{of.pk}/log?download=1", Accept_Encoding="gzip")
    assert answer.getvalue() == content
    assert answer["Content-Length"] == "700000"
    assert answer["Content-Disposition"] == f'attachment; filename="{row.log_artifact_id}.log"'
    tail = viewer("GET", f"runs/{of.pk}/log", Range="bytes=100000-")
    assert tail.getvalue() == content[100_000:]


def test_a_page_may_be_compressed(viewer: Api, url: str) -> None:
    answer = viewer("GET", url, Accept_Encoding="gzip")
    assert answer["Content-Encoding"] == "gzip"
    assert (gzip.decompress(answer.content), _log(answer)[0]) == (CONTENT, "1000")


def test_whatever_the_caller_accepts(viewer: Api, url: str) -> None:
    for accept in ("application/octet-stream", "text/plain", "image/png", "*/*"):
        assert viewer("GET", url, Accept=accept).content == CONTENT


def test_a_lost_log_and_an_unknown_attempt(viewer: Api, root: Path) -> None:
    of = run("failed")
    write(attempt(of, status="failed"), b"x").unlink()
    for query in ("", "?download=1"):
        answer = viewer("GET", f"runs/{of.pk}/log{query}")
        assert (answer.status_code, answer.json()["code"]) == (404, "artifact_missing")
    assert viewer("GET", f"runs/{of.pk}/log?attempt=2").json()["code"] == "not_found"
    assert str(root) not in answer.content.decode()


def test_what_is_no_run(viewer: Api, root: Path) -> None:
    answers = [
        viewer("GET", f"runs/{name}/log") for name in ("x", "1", str(ids.uuid7()), str(ids.uuid7()).upper())
    ]
    assert {(answer.status_code, answer.content) for answer in answers} == {(404, answers[0].content)}


def test_only_reading(viewer: Api, url: str) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert viewer(method, url, {}).status_code == 405
    assert Api()("GET", url).status_code == 401
