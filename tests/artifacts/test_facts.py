"""Names and the truncation fact of a log (spec/secrets-and-artifacts.md §5.1, §5.4)."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from apps.artifacts.facts import (
    FactExists,
    InvalidFact,
    TruncationFact,
    UnsafeTarget,
    artifact_id,
    decode_fact,
    encode_fact,
    ensure_private_directory,
    log_paths,
    publish_fact,
    read_fact,
)

RUN = "0198c0de-0000-7000-8000-000000000001"
ATTEMPT = "0198c0de-0000-7000-8000-000000000002"
ARTIFACT = "local-22321b5e490fbde881a38416224210"
FACT = TruncationFact(RUN, ATTEMPT, ARTIFACT, 65_536, True, 1_700_000_000_000)


def test_artifact_id_vector() -> None:
    assert artifact_id(RUN, ATTEMPT) == ARTIFACT
    assert len(ARTIFACT) == 36
    for bad in ("", RUN.upper(), RUN.replace("-7", "-4"), RUN + "\n"):
        with pytest.raises(ValueError):
            artifact_id(bad, ATTEMPT)


def test_paths() -> None:
    paths = log_paths("/root", ARTIFACT)
    assert paths.shard == "/root/22"
    assert paths.log == f"/root/22/{ARTIFACT}.log"
    assert paths.fact == f"/root/22/.{ARTIFACT}.log.truncated.json"
    assert paths.fact_temporary == f"/root/22/.{ARTIFACT}.log.truncated.tmp"
    for root, name in (
        ("root", ARTIFACT),
        ("/a\0", ARTIFACT),
        ("/root", "local-../../etc"),
        ("/root", ARTIFACT + "0"),
    ):
        with pytest.raises(ValueError):
            log_paths(root, name)


def test_canonical_bytes() -> None:
    data = encode_fact(FACT)
    assert data.decode() == (
        f'{{"schema_version":1,"run_id":"{RUN}","attempt_id":"{ATTEMPT}","log_artifact_id":"{ARTIFACT}",'
        '"maximum_bytes":65536,"quota_reached":true,"observed_at_ms":1700000000000}'
    )
    assert decode_fact(data) == FACT


@pytest.mark.parametrize(
    "changes",
    [
        {"maximum_bytes": 65_535},
        {"maximum_bytes": 1_073_741_825},
        {"quota_reached": 1},
        {"observed_at_ms": -1},
        {"observed_at_ms": True},
        {"run_id": "x"},
        {"log_artifact_id": "local-x"},
    ],
)
def test_values_out_of_bounds(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidFact):
        encode_fact(replace(FACT, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data + b"\n",
        lambda data: data.replace(b":1,", b": 1,"),
        lambda data: data.replace(b'"schema_version":1', b'"schema_version":2'),
        lambda data: data.replace(b'"schema_version":1', b'"schema_version":true'),
        lambda data: data.replace(b'{"schema_version":1,', b"{").replace(b"}", b',"schema_version":1}'),
        lambda data: data.replace(b"}", b',"more":1}'),
        lambda data: data.replace(b"true", b'"true"'),
        lambda data: data.replace(b"65536", b"65536.0"),
        lambda data: data + b" " * 1024,
        lambda data: b"\xff",
        lambda data: b"[" * 1000,
    ],
)
def test_other_spellings_are_refused(change) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidFact):
        decode_fact(change(encode_fact(FACT)))


def test_publish_once_and_read(tmp_path: Path) -> None:
    root = str(tmp_path / "logs")
    with pytest.raises(UnsafeTarget):
        read_fact(root, ARTIFACT)
    ensure_private_directory(root)
    assert read_fact(root, ARTIFACT) is None
    paths = log_paths(root, ARTIFACT)
    ensure_private_directory(paths.shard)
    Path(paths.fact_temporary).write_bytes(b"left by a crash")
    publish_fact(root, FACT)
    assert read_fact(root, ARTIFACT) == FACT
    assert stat.S_IMODE(os.stat(paths.fact).st_mode) == 0o600
    with pytest.raises(FactExists):
        publish_fact(root, replace(FACT, quota_reached=False))
    assert read_fact(root, ARTIFACT) == FACT
    assert os.listdir(paths.shard) == [Path(paths.fact).name]


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory", "large", "empty", "foreign", "shard"])
def test_unsafe_facts(tmp_path: Path, kind: str) -> None:
    paths = log_paths(str(tmp_path), ARTIFACT)
    shard, fact = Path(paths.shard), Path(paths.fact)
    if kind == "shard":
        shard.symlink_to(tmp_path)
    else:
        shard.mkdir()
    if kind == "symlink":
        (tmp_path / "elsewhere").write_bytes(encode_fact(FACT))
        fact.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(fact)
    elif kind == "directory":
        fact.mkdir()
    elif kind in ("large", "empty"):
        fact.write_bytes(b"x" * 1025 if kind == "large" else b"")
    elif kind == "foreign":
        fact.write_bytes(encode_fact(replace(FACT, log_artifact_id="local-" + "0" * 30)))
    with pytest.raises(UnsafeTarget):
        read_fact(str(tmp_path), ARTIFACT)


def test_private_directories(tmp_path: Path) -> None:
    made = tmp_path / "a" / "b" / "c"
    ensure_private_directory(str(made))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (made, made.parent, made.parent.parent)] == [
        0o700
    ] * 3
    made.chmod(0o755)
    ensure_private_directory(str(made))
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(made)
    with pytest.raises(UnsafeTarget):
        ensure_private_directory(str(tmp_path / "link"))
