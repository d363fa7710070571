"""secrets-and-artifacts.md §14, scenarios 18 to 28; the rest is in test_secrets_29_37_retention.py."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apps.artifacts import facts, queries, reader, services, store
from apps.artifacts.errors import (
    CapacityUnavailable,
    EvidenceConflict,
    LogMissing,
    LogRetained,
    UnsafeReadTarget,
)
from apps.artifacts.queries import Retention
from apps.artifacts.reader import Available
from apps.core import clock, ids
from apps.core.errors import NotFound
from apps.dispatch.launcher.files import PrepareError
from apps.dispatch.launcher.output import LogSink
from apps.dispatch.launcher.spec import LogSpec
from apps.projects.models import Project
from apps.projects.policy import Grant
from apps.runs.models import Run, RunAttempt
from tests.artifacts.kit import GRANT, attempt, log_path, publish, run, write
from tests.dispatch.shim_kit import Kit
from tests.people import Api, account, api, give, member, other_subject

NAME = "local-22321b5e490fbde881a38416224210"
RUN, ATTEMPT = "0198c0de-0000-7000-8000-000000000001", "0198c0de-0000-7000-8000-000000000002"


@pytest.fixture
def root(tmp_path: Path, settings: Any) -> Path:
    settings.LOG_ROOT = tmp_path / "logs"
    return tmp_path / "logs"


def _sink(root: Path, quota: int = 65_536) -> LogSink:
    return LogSink(Kit(root.parent).spec("true", log=LogSpec(str(root), NAME, quota)))


def test_secrets_18_id_path_and_modes(root: Path) -> None:
    assert facts.artifact_id(RUN, ATTEMPT) == NAME
    _sink(root).close()
    path = root / "22" / f"{NAME}.log"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (root, path.parent)} == {0o700}


def test_secrets_19_room_for_reserve_and_quota(
    root: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LOG_MINIMUM_FREE_BYTES = 1_000_000
    needed = 1_000_000 + 65_536

    def free(available: int) -> None:
        monkeypatch.setattr(store, "inspect", lambda path: store.Capacity(available, 10**12))

    free(needed - 1)
    with pytest.raises(CapacityUnavailable) as caught:
        services.prepare(ids.uuid7(), ids.uuid7(), 65_536)
    assert (caught.value.status, caught.value.code) == (503, "local_artifact_capacity_unavailable")
    assert list(root.iterdir()) == []
    free(needed)
    services.prepare(ids.uuid7(), ids.uuid7(), 65_536)


def test_secrets_20_the_quota_is_exact(root: Path) -> None:
    sink = _sink(root)
    sink.feed(memoryview(b"x" * 65_530))
    sink.feed(memoryview(b"y" * 10))
    sink.feed(memoryview(b"z"))
    sink.close()
    content = (root / "22" / f"{NAME}.log").read_bytes()
    assert content == b"x" * 65_530 + b"y" * 6
    assert (sink.quota_reached, sink.bytes_seen) == (True, 65_541)


def test_secrets_21_existing_files(root: Path) -> None:
    path = root / "22" / f"{NAME}.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * 65_536)
    sink = _sink(root)
    sink.feed(memoryview(b"more"))
    sink.close()
    assert (path.stat().st_size, sink.quota_reached) == (65_536, True)
    path.write_bytes(b"x" * 65_537)
    with pytest.raises(PrepareError):
        _sink(root)
    path.unlink()
    target = root / "target"
    target.write_bytes(b"untouched")
    path.symlink_to(target)
    with pytest.raises(OSError, match=r"."):
        _sink(root)
    assert target.read_bytes() == b"untouched"


def test_secrets_22_a_root_that_is_a_symlink(root: Path) -> None:
    root.with_name("real").mkdir(mode=0o700)
    root.symlink_to(root.with_name("real"))
    for attempted in (lambda: services.prepare(ids.uuid7(), ids.uuid7(), 65_536), lambda: _sink(root)):
        with pytest.raises(facts.UnsafeTarget):
            attempted()
    with pytest.raises(facts.UnsafeTarget):
        facts.read_fact(str(root), NAME)
    with pytest.raises(UnsafeReadTarget):
        reader.read(NAME, 0, 1)


def test_secrets_23_ranges(root: Path) -> None:
    path = root / "22" / f"{NAME}.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(index % 256 for index in range(1_000)))
    for offset, length, start, end, after in (
        (0, 400, 0, 400, 400), (900, 400, 900, 1_000, None), (1_000, 1, 1_000, 1_000, None),
        (5_000, 1, 1_000, 1_000, None),
    ):  # fmt: skip
        found = reader.read(NAME, offset, length)
        assert isinstance(found, Available)
        assert (found.start, found.end_exclusive, found.next_offset) == (start, end, after)
        assert found.content == path.read_bytes()[start:end]
        assert found.total_bytes == 1_000
    for length in (0, 262_145):
        with pytest.raises(ValueError, match="length"):
            reader.read(NAME, 0, length)


def test_secrets_24_growing_and_shrinking(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "22" / f"{NAME}.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"a" * 1_000)
    fstat = os.fstat

    def then(change: Any) -> None:
        def sampled(descriptor: int) -> os.stat_result:
            found = fstat(descriptor)
            change()
            return found

        monkeypatch.setattr(os, "fstat", sampled)

    then(lambda: path.open("ab").write(b"b" * 10))
    found = reader.read(NAME, 0, 2_000)
    assert isinstance(found, Available)
    assert (found.content, found.next_offset) == (b"a" * 1_000, None)
    then(lambda: os.truncate(path, 10))
    with pytest.raises(UnsafeReadTarget):
        reader.read(NAME, 0, 2_000)


@pytest.mark.django_db
def test_secrets_25_truncation_comes_from_the_fact_alone(root: Path) -> None:
    def truncated(publish_it: Any) -> Any:
        of = run()
        row = attempt(of)
        write(row, b"x" * 65_536)
        publish_it(row)
        return services.describe_log(GRANT, of.pk).truncated

    assert truncated(lambda row: publish(row, True)) is True
    assert truncated(lambda row: publish(row, False)) is False
    assert truncated(lambda row: None) == "unknown"

    def damaged(change: Any) -> Any:
        def spoil(row: RunAttempt) -> None:
            publish(row, True)
            path = log_path(row).with_name(f".{row.log_artifact_id}.log.truncated.json")
            path.write_bytes(change(path.read_bytes()))

        return spoil

    for change, error in (
        (
            lambda data: data.replace(b'{"schema_version":1,', b"{")[:-1] + b',"schema_version":1}',
            EvidenceConflict,
        ),
        (lambda data: data.ljust(1_025), UnsafeReadTarget),
        (lambda data: data.replace(b"local-", b"local-0")[:-2] + b"}", EvidenceConflict),
    ):
        with pytest.raises(error):
            truncated(damaged(change))


@pytest.mark.django_db
def test_secrets_26_no_right_looks_like_no_log(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = run()
    write(attempt(of), b"x")
    touched: list[Any] = []
    for name in ("open", "lstat", "stat", "statvfs"):
        original = getattr(os, name)

        def spy(path: Any, *args: Any, _original: Any = original, **options: Any) -> Any:
            if str(root) in str(path):
                touched.append(path)
            return _original(path, *args, **options)

        monkeypatch.setattr(os, name, spy)

    stranger = account("eve")
    scoped = api(member("owner", "bob"), "run.read")
    for client in (api(stranger), scoped):
        answers = [client("GET", f"runs/{run_id}/log") for run_id in (of.pk, ids.uuid7())]
        assert answers[0].status_code == 404
        assert answers[0].content == answers[1].content
        assert dict(answers[0].headers) == dict(answers[1].headers)
    assert touched == []
    give(stranger, "viewer")
    assert api(stranger)("GET", f"runs/{of.pk}/log").content == b"x"
    assert touched


@pytest.mark.django_db
def test_secrets_26_asking_for_approval_is_no_right_either(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apps.projects import permissions

    of = run()
    write(attempt(of), b"x")
    agent = other_subject("agent")
    give(agent, "viewer")
    asks = replace(permissions.PERMISSIONS["artifact.read"], agent_asks=True)
    monkeypatch.setitem(permissions._registry, "artifact.read", asks)
    client: Api = api(agent)
    answers = [client("GET", f"runs/{run_id}/log") for run_id in (of.pk, ids.uuid7())]
    assert (answers[0].status_code, answers[0].content) == (404, answers[1].content)


@pytest.mark.django_db
def test_secrets_27_what_is_not_a_local_log_is_not_found(root: Path) -> None:
    root.mkdir(mode=0o700)
    now = clock.now()
    Project.objects.create(id="other", name="o", slug="other", created_at=now, updated_at=now)
    runs: list[Run] = [run(project_id="other"), run(execution_owner="legacy"), run(), run()]
    attempt(runs[0])
    attempt(runs[1])
    attempt(runs[2], executor_type="docker")
    attempt(runs[3], log_artifact_id="remote-22321b5e490fbde881a3841622421")
    for of in runs:
        with pytest.raises(NotFound):
            services.read_log(GRANT, of.pk)
    with pytest.raises(NotFound):
        services.read_log(GRANT, ids.uuid7())
    assert queries.find("other", runs[0].pk) is not None
    assert services.read_log(Grant.system("other", "artifact.read", "tests"), runs[0].pk).content == b""


@pytest.mark.django_db
def test_secrets_28_retained_and_missing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = run("succeeded")
    path = write(attempt(of, status="succeeded"), b"x")
    now = clock.now()
    record = Retention("deleted", now, now, 1, now)
    find = queries.find
    looks: list[int] = []

    def retained_from(look: int) -> Any:
        looks.clear()

        def found(*args: Any) -> Any:
            looks.append(1)
            metadata = find(*args)
            return replace(metadata, retention=record) if metadata and len(looks) >= look else metadata

        return found

    with monkeypatch.context() as patch:
        patch.setattr(queries, "find", retained_from(1))
        patch.setattr(reader, "read", lambda *args: pytest.fail("the file was touched"))
        with pytest.raises(LogRetained) as caught:
            services.read_log(GRANT, of.pk)
        assert (caught.value.status, caught.value.code) == (410, "log_retained")
    path.unlink()
    with pytest.raises(LogMissing):
        services.read_log(GRANT, of.pk)
    with monkeypatch.context() as patch:
        patch.setattr(queries, "find", retained_from(2))
        with pytest.raises(LogRetained):
            services.read_log(GRANT, of.pk)
