"""One script under its supervisor: real processes, real files (architecture §2, lessons D12–D17)."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from apps.dispatch.launcher import files
from apps.dispatch.launcher.spec import CommandBody, LogSpec, ScriptBody, ShellBody
from tests.dispatch.shim_kit import PATH, PYTHON, Kit

ODD = {
    "NEWLINES": "one\ntwo\n\n",
    "QUOTES": "a'b\"c`d`$HOME$(id)\\",
    "SPACES": "  both ends  ",
    "UNICODE": "中文 é \U0001f409",
    "RAW": "\udcff\udc80",
    "EMPTY": "",
    "EQUALS": "a=b=c",
}
ENV_SCRIPT = "import os, sys; sys.stdout.buffer.write(open('/proc/self/environ', 'rb').read())"


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(tmp_path)
    yield made
    made.finish()


def environ(log: bytes) -> dict[bytes, bytes]:
    pairs = (entry.partition(b"=") for entry in log.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def raw(values: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode("utf-8", "surrogateescape") for name, value in values.items()}


# -- bodies and results ---------------------------------------------------------------------------------


def test_command_ends_with_its_code_and_facts(kit: Kit) -> None:
    live = kit.run(CommandBody(("sh", "-c", "echo out; echo err >&2; sleep 0.1; exit 7")))
    receipt = live.receipt()
    assert receipt.exit_code == 7
    assert receipt.token == live.spec.token
    assert receipt.finished_at_ms >= receipt.started_at_ms > 1_600_000_000_000
    assert live.log == b"out\nerr\n"
    assert live.truncation() is False
    assert live.fact("log.json") is None
    assert live.fact("stop.json") is None
    started = live.wait("started")
    assert started.pid > 1
    assert started.started_at_ms == receipt.started_at_ms
    live.wait("ended")


def test_files_are_private(kit: Kit) -> None:
    live = kit.run(ScriptBody((("sh",),), "main.sh", "true"))
    modes = {
        path: stat.S_IMODE(path.lstat().st_mode)
        for root in (live.spec.attempt_dir, live.spec.log.root, live.spec.receipts_root)
        for path in [Path(root), *Path(root).rglob("*")]
    }
    assert {oct(mode) for path, mode in modes.items() if path.is_dir()} == {"0o700"}
    assert {oct(mode) for path, mode in modes.items() if path.is_file()} == {"0o600"}
    assert not [path for path in modes if path.name.endswith(".tmp")]


@pytest.mark.parametrize(("text", "code"), [("exit 0", 0), ("exit 255", 255), ("kill -9 $$", 137)])
def test_exit_codes(kit: Kit, text: str, code: int) -> None:
    assert kit.launch(text).go().end() == code


def test_shell_arguments_and_long_text(kit: Kit) -> None:
    live = kit.run(ShellBody('printf "%s|" "$#" "$@"', ("a b", "$x", "")))
    assert live.log == b"3|a b|$x||"
    live = kit.run(ShellBody("#" * 300_000 + '\nprintf "%s|" "$@"', ("x y",)))
    assert live.log == b"x y|"


def test_script_uses_the_first_interpreter_there_is(kit: Kit) -> None:
    body = ScriptBody(
        (("no-such-thing",), (PYTHON, "-I")), "main.py", "import sys\nprint(sys.argv[1:])", ("é",)
    )
    live = kit.run(body)
    assert live.receipt().exit_code == 0
    assert live.log.decode() == "['é']\n"


@pytest.mark.parametrize(
    ("body", "code", "line"),
    [
        (CommandBody(("no-such-thing",)), 127, b"qinglong: no-such-thing: not found on PATH"),
        (CommandBody(("/no/such",)), 127, b"qinglong: /no/such: no such file"),
        (CommandBody(("/etc/passwd",)), 126, b"qinglong: /etc/passwd: not executable"),
        (ScriptBody((("nodex",), ("nodey",)), "a.js", ""), 127, b"qinglong: none of nodex, nodey was found"),
        (CommandBody(("true", "x" * 200_000)), 126, b"too long"),
    ],
)
def test_what_cannot_start_says_so(kit: Kit, body: CommandBody | ScriptBody, code: int, line: bytes) -> None:
    live = kit.run(body)
    assert live.receipt().exit_code == code
    assert line in live.log
    live.wait("ended")


def test_working_folder(kit: Kit) -> None:
    inside = f"{kit.home}/home/deep/er"
    live = kit.run("pwd", cwd=inside)
    assert live.log.decode().strip() == inside
    assert stat.S_IMODE(os.stat(inside).st_mode) == 0o700
    live = kit.run("pwd", cwd=f"{kit.home}/elsewhere")
    assert live.receipt().exit_code == 126
    assert live.log.startswith(b"qinglong: the working folder cannot be used")


def test_a_neighbour_makes_the_project_folder_at_the_same_time(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = kit.spec("pwd", cwd=f"{kit.home}/home/project/task")
    made = os.mkdir

    def made_before(path: str, mode: int) -> None:
        made(path, mode)
        if path.endswith("/project"):
            raise FileExistsError

    monkeypatch.setattr(files.os, "mkdir", made_before)
    files.make_working_folder(spec)
    assert os.path.isdir(spec.cwd)


def test_input_and_output(kit: Kit) -> None:
    text = 'cat "$QINGLONG_INPUT"; echo "{}" > "$QINGLONG_OUTPUT"; echo; test -d "$TMPDIR" && echo yes'
    live = kit.run(text, input='{"a":"中"}')
    assert live.log.decode() == '{"a":"中"}\nyes\n'
    assert live.fact("output.json") == {}
    assert set(os.listdir(live.spec.attempt_dir)) == {"input.json", "output.json"}
    assert kit.run(text).log == b"{}\nyes\n"
    assert stat.S_IMODE((kit.node / "empty-input.json").stat().st_mode) == 0o400


# -- the script's world ---------------------------------------------------------------------------------


def test_environment_byte_for_byte(kit: Kit) -> None:
    """Lessons D15: in a command, a script, a shell and behind a hook."""
    given = {"PATH": PATH, "HOME": f"{kit.home}/home", **ODD}
    bodies = {
        "command": CommandBody((PYTHON, "-c", ENV_SCRIPT)),
        "script": ScriptBody(((PYTHON,),), "main.py", ENV_SCRIPT),
        "shell": ShellBody("unset PWD OLDPWD; exec cat /proc/self/environ"),
    }
    for before in (None, "true"):
        for name, body in bodies.items():
            live = kit.run(body, env=given, before=before)
            expected = raw(given)
            expected[b"QINGLONG_INPUT"] = f"{kit.node}/empty-input.json".encode()
            expected[b"QINGLONG_OUTPUT"] = f"{live.spec.attempt_dir}/output.json".encode()
            expected[b"QINGLONG_ARTIFACTS"] = f"{live.spec.attempt_dir}/artifacts".encode()
            expected[b"TMPDIR"] = live.spec.attempt_dir.encode()
            assert environ(live.log) == expected, (name, before)


def test_script_sees_three_descriptors_and_default_signals(kit: Kit) -> None:
    # Python itself ignores SIGPIPE and SIGXFSZ, the C library 32 and 33 in what it spawns.
    body = (
        "import os; print(sorted(os.listdir('/proc/self/fd'))[:-1], os.readlink('/proc/self/fd/0'));"
        "s = open('/proc/self/status').read().split();"
        "print(int(s[s.index('SigBlk:')+1], 16), int(s[s.index('SigIgn:')+1], 16) & ~0x181001000)"
    )
    live = kit.run(CommandBody((PYTHON, "-I", "-c", body)))
    assert live.log == b"['0', '1', '2'] /dev/null\n0 0\n"


def test_group_signal_spares_the_shim(kit: Kit) -> None:
    live = kit.run("kill -TERM 0; sleep 5")
    assert live.receipt().exit_code == 143
    assert live.fact("stop.json") is None


def test_shim_memory_is_closed_to_the_script(kit: Kit) -> None:
    live = kit.launch("sleep 20").go()
    pid = live.wait("ready").pid
    if os.geteuid() == 0:
        assert Path(f"/proc/{pid}/environ").read_bytes() == b""
    else:
        with pytest.raises(PermissionError):
            Path(f"/proc/{pid}/environ").read_bytes()
    live.shim.stop()
    live.end()


# -- hooks ----------------------------------------------------------------------------------------------


def test_before_exports_reach_the_body(kit: Kit) -> None:
    before = "export NEW='a\nb  '\nexport HOME=/changed\nunset GONE\nPLAIN=1\nset -a\nALL='\"$x`'\nexit 0"
    live = kit.run(
        CommandBody((PYTHON, "-c", ENV_SCRIPT)),
        env={"PATH": PATH, "HOME": f"{kit.home}/home", "GONE": "1", "od.d": "kept"},
        before=before,
    )
    found = environ(live.log)
    assert found[b"NEW"] == b"a\nb  "
    assert found[b"HOME"] == b"/changed"
    assert found[b"ALL"] == b'"$x`'
    assert found[b"od.d"] == b"kept"
    assert not {b"GONE", b"PLAIN", b"PWD", b"OLDPWD", b"SHLVL", b"_"} & set(found)


def test_before_with_its_own_trap_and_path(kit: Kit) -> None:
    live = kit.run("echo $A", before="trap 'echo bye' EXIT; export A=1; PATH=/nowhere")
    assert live.log.startswith(b"bye\n1\n")


def test_failing_before_is_shown_and_forgiven(kit: Kit) -> None:
    live = kit.run("echo body $A", before="export A=x; set -e; false; echo never")
    assert live.receipt().exit_code == 0
    assert live.log == b"qinglong: before ended with exit code 1; this does not change the run\nbody x\n"


def test_before_that_replaces_its_shell(kit: Kit) -> None:
    live = kit.run("echo body", before="exec true")
    assert live.log.endswith(b"body\n")
    assert b"left no variables" in live.log


def test_hook_text_is_never_shell_source(kit: Kit) -> None:
    live = kit.run("true", before="""echo "it's" '$1' `echo x`; echo '"; exit 9; "'""", after="echo '\\'")
    assert live.log.splitlines()[:3] == [b"it's $1 x", b'"; exit 9; "', b"\\"]


def test_after_sees_the_code_and_does_not_change_it(kit: Kit) -> None:
    live = kit.run("exit 5", after='echo "code $QINGLONG_EXIT_CODE"; exit 3')
    assert live.receipt().exit_code == 5
    assert live.log.startswith(b"code 5\n")
    assert kit.run(CommandBody(("nothing-here",)), after="echo after").log.endswith(b"after\n")


def test_before_may_leave_a_helper_for_the_body(kit: Kit) -> None:
    live = kit.run("kill -0 $HELPER && echo there", before="sleep 30 & export HELPER=$!")
    assert live.log == b"there\n"
    assert live.fact("stop.json")["cause"] == "leftover"


def test_values_made_in_before_keep_their_spaces(kit: Kit) -> None:
    live = kit.run("printf '%s' \"$A\"", before="A=$(printf 'x\\n y '); export A")
    assert live.log == b"x\n y "


# -- output ---------------------------------------------------------------------------------------------


def test_output_is_kept_byte_for_byte(kit: Kit) -> None:
    data = os.urandom(3_000_000) + b"x" * 1_000_000 + b"\xff\xfe"
    source = kit.home / "data"
    source.write_bytes(data)
    live = kit.run(CommandBody(("cat", str(source))))
    assert live.log == data


@pytest.mark.parametrize("extra", [-1, 0, 1, 5_000_000])
def test_quota_is_exact(kit: Kit, extra: int) -> None:
    spec = kit.spec("")
    log = replace(spec.log, max_bytes=65_536)
    size = 65_536 + extra
    live = kit.run(
        f"head -c {size} /dev/zero; exit 4", run_id=spec.run_id, attempt_id=spec.attempt_id, log=log
    )
    assert live.receipt().exit_code == 4
    assert len(live.log) == min(size, 65_536)
    assert live.truncation() is (extra > 0)
    expected = {"incomplete": False, "bytes_seen": size, "bytes_written": 65_536} if extra > 0 else None
    assert live.fact("log.json") == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_full_disk_costs_log_bytes_only(kit: Kit) -> None:
    disk = kit.home / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,nr_inodes=64", "tmpfs", str(disk)], check=True)
    try:
        spec = kit.spec("")
        live = kit.run(
            "head -c 3000000 /dev/zero; exit 6",
            run_id=spec.run_id,
            attempt_id=spec.attempt_id,
            log=LogSpec(f"{disk}/logs", spec.log.artifact_id, 1 << 24),
            receipts_root=f"{disk}/receipts",
        )
        assert live.receipt().exit_code == 6
        assert live.fact("log.json")["incomplete"] is True
        assert live.fact("log.json")["bytes_seen"] == 3_000_000
        full = kit.launch("true", receipts_root=f"{disk}/other")
        assert full.wait("failed").code == "io_error"
        assert full.traces() == []
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
