"""`doctor`: codes for what is wrong, silence of the exit code about warnings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from apps.dispatch import doctor
from apps.dispatch.doctor import Level
from tests.e2e.up_kit import ROOT, database, environment


def run(home: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=environment(home, **extra),
        capture_output=True,
        text=True,
        check=False,
    )


def codes(answer: subprocess.CompletedProcess[str], level: Level) -> set[str]:
    return {line.split()[1] for line in answer.stdout.splitlines() if line.split()[0] == level}


@pytest.mark.e2e
def test_before_and_after_the_first_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with database() as extra:
        before = run(home, "doctor", **extra)
        assert before.returncode == 1
        assert codes(before, Level.FAILURE) <= {"database_missing", "migrations_pending"}
        assert not (home / "db.sqlite3").exists()
        assert run(home, "migrate", "-v0", **extra).returncode == 0
        after = run(home, "doctor", **extra)
        assert (after.returncode, codes(after, Level.FAILURE)) == (0, set()), after.stdout
        assert {"run_as_unset", "launcher_not_running", "keyring_missing"} <= codes(after, Level.WARNING)
        assert {"database", "migrations", "schema", "files", "shell", "python"} <= codes(after, Level.GOOD)


@pytest.mark.e2e
def test_a_database_that_does_not_answer(tmp_path: Path) -> None:
    answer = run(tmp_path / "home", "doctor", DATABASE_URL="postgresql://ql:hunter2@127.0.0.1:1/ql")
    assert answer.returncode == 1
    assert codes(answer, Level.FAILURE) == {"database_unreachable"}
    assert "hunter2" not in answer.stdout + answer.stderr


def of(findings: object) -> dict[str, Level]:
    return {finding.code: finding.level for finding in findings}  # type: ignore[attr-defined]


def test_interpreters_that_are_not_there(tmp_path: Path, settings) -> None:
    settings.SCRIPT_PATH = str(tmp_path)
    assert of(doctor._interpreters()) == {
        "python_missing": Level.WARNING,
        "node_missing": Level.WARNING,
        "typescript_missing": Level.WARNING,
        "shell_missing": Level.FAILURE,
    }


@pytest.mark.parametrize(
    ("version", "good"), [("v20.20.2", False), ("v22.5.1", False), ("v22.6.0", True), ("v24.1.0", True)]
)
def test_node_runs_typescript_from_22_6(tmp_path: Path, settings, version: str, good: bool) -> None:
    node = tmp_path / "node"
    node.write_text(f"#!/bin/sh\necho {version}\n")
    node.chmod(0o755)
    settings.SCRIPT_PATH = str(tmp_path)
    assert ("typescript" in of(doctor._interpreters())) is good


def test_files_that_others_may_read(tmp_path: Path, settings) -> None:
    settings.HOME = tmp_path
    settings.KEYRING_PATH = tmp_path / "keyring.json"
    settings.NODE_DIR = tmp_path / "node"
    tmp_path.chmod(0o700)
    settings.KEYRING_PATH.touch(0o644)
    settings.KEYRING_PATH.chmod(0o644)
    assert of(doctor._files()) == {"file_mode": Level.FAILURE}
    settings.KEYRING_PATH.chmod(0o600)
    assert of(doctor._files()) == {"files": Level.GOOD}


def test_a_keyring_that_cannot_be_used(tmp_path: Path, settings) -> None:
    settings.KEYRING_PATH = tmp_path / "keyring.json"
    assert of(doctor._keyring()) == {"keyring_missing": Level.WARNING}
    settings.KEYRING_PATH.write_text("{}")
    settings.KEYRING_PATH.chmod(0o600)
    assert of(doctor._keyring()) == {"local_secret_unavailable": Level.FAILURE}


def test_a_user_to_run_as_that_does_not_exist(settings) -> None:
    settings.RUN_AS = "nobody-of-that-name"
    assert of(doctor._node())["run_as_unknown"] is Level.FAILURE


def test_what_typescript_needs_is_named_with_its_version(tmp_path: Path, settings) -> None:
    settings.SCRIPT_PATH = str(tmp_path)
    missing = next(item for item in doctor._interpreters() if item.code == "typescript_missing")
    assert "node >= 22.6" in str(missing.sentence)


def test_logs_without_room_or_a_folder_of_their_own(tmp_path: Path, settings) -> None:
    settings.HOME = tmp_path
    settings.LOG_ROOT = tmp_path / "logs"
    assert of(doctor._disk()).keys() <= {"disk", "disk_low"}
    settings.LOG_MINIMUM_FREE_BYTES = 1_099_511_627_776
    settings.LOG_ROOT.symlink_to(tmp_path)
    found = of(doctor._disk())
    assert (found["log_room"], found["log_folder"]) == (Level.FAILURE, Level.FAILURE)
