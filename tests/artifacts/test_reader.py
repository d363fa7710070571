from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from apps.artifacts import reader
from apps.artifacts.errors import UnsafeReadTarget
from apps.artifacts.reader import Available, Missing

NAME = "local-" + "2" * 30


@pytest.fixture
def log(root: Path) -> Path:
    shard = root / "22"
    shard.mkdir(mode=0o700)
    path = shard / f"{NAME}.log"
    path.write_bytes(bytes(index % 251 for index in range(1_000)))
    return path


def test_negative_offsets_count_from_the_end(log: Path) -> None:
    whole = log.read_bytes()
    for offset, length, start in ((-1, 5, 999), (-400, 100, 600), (-1_000, 10, 0), (-5_000, 10, 0)):
        found = reader.read(NAME, offset, length)
        assert isinstance(found, Available)
        assert (found.start, found.content) == (start, whole[start : start + length])


def test_only_ids_of_logs_are_names(log: Path) -> None:
    for name in ("", "../22/x", "remote-" + "2" * 30, NAME + "\n", NAME.upper()):
        with pytest.raises(ValueError, match="artifact id"):
            reader.read(name, 0, 1)


@pytest.mark.parametrize("kind", ["symlink", "folder", "fifo"])
def test_only_a_regular_file_is_a_log(log: Path, kind: str) -> None:
    content = log.read_bytes()
    log.unlink()
    if kind == "symlink":
        log.with_name("target").write_bytes(content)
        log.symlink_to(log.with_name("target"))
    elif kind == "folder":
        log.mkdir()
    else:
        os.mkfifo(log)
    for read in (lambda: reader.read(NAME, 0, 1), lambda: reader.size(NAME), lambda: reader.stream(NAME)):
        with pytest.raises(UnsafeReadTarget):
            read()


def test_a_shard_that_is_no_folder(log: Path) -> None:
    log.unlink()
    log.parent.rmdir()
    assert reader.read(NAME, 0, 1) == Missing()
    log.parent.symlink_to(log.parent.parent)
    with pytest.raises(UnsafeReadTarget):
        reader.read(NAME, 0, 1)


def test_a_stream_serves_what_was_there_when_it_was_opened(log: Path) -> None:
    content = os.urandom(700_000)
    log.write_bytes(content)
    stream = reader.stream(NAME)
    assert isinstance(stream, reader.Stream)
    with log.open("ab") as file:
        file.write(b"later")
    log.unlink()
    assert b"".join(stream) == content
    stream.limit(262_143, 262_145)
    assert b"".join(stream) == content[262_143:262_145]
    stream.close()
    assert reader.stream(NAME) == Missing()


def test_no_descriptor_is_left_behind(log: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _index in range(10):
        reader.read(NAME, 0, 10)
        reader.size(NAME)
        stream = reader.stream(NAME)
        assert isinstance(stream, reader.Stream)
        stream.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_d13_the_last_page_of_a_long_log_is_cheap(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.truncate(log, 50 * 1024 * 1024)
    read: list[int] = []
    pread = os.pread

    def counting(descriptor: int, count: int, offset: int) -> bytes:
        content = pread(descriptor, count, offset)
        read.append(len(content))
        return content

    monkeypatch.setattr(os, "pread", counting)
    times: list[float] = []
    for _index in range(20):
        begin = time.perf_counter()
        found: Any = reader.read(NAME, -65_536, 65_536)
        times.append(time.perf_counter() - begin)
    assert (len(found.content), found.next_offset) == (65_536, None)
    assert sum(read) == 20 * 65_536
    assert min(times) < 0.005
