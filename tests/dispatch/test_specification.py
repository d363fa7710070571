"""The specification of a launch: two lines, read strictly, and what is kept of them (lessons D15)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.dispatch.launcher import reading
from apps.dispatch.launcher.reading import parse
from apps.dispatch.launcher.spec import ScriptBody, ShellBody, SpecError
from tests.dispatch.shim_kit import Kit, written


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(tmp_path)
    yield made
    made.finish()


def test_specification_is_strict(kit: Kit) -> None:
    good = json.loads(kit.spec("true").encode())
    assert parse(written(good)).body == ShellBody("true")
    bad = [
        {**good, "extra": 1},
        {name: value for name, value in good.items() if name != "env"},
        {**good, "env": {"A": "x\0y"}},
        {**good, "env": {"A=B": "x"}},
        {**good, "before": "echo \0"},
        {**good, "body": {"kind": "command", "argv": ["a\0b"]}},
        {**good, "body": {"kind": "command", "argv": []}},
        {**good, "body": {"kind": "shell", "text": "x", "args": [], "more": 1}},
        {
            **good,
            "body": {
                **json.loads(kit.spec(ScriptBody((("sh",),), "a", "")).encode())["body"],
                "filename": "../a",
            },
        },
        {**good, "attempt_dir": "relative"},
        {**good, "cwd": "/a/../b"},
        {**good, "timeout_ms": True},
        {**good, "grace_ms": -1},
        {**good, "mask": ["secret"]},
        {**good, "mask": {"secrets": [], "engine": None}},
        {**good, "mask": {"secrets": [["name", "secret"]], "engine": "relative"}},
        {**good, "mask": {"secrets": [["name", "secret", "more"]], "engine": None}},
        {**good, "mask": {"secrets": [["name", "se\0cret"]], "engine": None}},
        {**good, "token": "short"},
        {**good, "log": {**good["log"], "max_bytes": 65_535}},
        {**good, "env": {"A": "\ud800"}},
    ]
    for value in bad:
        with pytest.raises(SpecError):
            parse(written(value))
    told = kit.launch("true", env={"A": "a\0b"}).wait("failed")
    assert told.code == "invalid_spec"
    assert "NUL" in told.detail
    with pytest.raises(SpecError, match="12 MiB"):
        kit.launch("#" * (12 << 20))


def test_specification_is_two_lines(kit: Kit) -> None:
    good = kit.spec("true").encode()
    own, common = good.split(b"\n")
    flat = json.dumps(json.loads(good)).encode()
    for wrong in (
        flat,
        common,
        own,
        own + b"\n",
        own + b"\n}",
        own[:-1] + b"\n" + common,
        good + b"\n" + common,
    ):
        with pytest.raises(SpecError):
            parse(wrong)
    for name, value in (("cwd", '"/"'), ("run_as", "null")):
        with pytest.raises(SpecError):
            parse(own + f'"{name}":{value},'.encode() + b"\n" + common)


def test_what_runs_have_in_common_is_read_once_and_never_mixed_up(kit: Kit) -> None:
    first, second = kit.spec("exit 1"), kit.spec("exit 1")
    other, big = kit.spec("exit 2", timeout_ms=5), kit.spec("#" * 20_000)
    read = [parse(one.encode()) for one in (first, second, other, big, first)]
    assert read == [first, second, other, big, first]
    assert read[0].body is read[1].body
    held = reading._common.cache_info()
    assert held.currsize == 1
    assert parse(big.encode()).body is not read[3].body


def test_secrets_stay_out_of_repr(kit: Kit) -> None:
    spec = kit.spec("echo hush", env={"PASSWORD": "hush"}, token="hush" * 10)
    assert "hush" not in repr(spec)
