from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apps.artifacts import queries, services
from apps.artifacts.errors import EvidenceConflict, LogMissing, MetadataCorrupt
from apps.core import clock, ids
from apps.core.errors import NotFound
from apps.projects.policy import Grant
from apps.runs.models import RunAttempt
from tests.artifacts.kit import GRANT, attempt, log_path, publish, run, write

pytestmark = pytest.mark.django_db


def test_a_run_without_an_attempt_has_an_empty_log(root: Path) -> None:
    waiting = services.read_log(GRANT, run("queued").pk)
    assert (waiting.content, waiting.log.size, waiting.log.complete) == (b"", 0, False)
    ended = services.read_log(GRANT, run("cancelled").pk)
    assert ended.log.complete
    with pytest.raises(NotFound):
        services.read_log(GRANT, run("queued").pk, attempt=1)


def test_before_the_first_output_it_is_empty(root: Path) -> None:
    for values in ({"log_artifact_id": None}, {}):
        of = run()
        attempt(of, **values)
        part = services.read_log(GRANT, of.pk)
        assert (part.content, part.start, part.log.complete) == (b"", 0, False)
        assert services.stream_log(GRANT, of.pk).content is None


def test_an_attempt_that_was_never_let_go_left_nothing(root: Path) -> None:
    of = run("cancelled")
    attempt(of, status="cancelled", started_at=None)
    assert services.read_log(GRANT, of.pk).log.complete


def test_the_last_attempt_unless_one_is_named(root: Path) -> None:
    of = run()
    write(attempt(of, 1, "failed"), b"first")
    write(attempt(of, 2), b"second")
    assert services.read_log(GRANT, of.pk).content == b"second"
    first = services.read_log(GRANT, of.pk, attempt=1)
    assert (first.content, first.log.complete) == (b"first", True)
    with pytest.raises(NotFound):
        services.read_log(GRANT, of.pk, attempt=3)


def test_following_goes_on_where_it_ended(root: Path) -> None:
    of = run()
    path = write(attempt(of), b"one\n")
    part = services.read_log(GRANT, of.pk)
    assert part.end == 4
    with path.open("ab") as file:
        file.write(b"two\n")
    again = services.read_log(GRANT, of.pk, offset=part.end)
    assert (again.content, again.start, again.end, again.log.size) == (b"two\n", 4, 8, 8)


def test_complete_means_that_the_size_is_final(root: Path) -> None:
    """The database is read before the file: a script that ends in between is told of by the next read."""
    of = run()
    row = attempt(of)
    path = write(row, b"one\n")
    find = queries.find

    def ends_meanwhile(*args: Any) -> Any:
        found = find(*args)
        with path.open("ab") as file:
            file.write(b"last\n")
        RunAttempt.objects.filter(pk=row.pk).update(status="succeeded")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "find", ends_meanwhile)
        part = services.read_log(GRANT, of.pk)
    assert not part.log.complete
    assert services.read_log(GRANT, of.pk, offset=part.end).log.complete


def test_a_script_that_ran_between_two_looks_is_no_loss(root: Path) -> None:
    of = run()
    row = attempt(of, status="starting", started_at=None)
    find = queries.find
    looks: list[Any] = []

    def runs_meanwhile(*args: Any) -> Any:
        if looks:
            write(row, b"quick\n")
            RunAttempt.objects.filter(pk=row.pk).update(status="succeeded", started_at=clock.now())
        looks.append(args)
        return find(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries, "find", runs_meanwhile)
        assert services.read_log(GRANT, of.pk).content == b"quick\n"


def test_a_log_that_is_gone(root: Path) -> None:
    of = run("failed")
    path = write(attempt(of, status="failed"), b"x")
    path.unlink()
    for read in (services.read_log, services.describe_log, services.stream_log):
        with pytest.raises(LogMissing) as caught:
            read(GRANT, of.pk)
    assert (caught.value.status, caught.value.code) == (404, "artifact_missing")


def test_facts_of_another_attempt_are_no_evidence(root: Path) -> None:
    of = run()
    row = attempt(of)
    write(row, b"x")
    publish(row, True, run_id=str(ids.uuid7()))
    with pytest.raises(EvidenceConflict):
        services.read_log(GRANT, of.pk)


def test_a_stored_id_that_is_not_the_attempts_own(root: Path) -> None:
    of = run()
    attempt(of, log_artifact_id="local-" + "0" * 30)
    with pytest.raises(MetadataCorrupt):
        services.read_log(GRANT, of.pk)


def test_another_right_does_not_read(root: Path) -> None:
    of = run()
    write(attempt(of), b"x")
    with pytest.raises(NotFound):
        services.read_log(Grant.system("default", "run.read", "tests"), of.pk)


def test_d14_any_byte_is_kept(root: Path) -> None:
    of = run()
    content = bytes(range(256)) * 3 + b"\xff\xfe \xf0\x9f"
    write(attempt(of), content)
    assert services.read_log(GRANT, of.pk).content == content
    assert b"\xff" not in repr(services.read_log(GRANT, of.pk)).encode()
    assert log_path(RunAttempt.objects.get()).suffix == ".log"


def test_cost(root: Path, django_assert_num_queries: Any) -> None:
    of = run()
    write(attempt(of), b"x")
    with django_assert_num_queries(1):
        services.read_log(GRANT, of.pk)
