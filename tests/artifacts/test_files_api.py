"""Files that runs left, over the API: who may have them, and that they come as downloads only."""

from __future__ import annotations

import hashlib
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.artifacts import files
from apps.artifacts.errors import EvidenceConflict, FileMissing
from apps.artifacts.models import Artifact, ArtifactRetention
from apps.core import clock, ids
from apps.core.errors import NotFound
from apps.projects.policy import Grant
from apps.runs.models import Run
from tests.artifacts.kit import GRANT, attempt, file_path, leave, run
from tests.people import Api, account, api, give, member

pytestmark = pytest.mark.django_db
CONTENT = bytes(index % 256 for index in range(1_000))


@pytest.fixture
def viewer() -> Api:
    return api(member("viewer"))


def one(
    name: str = "out/a.bin", content: bytes = CONTENT, kind: str = "application/octet-stream"
) -> Artifact:
    """The only file of a run that ended."""
    of = run("succeeded")
    return leave(attempt(of, status="succeeded", finished_at=clock.now()), (name, content, kind))[0]


def url(row: Artifact) -> str:
    return f"runs/{row.run_id}/artifacts/{row.pk}"


def body(answer: Any) -> bytes:
    return b"".join(answer.streaming_content) if answer.streaming else answer.content


def retire(row: Artifact) -> None:
    at = row.attempt.finished_at
    assert at is not None
    ArtifactRetention.objects.create(
        attempt=row.attempt, log_artifact_id=row.attempt.log_artifact_id, finished_at=at, eligible_at=at,
        disposition="deleted", bytes_reclaimed=1, recorded_at=at,
    )  # fmt: skip


def test_a_list_by_attempts_and_positions(root: Path, viewer: Api) -> None:
    of = run("succeeded")
    for number in (1, 2):
        leave(
            attempt(of, number, status="failed"),
            *((f"{number}/{name}", name.encode(), "text/plain") for name in "abc"),
        )
    answer = viewer("GET", f"runs/{of.pk}/artifacts")
    assert answer.status_code == 200
    found = answer.json()
    assert [(item["attempt"], item["name"]) for item in found["items"]] == [
        (number, f"{number}/{name}") for number in (1, 2) for name in "abc"
    ]
    assert found["next_cursor"] is None
    first = found["items"][0]
    assert first == {
        "id": first["id"], "attempt": 1, "name": "1/a", "size": 1, "sha256": hashlib.sha256(b"a").hexdigest(),
        "content_type": "text/plain", "created_at": first["created_at"], "removed_at": None,
    }  # fmt: skip
    only = viewer("GET", f"runs/{of.pk}/artifacts?attempt=2&limit=2").json()
    assert [item["name"] for item in only["items"]] == ["2/a", "2/b"]
    rest = viewer("GET", f"runs/{of.pk}/artifacts?attempt=2&limit=2&cursor={only['next_cursor']}").json()
    assert ([item["name"] for item in rest["items"]], rest["next_cursor"]) == (["2/c"], None)
    for wrong, status in (("attempt=0", 400), ("attempt=x", 400), ("task=x", 400), ("cursor=x", 400)):
        assert viewer("GET", f"runs/{of.pk}/artifacts?{wrong}").status_code == status
    other = viewer("GET", f"runs/{of.pk}/artifacts?limit=3&attempt=1&cursor={only['next_cursor']}")
    assert (other.status_code, other.json()["code"]) == (409, "cursor_mismatch")


def test_a_list_costs_the_same_for_any_number(root: Path) -> None:
    def queries(count: int) -> int:
        of = run("succeeded")
        leave(attempt(of), *((str(number), b"", "text/plain") for number in range(count)))
        with CaptureQueriesContext(connection) as seen:
            assert len(files.page(GRANT, of.pk, limit=100).items) == count
        return len(seen)

    assert queries(0) == queries(100) == 1


