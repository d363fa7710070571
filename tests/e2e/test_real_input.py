"""The main job with what people really run, each case by the API and by the panel (lessons D12–D15)."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.e2e.person import ByApi, ByPanel, House, processes_with
from tests.e2e.up_kit import eventually

Door = ByApi | ByPanel

ENV = {
    "LINES": "first\nsecond\n\nfourth\n",
    "QUOTES": """it's "quoted" \\" \\' '\\''""",
    "DOLLARS": "$HOME ${PATH} $(id) $$ $1 %PATH% !!",
    "BACKTICKS": "`id` ``",
    "SPACES": "  led and followed by spaces  \t ",
    "UNICODE": "青龙 🐉 é\u0301 \u202e\u200b\ufeff",
    "ESCAPES": "\\n \\x41 \\u0041 %s %% {} {{x}} <b>&amp;</b> #{x}",
    "EMPTY": "",
    "JSON": '{"a": [1, "zwei\\n"]}',
    "CONTROL": "\x01\x1b[31mred\x7f",
}
SHOW = """
import os
for name in sorted(os.environb):
    if name.startswith(b"QLT_"):
        print(name.decode(), os.environb[name].hex())
"""


@pytest.fixture(params=["api", "panel"])
def door(request: pytest.FixtureRequest, house: House) -> Iterator[Door]:
    yield next(door for door in house.doors() if door.name == request.param)


def settled(house: House, run_id: str, status: str, seconds: float = 30) -> dict[str, object]:
    run = house.api.until(run_id, seconds=seconds)
    assert run["status"] == status, (run, house.api.log(run_id)[-2000:])
    return run


def python(source: str, *args: str) -> dict[str, object]:
    return {"language": "python", "source": source, "args": list(args)}


def test_a_environment_values_arrive_byte_for_byte(house: House, door: Door) -> None:
    env = {f"QLT_{name}": value for name, value in ENV.items()}
    task = door.make(script=python(SHOW), env=env)
    assert task["env"] == env
    run_id = door.start(task)
    settled(house, run_id, "succeeded")
    lines = [line.split(" ") for line in door.log(run_id).decode().splitlines()]
    assert {name: bytes.fromhex(content) for name, content in lines} == {
        name: value.encode() for name, value in env.items()
    }


def test_a_a_form_saved_untouched_changes_no_byte(house: House) -> None:
    """Text boxes turn every line break into CR LF; what a person did not touch must not follow."""
    env = {f"QLT_{name}": value for name, value in ENV.items()} | {"QLT_CR": "a\r\nb\rc\n"}
    source = "\n\n" + SHOW + "\r\n# ende\r\n  "
    args = ["one", "two\nthree", "", " $x "]
    task = house.api.make(script=python(source, *args), env=env, before="true\r\n", labels=["a", "b"])
    address = f"/panel/p/default/task/{task['slug']}/edit/"
    house.browser.submit(address, having="slug", button=("do", "save"))
    after = house.api.ok("GET", f"/projects/default/tasks/{task['slug']}")
    assert after["revision"] == task["revision"], (task, after)
    assert after["env"] == env and after["script"]["source"] == source and after["script"]["args"] == args
    run_id = house.api.start(task)
    settled(house, run_id, "succeeded")
    assert b"QLT_CR 610d0a620d630a\n" in house.api.log(run_id)


def test_a_nothing_of_the_panel_reaches_a_script(house: House, door: Door) -> None:
    task = door.make(script=python("import os\nfor n in os.environ: print(n)"))
    run_id = door.start(task)
    settled(house, run_id, "succeeded")
    assert set(door.log(run_id).decode().split()) == {
        "PATH", "HOME", "LANG", "TZ", "TMPDIR", "PYTHONUNBUFFERED", "QINGLONG_RUN_ID", "QINGLONG_TASK",
        "QINGLONG_PROJECT", "QINGLONG_ATTEMPT", "QINGLONG_TRIGGER", "QINGLONG_INPUT", "QINGLONG_OUTPUT",
        "QINGLONG_ARTIFACTS", "RUN_FENCE",
    }  # fmt: skip


def test_a_a_nul_is_refused_with_a_message(house: House) -> None:
    answer = house.api.call(
        "POST", "/projects/default/tasks", {"name": "nul", "shell": "true", "env": {"A": "x\0y"}}
    )
    assert answer.status == 400 and "env" in str(answer.json["errors"]), answer.text


