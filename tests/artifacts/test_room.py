"""Room for logs: the reserve of the profile, what is said when it is gone, and what is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apps.artifacts import room, services, store, tallies
from apps.artifacts.errors import LogMissing
from apps.artifacts.models import ArtifactTally
from apps.core import clock, health
from qinglong import environment
from qinglong.environment import ConfigurationError
from tests.artifacts.kit import GRANT, attempt, run

MIB = 1_048_576


@pytest.mark.parametrize(
    ("given", "reserve"),
    [
        ({}, 256), ({"QINGLONG_PROFILE": "standalone"}, 256), ({"QINGLONG_PROFILE": "edge"}, 32),
        ({"QINGLONG_PROFILE": "cluster"}, 256), ({"QINGLONG_DISK_RESERVE_MB": "0"}, 0),
        ({"QINGLONG_PROFILE": "edge", "QINGLONG_DISK_RESERVE_MB": "1048576"}, 1_048_576),
    ],
)  # fmt: skip
def test_the_reserve_comes_from_profile_or_setting(
    tmp_path: Path, given: dict[str, str], reserve: int
) -> None:
    assert environment.read(given, tmp_path).disk_reserve_bytes == reserve * MIB


@pytest.mark.parametrize("text", ["-1", "1048577", "1.5", "x", "99999999"])
def test_a_reserve_out_of_bounds_stops_the_start(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        ConfigurationError, match="QINGLONG_DISK_RESERVE_MB is a whole number from 0 to 1048576"
    ):
        environment.read({"QINGLONG_DISK_RESERVE_MB": text}, tmp_path)


def test_a_disk_that_is_short_is_said_before_runs_fail(
    root: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LOG_MINIMUM_FREE_BYTES = 100 * MIB
    monkeypatch.setattr(store, "inspect", lambda path: store.Capacity(116 * MIB - 1, 10**12))
    sentence = room.room()
    assert sentence is not None and "Less than 116 MB" in str(sentence) and str(root) in str(sentence)
    monkeypatch.setattr(store, "inspect", lambda path: store.Capacity(116 * MIB, 10**12))
    assert room.room() is None
    assert {"log_room", "log_folder"} <= set(health.codes())


def test_a_folder_of_logs_that_is_none_of_its_own(root: Path) -> None:
    assert room.folder() is None
    root.chmod(0o750)
    assert "chmod go-rwx" in str(room.folder())
    root.rename(root.with_name("real"))
    assert room.folder() is None
    root.symlink_to(root.with_name("real"))
    assert "no folder of its own" in str(room.folder())


@pytest.mark.django_db
def test_reads_that_find_nothing_are_counted(root: Path) -> None:
    of = run("succeeded")
    attempt(of, status="succeeded")
    for _ in range(2):
        with pytest.raises(LogMissing):
            services.read_log(GRANT, of.pk)
    assert tallies.today() == {"quota_hit": 0.0, "incomplete": 0.0, "missing_read": 2.0}
    then = clock.now_ms() + 86_400_000
    with clock.fixed(lambda: then):
        assert tallies.today()["missing_read"] == 0
    [row] = ArtifactTally.objects.all()
    assert (row.kind, row.count) == ("missing_read", 2)
    figures = {gauge.name: dict(gauge.values) for gauge in room.gauges()}
    assert figures["missing_artifact_reads_day"] == {"": 2.0}
    assert figures["log_faults_day"] == {"quota": 0.0, "incomplete": 0.0}
    assert figures["log_room_bytes"][""] > 0
