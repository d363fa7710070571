"""Backup and restore: there and back, and what is refused."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from apps.core import backup
from tests.core.test_doctor import run
from tests.e2e.up_kit import database

PASSWORD = {"PW": "correct horse battery"}


def start(home: Path, extra: dict[str, str]) -> None:
    assert run(home, "migrate", "-v0", **extra).returncode == 0
    answer = run(home, "setup", "--username", "ada", "--password-env", "PW", **extra, **PASSWORD)
    assert answer.returncode == 0, answer.stderr
    (home / "logs" / "ab").mkdir(parents=True)
    (home / "logs" / "ab" / "one.log").write_bytes(b"line\n\xff")
    (home / "node" / "receipts").mkdir(parents=True, exist_ok=True)
    (home / "node" / "receipts" / "r.json").write_text("{}")


@pytest.mark.e2e
def test_there_and_back(tmp_path: Path) -> None:
    home, other, archive = tmp_path / "home", tmp_path / "other", tmp_path / "backup.tar"
    with database() as extra, database() as empty:
        start(home, extra)
        made = run(home, "backup", str(archive), **extra)
        assert made.returncode == 0, made.stderr
        assert stat.S_IMODE(archive.stat().st_mode) == 0o600
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
        again = run(home, "backup", str(archive), **extra)
        assert again.returncode == 3 and "target_exists" in again.stderr
        onto = run(home, "restore", str(archive), **extra)
        assert onto.returncode == 3 and "installation_not_empty" in onto.stderr
        back = run(other, "restore", str(archive), **empty)
        assert back.returncode == 0, back.stderr
        for name in ("secret_key", "logs/ab/one.log", "node/receipts/r.json"):
            assert (other / name).read_bytes() == (home / name).read_bytes()
        who = run(other, "create_token", "--username", "ada", "--name", "t", **empty)
        assert who.returncode == 0 and "ql3t_" in who.stdout, who.stderr
        assert run(other, "doctor", **empty).returncode == 0


@pytest.mark.e2e
def test_a_changed_archive_restores_nothing(tmp_path: Path) -> None:
    home, other, archive = tmp_path / "home", tmp_path / "other", tmp_path / "backup.tar"
    with database() as extra, database() as empty:
        start(home, extra)
        assert run(home, "backup", str(archive), **extra).returncode == 0
        data = bytearray(archive.read_bytes())
        where = data.index(b"line\n")
        data[where] ^= 1
        archive.write_bytes(data)
        answer = run(other, "restore", str(archive), **empty)
        assert answer.returncode == 3 and "backup_damaged" in answer.stderr
        assert not (other / "db.sqlite3").exists() and not (other / "logs").exists()


def archive_of(path: Path, **files: bytes) -> Path:
    with tarfile.open(path, "w") as archive:
        writer = backup._Writer(archive)
        for name, data in files.items():
            source = path.with_suffix(".part")
            source.write_bytes(data)
            writer.add(name.replace("__", "/"), source)
        writer.finish()
    return path


def test_a_cut_archive_is_damaged(tmp_path: Path) -> None:
    path = archive_of(tmp_path / "a.tar", logs__one=b"x" * 5000)
    assert [entry.name for entry in backup.verify(path)] == ["logs/one"]
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(backup.BackupDamaged):
        backup.verify(path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_only_regular_files_are_taken(tmp_path: Path, kind: bytes) -> None:
    path = archive_of(tmp_path / "a.tar", logs__one=b"x")
    with tarfile.open(path, "a") as archive:
        member = tarfile.TarInfo("logs/link")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member, io.BytesIO())
    with pytest.raises(backup.BackupDamaged):
        backup.verify(path)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "logs/../../x", "else/where", "logs", "node/"])
def test_names_that_lead_elsewhere(name: str) -> None:
    with pytest.raises(backup.BackupDamaged):
        backup._target(name)


def test_a_file_that_grows_is_copied_as_it_was(tmp_path: Path) -> None:
    growing = tmp_path / "log"
    growing.write_bytes(b"12345")

    class Archive(tarfile.TarFile):
        def addfile(self, member, source=None):  # type: ignore[no-untyped-def]
            if member.name == "logs/log":
                with growing.open("ab") as file:
                    file.write(b"more")
                os.sync()
            super().addfile(member, source)

    with Archive(tmp_path / "a.tar", "w") as archive:
        writer = backup._Writer(archive)
        writer.add("logs/log", growing)
        writer.finish()
    assert [entry.size for entry in backup.verify(tmp_path / "a.tar")] == [5]