def test_a_values_are_on_no_command_line(house: House, door: Door) -> None:
    """Lessons D16: whoever lists processes reads no value."""
    marker = f"value-{secrets.token_hex(8)}"
    task = door.make(
        script=python("import time; print('up', flush=True); time.sleep(1.2)"), env={"SECRET": marker}
    )
    run_id = door.start(task)
    found = eventually(lambda: processes_with(marker), "the script")
    for pid in found:
        assert marker.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    settled(house, run_id, "succeeded")


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js")
def test_b_a_node_script(house: House, door: Door) -> None:
    source = (
        "const fs = require('fs');\n"
        "console.log(`${process.env.WHO} says ${process.argv.slice(2).join('|')}`);\n"
        "console.error('to stderr');\n"
        "fs.writeFileSync(process.env.QINGLONG_OUTPUT, JSON.stringify({half: 21, input: JSON.parse("
        "fs.readFileSync(process.env.QINGLONG_INPUT))}));\n"
        "process.exitCode = 3;\n"
    )
    script = {"language": "node", "source": source, "args": ["a b", "$c"]}
    task = door.make(script=script, env={"WHO": "node `x`"})
    run_id = door.start(task)
    run = settled(house, run_id, "failed")
    assert run["exit_code"] == 3 and run["error_code"] == "EXECUTION_FAILED"
    assert door.log(run_id) == b"node `x` says a b|$c\nto stderr\n"


def test_b_typescript_runs_or_says_what_is_missing(house: House, door: Door) -> None:
    source = "const twice = (n: number): number => 2 * n;\nconsole.log(`${twice(21)}`);\n"
    task = door.make(script={"language": "typescript", "source": source, "args": []})
    run_id = door.start(task)
    run = house.api.until(run_id)
    log = door.log(run_id).decode()
    if any(shutil.which(name) for name in ("tsx", "bun", "deno")):
        assert (run["status"], log) == ("succeeded", "42\n")
    elif run["status"] != "succeeded":
        assert run["status"] == "failed" and "tsx" in log and "install" in log, (run, log)


def test_c_a_pipeline_with_a_failing_middle(house: House, door: Door) -> None:
    """`/bin/sh -c` judges by the last part; a shell script may ask for more."""
    pipeline = "printf 'b\\na\\n' | (cat; exit 3) | sort"
    run_id = door.start(door.make(shell=pipeline))
    assert settled(house, run_id, "succeeded")["exit_code"] == 0
    assert door.log(run_id) == b"a\nb\n"

    source = f"set -euo pipefail\n{pipeline}\necho never\n"
    run_id = door.start(door.make(script={"language": "shell", "source": source, "args": []}))
    assert settled(house, run_id, "failed")["exit_code"] == 3
    assert door.log(run_id) == b"a\nb\n"


def test_c_a_signal_is_128_and_its_number(house: House, door: Door) -> None:
    run_id = door.start(door.make(shell="kill -SEGV $$"))
    assert settled(house, run_id, "failed")["exit_code"] == 139


@pytest.mark.skipif(not os.environ.get("DATABASE_URL"), reason="no PostgreSQL in DATABASE_URL")
@pytest.mark.skipif(shutil.which("pg_dump") is None, reason="no pg_dump")
def test_d_pg_dump_of_a_real_database(house: House, door: Door) -> None:
    parts = urlsplit(house.extra["DATABASE_URL"])
    env = {
        "PGHOST": parts.hostname or "", "PGPORT": str(parts.port or 5432), "PGUSER": unquote(parts.username or ""),
        "PGPASSWORD": unquote(parts.password or ""), "PGDATABASE": parts.path[1:],
    }  # fmt: skip
    task = door.make(command=["pg_dump", "-Fc", "-f", "whole database.dump"], env=env)
    run_id = door.start(task)
    settled(house, run_id, "succeeded", 60)
    dump = house.up.home / "homes" / "default" / task["id"] / "whole database.dump"
    listed = subprocess.run(["pg_restore", "-l", dump], capture_output=True, text=True, check=True).stdout
    assert "TABLE DATA public runs" in listed and "TABLE DATA public tasks" in listed
    assert door.log(run_id) == b""


FLOOD = """
import sys
out = sys.stdout.buffer
for n in range(100_000):
    if n == 50_000:
        out.write(b"x" * 1_048_576 + b"\\n")
    elif n % 1000 == 7:
        out.write(b"%d \\xff\\xfe\\xc3( \\xed\\xa0\\x80\\n" % n)
    else:
        out.write("%d 行 line\\n".encode() % n)
out.flush()
"""


@pytest.fixture(scope="module")
def flood() -> bytes:
    """The same bytes, written by a process that nobody supervises."""
    return subprocess.run([sys.executable, "-c", FLOOD], capture_output=True, check=True).stdout


