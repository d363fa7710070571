"""Commands of people where there is nothing to work with yet: one line with a code, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.test_doctor import run
from tests.e2e.up_kit import database

SET_UP = ("setup", "--username", "ada", "--password-env", "PW")
TOKEN = ("create_token", "--username", "ada", "--name", "t")


@pytest.mark.e2e
@pytest.mark.parametrize(
    "command", [TOKEN, SET_UP, ("workers",), ("drain",), ("backup", "copy.tar")], ids=" ".join
)
def test_before_the_first_start(command: tuple[str, ...], tmp_path: Path) -> None:
    with database() as extra:
        answer = run(tmp_path / "home", *command, PW="correct horse battery", **extra)
    assert answer.returncode in (1, 78), answer.stderr
    assert "database_missing" in answer.stderr or "migrations_pending" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1 and not answer.stdout


@pytest.mark.e2e
def test_a_database_that_does_not_answer(tmp_path: Path) -> None:
    answer = run(tmp_path / "home", "workers", DATABASE_URL="postgresql://ql:hunter2@127.0.0.1:1/ql")
    assert answer.returncode == 78 and "[database_unreachable]" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1 and "hunter2" not in answer.stderr


@pytest.mark.e2e
def test_copies_that_cannot_be_written_or_found(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with database() as extra:
        assert run(home, "migrate", "-v0", **extra).returncode == 0
        nowhere = run(home, "backup", str(tmp_path / "none" / "copy.tar"), **extra)
        assert nowhere.returncode == 1 and "folder_missing" in nowhere.stderr
    absent = run(tmp_path / "other", "restore", str(tmp_path / "copy.tar"))
    assert absent.returncode == 1 and "file_missing" in absent.stderr


@pytest.mark.e2e
def test_help_lists_the_commands_of_people(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for arguments in ((), ("help",), ("--help",)):
        text = run(home, *arguments).stdout
        listed = {line.split()[0] for line in text.splitlines()[2:]}
        assert {"up", "setup", "create_token", "changepassword", "doctor", "backup", "restore"} <= listed
        assert not {"flush", "runserver", "createsuperuser", "makemigrations"} & listed
    assert "migrate" in run(home, "help", "--commands").stdout.split()
    assert "--slots" in run(home, "up", "--help").stdout
    assert not home.exists(), "whoever only asks gets nothing written"
