"""Search in a log on the server: hits by byte offset, in windows, never the whole file at once."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from apps.artifacts import reader, search
from tests.artifacts.kit import attempt, run, write
from tests.people import Api, api, member

pytestmark = pytest.mark.django_db


class Searched:
    """A finished run whose log is `content`."""

    def __init__(self, content: bytes) -> None:
        of = run("succeeded")
        write(attempt(of, status="succeeded"), content)
        self.url = f"runs/{of.pk}/log/search"
        self.viewer = api(member("viewer"))

    def __call__(self, query: str) -> Any:
        answer = self.viewer("GET", f"{self.url}?{query}")
        assert answer.status_code == 200, answer.content
        return answer.json()

    def all(self, wanted: str, limit: int = 200) -> list[dict[str, Any]]:
        """Every hit, as a caller collects them."""
        hits: list[dict[str, Any]] = []
        offset: int | None = 0
        while offset is not None:
            found = self(f"q={wanted}&offset={offset}&limit={limit}")
            assert found["next_offset"] is None or found["next_offset"] > offset
            hits, offset = hits + found["items"], found["next_offset"]
        return hits


def test_lines_by_their_offsets(root: Path) -> None:
    content = "first\nan Error here, error again\r\n错误：磁盘满\nlast error".encode()
    log = Searched(content)
    found = log("q=ERROR")
    assert [(hit["line_offset"], hit["offset"], hit["text"]) for hit in found["items"]] == [
        (6, 9, "an Error here, error again"),
        (content.index(b"last"), content.rindex(b"error"), "last error"),
    ]
    assert (found["next_offset"], found["size"]) == (None, len(content))
    assert [hit["text"] for hit in log("q=磁盘")["items"]] == ["错误：磁盘满"]
    assert log("q=nothing")["items"] == [] == log(f"q=first&offset={len(content)}")["items"]
    assert [hit["text"] for hit in log("q=error&offset=10")["items"]][-1] == "last error"


@pytest.mark.parametrize("limit", [1, 7, 200])
def test_nothing_is_missed_at_the_edges_of_windows(
    root: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(reader, "MAX_LENGTH", 64)
    monkeypatch.setattr(search, "BUDGET", 640)
    lines = [f"{number:04d} {'x' * (number % 37)} needle {'y' * (number % 23)}\n" for number in range(120)]
    content = "".join(lines).encode()
    hits = Searched(content).all("needle", limit)
    assert [hit["text"] for hit in hits] == [line.rstrip("\n") for line in lines]
    assert [content[hit["offset"] :][:6] for hit in hits] == [b"needle"] * 120
    assert [content[hit["line_offset"] :][:4].decode() for hit in hits] == [line[:4] for line in lines]


def test_a_line_without_end_and_bytes_that_are_no_text(root: Path) -> None:
    content = b"\xff\xfe" * 10_000 + b"needle" + b"\xff" * 600_000 + b"needle" + b"z" * 100
    hits = Searched(content).all("needle")
    assert [hit["offset"] for hit in hits] == [20_000, 620_006]
    assert all("needle" in hit["text"] and len(hit["text"]) <= 300 for hit in hits)


def test_a_large_log_costs_no_memory(root: Path) -> None:
    log = Searched(b"a line of some length, again and again\n" * 800_000 + b"needle\n")
    log("q=first")
    tracemalloc.start()
    (hit,) = log.all("needle")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert hit["text"] == "needle" and peak < 8 * 1024 * 1024


@pytest.mark.parametrize(
    "query", ["", "q=", "q=%0A", "q=" + "x" * 201, "q=x&limit=201", "q=x&offset=-1", "q=x&who=1"]
)
def test_what_cannot_be_searched(root: Path, query: str) -> None:
    log = Searched(b"x\n")
    assert log.viewer("GET", f"{log.url}?{query}").json()["code"] == "invalid"


def test_a_log_that_is_nobodys_business(root: Path) -> None:
    log = Searched(b"x\n")
    assert api(member("viewer", "vic"), "run.read")("GET", f"{log.url}?q=x").status_code == 404
    assert Api()("GET", f"{log.url}?q=x").status_code == 401
    assert log.viewer("GET", f"{log.url}?q=x&attempt=9").status_code == 404
