"""Secrets in what a real script prints: masked as it is written, wherever the shim is cut off (lessons D16)."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apps.artifacts import places
from apps.dispatch.launcher import client
from apps.dispatch.launcher.forms import forms
from apps.dispatch.launcher.masker import Masker
from apps.dispatch.launcher.output import LogSink
from apps.dispatch.launcher.reading import parse
from apps.dispatch.launcher.spec import CommandBody, ScriptBody
from tests.dispatch.shim_kit import PYTHON, Kit, Live, alive, until

TOKEN = "ghp_R7c0m/Qz+8w&<k'\"x"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END KEY-----\n"
SECRETS = (("TOKEN", TOKEN), ("KEY", KEY))


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    found = Kit(tmp_path)
    yield found
    found.finish()


def python(source: str) -> ScriptBody:
    head = (
        "import base64, json, os, shlex, sys, time, urllib.parse\nT, K = os.environ['T'], os.environ['K']\n"
    )
    return ScriptBody(((PYTHON, "-u"),), "main.py", head + source)


def given(kit: Kit, **changes: Any) -> dict[str, Any]:
    return {
        "mask": SECRETS,
        "env": {"PATH": "/usr/bin:/bin", "HOME": f"{kit.home}/home", "T": TOKEN, "K": KEY},
        **changes,
    }


def found(live: Live) -> places.Places | None:
    return places.read(live.spec.log.root, live.spec.log.artifact_id)


def assert_clean(*texts: bytes) -> None:
    for _, value in SECRETS:
        for form in forms(value, 0):
            assert not any(form.text in text for text in texts), form.text


ALL_FORMS = """
for value in (T, K):
    raw = value.encode()
    print(value)
    print(base64.b64encode(raw).decode(), base64.b64encode(b'user:' + raw + b'@x').decode())
    print(base64.urlsafe_b64encode(b'a' + raw).decode(), raw.hex(), raw.hex().upper())
    print(urllib.parse.quote(value), urllib.parse.quote(value, safe=''), urllib.parse.quote_plus(value))
    print(json.dumps({'v': value}), json.dumps(value).replace('/', chr(92) + '/'), repr(value), shlex.quote(value))
    print(value.replace(chr(10), chr(13) + chr(10)), file=sys.stderr)
for byte in T.encode():
    os.write(1, bytes([byte])); time.sleep(0.001)