def test_a_download(root: Path, viewer: Api) -> None:
    row = one()
    answer = viewer("GET", url(row))
    assert (answer.status_code, body(answer)) == (200, CONTENT)
    assert {name: answer[name] for name in answer.headers if name not in ("Server-Timing",)}.items() >= {
        "Content-Type": "application/octet-stream",
        "Content-Disposition": 'attachment; filename="a.bin"',
        "Content-Length": "1000",
        "Content-Encoding": "identity",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cross-Origin-Resource-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Accept-Ranges": "bytes",
        "Cache-Control": "no-store",
        "ETag": f'"{hashlib.sha256(CONTENT).hexdigest()}"',
    }.items()
    head = viewer("HEAD", url(row))
    assert (head.status_code, head.content, head["Content-Length"]) == (200, b"", "1000")
    assert head["ETag"] == answer["ETag"]
    assert viewer("GET", url(row), Accept="text/html").status_code == 200


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("报告.csv", "attachment; filename*=utf-8''%E6%8A%A5%E5%91%8A.csv"),
        ('a"b;c.txt', 'attachment; filename="a\\"b;c.txt"'),
        ("a%0d%0aSet-Cookie: x", 'attachment; filename="a%0d%0aSet-Cookie: x"'),
        ("deep/er/.bashrc", 'attachment; filename=".bashrc"'),
    ],
)
def test_any_name_is_one_harmless_header(root: Path, viewer: Api, name: str, said: str) -> None:
    answer = viewer("GET", url(one(name, b"x", "text/csv")))
    assert answer["Content-Disposition"] == said
    assert answer["Content-Type"] == "text/csv; charset=utf-8"


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [("0-9", 0, 10), ("990-", 990, 1_000), ("-10", 990, 1_000), ("0-5000", 0, 1_000)],
)
def test_ranges(root: Path, viewer: Api, asked: str, start: int, end: int) -> None:
    row = one()
    answer = viewer("GET", url(row), Range=f"bytes={asked}")
    assert (answer.status_code, body(answer)) == (206, CONTENT[start:end])
    assert answer["Content-Range"] == f"bytes {start}-{end - 1}/1000"
    assert answer["Content-Length"] == str(end - start)
    assert answer["Content-Disposition"].startswith("attachment")


def test_ranges_that_are_not_there_or_meant_for_another_file(root: Path, viewer: Api) -> None:
    row = one()
    answer = viewer("GET", url(row), Range="bytes=1000-")
    assert (answer.status_code, answer["Content-Range"]) == (416, "bytes */1000")
    assert answer.json()["code"] == "range_not_satisfiable"
    assert viewer("GET", url(row), Range="bytes=0-9", If_Range=f'"{row.sha256}"').status_code == 206
    assert viewer("GET", url(row), Range="bytes=0-9", If_Range='"0"').status_code == 200
    assert viewer("GET", url(row), Range="lines=0-9").status_code == 200
    empty = one("empty", b"")
    assert body(viewer("GET", url(empty))) == b""
    assert viewer("GET", url(empty), Range="bytes=0-").status_code == 416


def test_what_is_had_is_not_sent_again(root: Path, viewer: Api) -> None:
    row = one()
    answer = viewer("GET", url(row), If_None_Match=f'"x", W/"{row.sha256}"')
    assert (answer.status_code, answer.content, answer["ETag"]) == (304, b"", f'"{row.sha256}"')
    assert viewer("GET", url(row), If_None_Match='"x"').status_code == 200