def test_e_a_hundred_thousand_lines(house: House, door: Door, flood: bytes) -> None:
    run_id = door.start(door.make(script=python(FLOOD)))
    settled(house, run_id, "succeeded", 60)
    assert door.log(run_id) == flood
    path, size = f"/runs/{run_id}/log", len(flood)
    call = house.api.call

    head = call("HEAD", path)
    assert head.status == 200 and head.content == b""
    assert head.headers["X-Log-Size"] == str(size)
    assert (head.headers["X-Log-Complete"], head.headers["X-Log-Truncated"]) == ("true", "false")
    first = call("GET", path)
    assert first.content == flood[:262_144] and first.headers["Content-Type"] == "application/octet-stream"
    assert first.headers["X-Content-Type-Options"] == "nosniff"
    assert call("GET", f"{path}?offset=-65536").content == flood[-65_536:]
    assert call("GET", f"{path}?offset=-{size + 5}&limit=10").content == flood[:10]
    assert call("GET", f"{path}?offset=700001&limit=262144").content == flood[700_001:962_145]
    assert call("GET", f"{path}?offset={size}").content == b""
    assert call("GET", f"{path}?offset={size + 10}").status == 200
    assert call("GET", f"{path}?limit=262145").status == 400

    for header, expected in (
        ("bytes=0-99", flood[:100]), ("bytes=-1000", flood[-1000:]), (f"bytes={size - 7}-", flood[-7:]),
        (f"bytes=10-{size * 2}", flood[10:]),
    ):  # fmt: skip
        part = call("GET", path, Range=header)
        assert part.status == 206 and part.content == expected, header
        assert part.headers["Content-Range"].endswith(f"/{size}")
    refused = call("GET", path, Range=f"bytes={size}-")
    assert refused.status == 416 and refused.headers["Content-Range"] == f"bytes */{size}"
    assert refused.json["code"] == "range_not_satisfiable"

    # Decoded for display only: replacement characters, the end first, nothing dropped between two pages.
    page = house.browser.get(f"/panel/runs/{run_id}/")
    assert page.status == 200 and "99999 行 line" in page.text and "\ufffd" in page.text


def test_e_what_goes_beyond_the_quota_is_cut_and_said(house: House, door: Door, flood: bytes) -> None:
    run_id = door.start(door.make(script=python(FLOOD), log_quota_bytes=65_536))
    settled(house, run_id, "succeeded", 60)
    assert door.log(run_id) == flood[:65_536]
    head = house.api.call("HEAD", f"/runs/{run_id}/log")
    assert (head.headers["X-Log-Complete"], head.headers["X-Log-Truncated"]) == ("true", "true")
    assert head.headers["X-Log-Size"] == "65536"


def test_e_output_is_there_within_a_second(house: House, door: Door) -> None:
    run_id = door.start(door.make(shell="echo first; sleep 2.5; echo last"))
    house.api.until(run_id, ["running"])
    eventually(lambda: house.api.call("GET", f"/runs/{run_id}/log").content == b"first\n", "live output", 1)
    live = house.api.call("GET", f"/runs/{run_id}/log")
    assert live.headers["X-Log-Complete"] == "false"
    settled(house, run_id, "succeeded")
    assert door.log(run_id) == b"first\nlast\n"


ESCAPE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        for number in (1, 2, 15):
            signal.signal(number, signal.SIG_IGN)
        os.closerange(0, 256)
        time.sleep(600)
    os._exit(0)
os.wait()
print("forked", flush=True)
time.sleep(600)
"""


def test_f_a_stop_leaves_nothing_behind(house: House, door: Door) -> None:
    """Lessons D12: a daemon in a session of its own that hears no signal."""
    marker = f"marker-{secrets.token_hex(8)}"
    run_id = door.start(door.make(script=python(ESCAPE), env={"MARKER": marker}, kill_grace_ms=500))
    eventually(lambda: house.api.call("GET", f"/runs/{run_id}/log").content == b"forked\n", "two generations")
    assert len(processes_with(marker)) == 2
    door.stop(run_id)
    run = settled(house, run_id, "cancelled")
    # Not "soon": whoever reads `cancelled` may rely on it.
    assert processes_with(marker) == []
    assert run["cancel_reason"] == "user" and run["error_code"] == "EXECUTION_CANCELLED"
    types = [event["type"] for event in house.api.events(run_id)]
    assert types.count("attempt.cancelled") == types.count("run.cancelled") == 1


def test_f_what_a_script_leaves_running_ends_with_it(house: House, door: Door) -> None:
    marker = f"marker-{secrets.token_hex(8)}"
    source = ESCAPE.rpartition("time.sleep")[0]
    run_id = door.start(door.make(script=python(source), env={"MARKER": marker}, kill_grace_ms=200))
    settled(house, run_id, "succeeded")
    assert processes_with(marker) == []