"""


def test_a_script_that_prints_its_secrets_in_every_form(kit: Kit) -> None:
    live = kit.run(python(ALL_FORMS), **given(kit))
    assert live.receipt().exit_code == 0
    assert_clean(live.log)
    noted = found(live)
    assert noted is not None
    assert noted.printed() == ("TOKEN", "KEY")
    offsets = noted.between(0, len(live.log))
    assert offsets == [match.start() for match in re.finditer(rb"\*\*\*", live.log)]
    assert live.log.endswith(b"***")


def test_nothing_the_shim_leaves_holds_a_value(kit: Kit) -> None:
    live = kit.launch(python("print(T); open(os.environ['QINGLONG_OUTPUT'], 'w').write(json.dumps({'t': T, 'ok': 1}))"),
                      **given(kit, before='echo "$T"', after='echo "$T"; exit 3'))  # fmt: skip
    live.go()
    live.end()
    for path in kit.home.rglob("*"):
        if path.is_file() and path.name != "main.py":
            assert_clean(path.read_bytes())
    assert live.fact("output.json") == {"t": "***", "ok": 1}
    assert live.log.count(b"***") == 3
    noted = found(live)
    assert noted is not None and (places.IN_OUTPUT, 0) in noted.found


def test_what_the_shim_itself_says_is_masked(kit: Kit) -> None:
    live = kit.run(
        CommandBody((f"/nowhere/{TOKEN.replace('/', '_')}/x",)),
        **given(kit, mask=(("A", TOKEN.replace("/", "_")),)),
    )
    assert live.log == b"qinglong: /nowhere/***/x: no such file\n"


def test_values_that_are_too_plain_are_named_at_the_top(kit: Kit) -> None:
    live = kit.run(
        "echo true $PIN",
        **given(kit, mask=(("FLAG", "true"), ("PIN", "1234"), ("TOKEN", TOKEN), ("NONE", ""))),
    )
    first, rest = live.log.split(b"\n", 1)
    assert (
        first
        == b"qinglong: too short or too plain to be masked, and so readable here where it is printed: FLAG, PIN"
    )
    assert rest == b"true\n"
    assert found(live) is None


def test_a_prompt_shows_at_once_and_a_beginning_does_not(kit: Kit) -> None:
    live = kit.launch(
        python("os.write(1, b'Password: ' + T[:8].encode()); sys.stdin.read(); time.sleep(60)"), **given(kit)
    )
    live.go()
    until(lambda: Path(live.paths.log).exists() and live.log == b"Password: ", "the prompt")
    live.shim.stop()
    live.end()
    assert live.log == b"Password: " + TOKEN[:8].encode()


def test_killed_in_the_middle_of_a_secret(kit: Kit) -> None:
    """KILL to the shim while it holds back: what it held is lost, what it wrote is masked."""
    live = kit.launch(
        python("os.write(1, b'a ' + T.encode() + b' b ' + T[:-1].encode()); time.sleep(60)"), **given(kit)
    )
    live.go()
    script = live.wait("started").pid
    until(lambda: Path(live.paths.log).exists() and live.log == b"a *** b ", "the masked output")
    shim = live.wait("ready").pid
    os.kill(shim, signal.SIGKILL)
    until(lambda: not alive(shim), "the end of the shim")
    os.kill(script, signal.SIGKILL)
    assert live.log == b"a *** b "
    noted = found(live)
    assert noted is not None
    assert noted.found == ((2, 0),)


def test_a_script_stopped_while_it_prints_leaves_no_half_secret(kit: Kit) -> None:
    live = kit.launch(python("os.write(1, b'a ' + T[:-1].encode()); time.sleep(60)"), **given(kit))
    live.go()
    until(lambda: Path(live.paths.log).exists() and live.log == b"a ", "the output before it")
    live.shim.stop()
    live.end()
    assert live.log == b"a ***"


def test_a_frozen_shim_goes_on_masking(kit: Kit) -> None:
    gate = kit.home / "gate"
    source = f"os.write(1, T[:9].encode())\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
    live = kit.launch(python(source + "os.write(1, T[9:].encode() + b'!')"), **given(kit))
    live.go()
    script = live.wait("started").pid
    shim = live.wait("ready").pid
    os.kill(shim, signal.SIGSTOP)
    gate.touch()
    until(lambda: not alive(script), "the end of the script")
    os.kill(shim, signal.SIGCONT)
    live.end()
    assert live.log == b"***!"


def test_masking_goes_on_when_its_session_is_gone(kit: Kit) -> None:
    """Whoever adopts the run finds the masked log and what was noted; the secrets are the shim's alone."""
    gate = kit.home / "gate"
    source = f"os.write(1, T[:9].encode())\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\nprint(T[9:], T)"
    live = kit.launch(python(source), **given(kit))
    live.go()
    handle = live.wait("ready").handle
    live.wait("started")
    live.shim.close()
    kit.launcher.close()
    gate.touch()
    live.receipt()
    until(lambda: client.inspect(handle) != "running", "the end of the shim")
    assert live.log == b"*** ***\n"
    noted = found(live)
    assert noted is not None
    assert noted.printed() == ("TOKEN",)