def test_no_right_looks_like_no_file_and_touches_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = one()
    touched: list[Any] = []
    for name in ("open", "lstat", "stat", "statvfs"):
        original = getattr(os, name)

        def spy(path: Any, *args: Any, _original: Any = original, **options: Any) -> Any:
            if str(root) in str(path):
                touched.append(path)
            return _original(path, *args, **options)

        monkeypatch.setattr(os, name, spy)
    stranger = account("eve")
    for client in (api(stranger), api(member("owner", "bob"), "run.read")):
        for there, not_there in (
            (url(row), f"runs/{row.run_id}/artifacts/{ids.uuid7()}"),
            (url(row), f"runs/{ids.uuid7()}/artifacts/{row.pk}"),
            (f"runs/{row.run_id}/artifacts", f"runs/{ids.uuid7()}/artifacts"),
        ):
            answers = [client("GET", path) for path in (there, not_there)]
            assert answers[0].status_code == 404
            assert answers[0].content == answers[1].content
            assert dict(answers[0].headers) == dict(answers[1].headers)
            assert client("HEAD", there).status_code == 404
    assert touched == []
    give(stranger, "viewer")
    assert api(stranger)("GET", url(row)).status_code == 200
    assert touched


def test_only_in_its_own_run_and_project(root: Path, viewer: Api) -> None:
    row, other = one(), one()
    assert viewer("GET", f"runs/{other.run_id}/artifacts/{row.pk}").status_code == 404
    assert viewer("GET", f"runs/{row.run_id}/artifacts/{str(row.pk).upper()}").status_code == 404
    assert viewer("GET", f"{url(row)}?download=1").status_code == 400
    for grant in (
        Grant.system("other", "artifact.read", "tests"), Grant.system("default", "run.read", "tests")
    ):  # fmt: skip
        with pytest.raises(NotFound):
            files.open_file(grant, row.run_id, row.pk)
    assert files.page(Grant.system("other", "artifact.read", "tests"), row.run_id).items == []


def test_removed_by_its_rule(root: Path, viewer: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    row = one()
    retire(row)
    with monkeypatch.context() as patch:
        patch.setattr("apps.artifacts.reader.stream_file", lambda *args: pytest.fail("the file was touched"))
        answer = viewer("GET", url(row))
    assert (answer.status_code, answer.json()["code"]) == (410, "artifact_retained")
    [item] = viewer("GET", f"runs/{row.run_id}/artifacts").json()["items"]
    assert item["removed_at"] == clock.rfc3339(row.attempt.finished_at)


def test_missing_changed_and_replaced(root: Path, viewer: Api) -> None:
    row = one()
    path = file_path(row)
    path.write_bytes(CONTENT + b"x")
    with pytest.raises(EvidenceConflict):
        files.open_file(GRANT, row.run_id, row.pk)
    path.unlink()
    answer = viewer("GET", url(row))
    assert (answer.status_code, answer.json()["code"]) == (404, "artifact_missing")
    path.symlink_to("/etc/passwd")
    answer = viewer("GET", url(row))
    assert (answer.status_code, answer.json()["code"]) == (500, "artifact_unsafe_read_target")
    assert str(root) not in answer.content.decode()
    path.unlink()
    path.parent.rename(path.parent.with_name("away"))
    path.parent.symlink_to(path.parent.with_name("away"))
    assert viewer("GET", url(row)).status_code == 500


def test_removed_between_the_look_and_the_opening(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from apps.artifacts import reader
    from apps.artifacts.errors import FileRetained

    row = one()
    file_path(row).unlink()
    stream = reader.stream_file

    def late(*args: Any) -> Any:
        retire(row)
        return stream(*args)

    with pytest.raises(FileMissing):
        files.open_file(GRANT, row.run_id, row.pk)
    monkeypatch.setattr(reader, "stream_file", late)
    with pytest.raises(FileRetained):
        files.open_file(GRANT, row.run_id, row.pk)


def test_a_removal_meanwhile_still_serves_it_whole(root: Path) -> None:
    row = one(content=b"x" * 600_000)
    found = files.open_file(GRANT, row.run_id, row.pk)
    file_path(row).unlink()
    assert b"".join(found.content) == b"x" * 600_000
    found.content.close()
    assert Run.objects.get(pk=row.run_id).pk == row.run_id
    assert clock.now() - row.created_at < timedelta(minutes=5)