@pytest.mark.parametrize("room", [0, 1, 2, 3, 4])
def test_quota_counts_what_is_written_and_cuts_no_secret_open(kit: Kit, room: int) -> None:
    spec = kit.spec("")
    log = replace(spec.log, max_bytes=65_536)
    fill = 65_536 - room
    live = kit.run(
        python(f"os.write(1, b'-' * {fill}); os.write(1, T.encode() * 2 + b'rest')"),
        **given(kit, log=log, run_id=spec.run_id, attempt_id=spec.attempt_id),
    )
    assert live.log == b"-" * fill + b"******rest"[:room]
    assert live.truncation() is True
    noted = found(live)
    assert (None if noted is None else noted.found) == (((fill, 0), (fill + 3, 0))[: (room + 2) // 3] or None)


def test_masked_output_that_fits_is_not_cut(kit: Kit) -> None:
    """The quota is one of what is written: the secret is longer than its mark."""
    spec = kit.spec("")
    log = replace(spec.log, max_bytes=65_536)
    live = kit.run(python("print('-' * 65529 + T + '!!')"),
                   **given(kit, log=log, run_id=spec.run_id, attempt_id=spec.attempt_id))  # fmt: skip
    assert live.log == b"-" * 65_529 + b"***!!\n"
    assert live.truncation() is False


def test_output_without_secrets_is_byte_for_byte(kit: Kit) -> None:
    data = os.urandom(3_000_000)
    source = kit.home / "data"
    source.write_bytes(data)
    live = kit.run(CommandBody(("cat", str(source))), **given(kit))
    assert live.log == data
    assert found(live) is None


def test_a_shim_that_knew_secrets_takes_no_other_run(kit: Kit) -> None:
    live = kit.launch("true", **given(kit))
    live.go()
    assert not live.wait("ended").warm


def test_secrets_are_on_no_command_line_and_in_no_environment_but_the_scripts(kit: Kit) -> None:
    live = kit.launch("sleep 60", **given(kit))
    live.go()
    script = live.wait("started").pid
    shim = live.wait("ready").pid
    mine = {pid for pid in [*kit.processes(), shim] if pid != script}
    for pid in mine:
        for name in ("cmdline", "environ"):
            assert_clean(Path(f"/proc/{pid}/{name}").read_bytes())
    assert_clean(Path(f"/proc/{script}/cmdline").read_bytes())
    assert TOKEN.encode() in Path(f"/proc/{script}/environ").read_bytes()
    live.shim.stop()
    live.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="another process's memory needs root")
def test_the_launcher_never_holds_a_value(kit: Kit) -> None:
    for value in (TOKEN, TOKEN * 5_000):  # in a datagram, and in a memory file
        kit.launch("true", mask=(("A", value),)).go().end()
    launcher = kit.launcher_pid()
    with Path(f"/proc/{launcher}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{launcher}/maps").read_text().splitlines():
            if line.split()[1].startswith("rw"):
                first, end = (int(at, 16) for at in line.split()[0].split("-"))
                memory.seek(first)
                assert TOKEN.encode() not in memory.read(end - first)


def test_specification_carries_pairs_and_shows_none(kit: Kit) -> None:
    spec = kit.spec("true", **given(kit))
    assert TOKEN not in repr(spec)
    read = parse(spec.encode())
    assert read.mask == SECRETS
    assert read.engine is not None and Path(read.engine, "hyperscan").is_dir()
    assert "mask" not in json.loads(kit.spec("true").encode())


def test_without_the_engine_masking_is_as_complete(kit: Kit) -> None:
    live = kit.run(python(ALL_FORMS), **given(kit, engine="/nowhere"))
    assert_clean(live.log)
    other = kit.run(python(ALL_FORMS), **given(kit))
    assert live.log == other.log


def test_runs_without_secrets_load_nothing_for_it(kit: Kit) -> None:
    def loaded(live: Live) -> str:
        return Path(f"/proc/{live.wait('ready').pid}/maps").read_text()

    plain = kit.launch("true")
    assert "hyperscan" not in loaded(plain)
    plain.shim.close()
    masking = kit.launch("true", **given(kit))
    assert "hyperscan" in loaded(masking)
    masking.shim.close()


def test_many_places_of_one_secret_hide_no_other(kit: Kit) -> None:
    source = "print((T + chr(10)) * 3000 + base64.b64encode(K.encode()).decode())"
    live = kit.run(python(source), **given(kit))
    noted = found(live)
    assert noted is not None
    assert noted.printed() == ("TOKEN", "KEY")
    assert len([1 for _, number in noted.found if number == 0]) == places.PLACES_MAX
    assert live.log == b"***\n" * 3_001


FULL_DISK = """
with open(os.environ['QINGLONG_OUTPUT'], 'w') as file:
    json.dump({'token': T}, file)
# The masked text has no place: a folder stands where it would be written first.
folder = os.path.dirname(os.environ['QINGLONG_OUTPUT'])
os.mkdir(os.path.join(folder, '.' + os.path.basename(os.environ['QINGLONG_OUTPUT']) + '.tmp'))
"""


def test_an_output_that_cannot_be_masked_is_not_kept(kit: Kit) -> None:
    live = kit.run(python(FULL_DISK), **given(kit))
    assert live.receipt().exit_code == 0
    left = [path.read_bytes() for path in Path(live.spec.attempt_dir).rglob("*") if path.is_file()]
    assert_clean(live.log, *left)
    assert b"could not be masked" in live.log


@pytest.mark.parametrize("breaks", ["feed", "flush"])
def test_a_masker_that_breaks_costs_the_log_and_neither_a_secret_nor_the_end(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    sink = LogSink(kit.spec("true", **given(kit)))
    sink.feed(memoryview(b"before\n" + TOKEN[:9].encode()))

    def broken(*_arguments: object) -> list[Any]:
        raise MemoryError

    monkeypatch.setattr(Masker, breaks, broken)
    if breaks == "feed":
        sink.feed(memoryview(TOKEN[9:].encode() + b"\n"))
        sink.feed(memoryview(KEY.encode()))
        sink.say("still here")
    sink.close()
    log = Path(sink.paths.log).read_bytes()
    assert log.startswith(b"before\n") and b"masking failed" in log and sink.incomplete
    assert TOKEN[:9].encode() not in log and b"MIIEvQ" not in log
