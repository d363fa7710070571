"""Secrets of an attempt: looked up at its start, given by variable or by file, kept nowhere (secrets §3.6, §4.3)."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.dispatch import given, launching
from apps.dispatch.errors import EnvironmentTooLarge
from apps.dispatch.launcher.reading import parse
from apps.dispatch.launcher.spec import CommandBody, ShellBody, SpecError
from apps.dispatch.launching import LaunchRefused, Planner
from apps.projects.policy import Grant
from apps.runs.models import Run
from apps.tasks.models import Task
from apps.vault import keyring, recipes, services
from tests.dispatch.sessions import Home
from tests.dispatch.shim_kit import Kit, written
from tests.runs import kit

VALUE = "hunter2-is-long-enough"
MANAGE = Grant.system("default", "secret.manage", "tests")


def put(name: str, value: str, expected: int = 0) -> None:
    services.put(MANAGE, name, value, mutation_id=f"m{expected}", expected_version=expected)


def plan(task: Task, planner: Planner | None = None) -> launching.Plan:
    run = kit.run_of(task)
    return (planner or Planner()).plan(run, kit.attempt_of(run), "default", task.slug)


def ends(home: Home, task: Task) -> Run:
    run = kit.run_of(task)
    home.session()
    return kit.fresh(run)


PROBE = """
import json, os, stat
path = os.environ.get("TLS_FILE")
found = {
    "TOKEN": os.environ.get("TOKEN"), "TLS": os.environ.get("TLS"), "path": path,
    "argv": open("/proc/self/cmdline").read(),
}
if path:
    info = os.stat(path)
    found |= {"content": open(path, newline="").read(), "mode": stat.S_IMODE(info.st_mode),
              "folder": stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode), "owner": info.st_uid}
json.dump(found, open(os.environ["PROBE"], "w"))
"""


def probe(home: Home, **secrets: Any) -> dict[str, Any]:
    task = kit.task(
        script={"language": "python", "source": PROBE}, env={"PROBE": f"{home.path}/probe"}, secrets=secrets
    )
    run = ends(home, task)
    assert run.status == "succeeded", (run.error_code, run.error_summary, home.log_of(run))
    found: dict[str, Any] = json.loads((home.path / "probe").read_text())
    assert not list((home.path / "node/attempts").glob("*/*")), "nothing of the attempt is left"
    return found


def test_by_variable_and_by_file(home: Home) -> None:
    odd = "-----BEGIN-----\r\nline 'two' \"$X\" `id`\n\n-----END-----\n  "
    put("token", VALUE + " \n'\"$HOME`id`")
    put("tls", odd)
    found = probe(home, TOKEN="token", TLS={"secret": "tls", "as": "file"})
    assert found["TOKEN"] == VALUE + " \n'\"$HOME`id`"
    assert (found["TLS"], found["content"]) == (None, odd)
    assert (found["mode"], found["folder"], found["owner"]) == (0o600, 0o700, os.geteuid())
    assert found["path"].startswith(str(home.path / "node/attempts"))
    assert VALUE not in found["argv"]
    assert not Path(found["path"]).exists()


def test_a_large_value_goes_by_file(home: Home) -> None:
    put("tls", "x" * given.BY_VARIABLE_BYTES)
    found = probe(home, TLS="tls")
    assert (found["TLS"], found["path"]) == ("x" * given.BY_VARIABLE_BYTES, None)
    put("tls", "é" * (given.BY_VARIABLE_BYTES // 2 + 1), 1)
    found = probe(home, TLS="tls")
    assert (found["TLS"], found["content"]) == (None, "é" * (given.BY_VARIABLE_BYTES // 2 + 1))


def test_an_empty_value_is_there(home: Home) -> None:
    put("token", "")
    assert probe(home, TOKEN="token")["TOKEN"] == ""


def test_a_new_version_counts_from_the_next_start(home: Home) -> None:
    """The planner remembers revisions and recipes, never a value."""
    put("token", "first-value-here")
    task = kit.task(shell="true", secrets={"TOKEN": "token"})
    planner = Planner()
    assert plan(task, planner).spec.env["TOKEN"] == "first-value-here"
    put("token", "second-value-here", 1)
    planned = plan(task, planner)
    assert planned.spec.env["TOKEN"] == "second-value-here"
    assert planned.spec.mask == (("token", "second-value-here"),)
    assert not planner.knows(kit.run_of(task))
    assert "first-value-here" not in repr(planner.__dict__) + repr(vars(given))


def test_what_is_masked(home: Home) -> None:
    put("one", VALUE)
    put("two", "another-long-value")
    named = {"A": "one", "B": "one", "C": {"secret": "two", "as": "file"}}
    planned = plan(kit.task(shell="true", secrets=named))
    assert sorted(planned.spec.mask) == [("one", VALUE), ("two", "another-long-value")]
    assert planned.spec.secret_files == (("C_FILE", "another-long-value"),)
    assert parse(planned.spec.encode()).secret_files == planned.spec.secret_files
    for text in (repr(planned), repr(planned.spec), repr(given.Given({"A": VALUE}, {}, (("one", VALUE),)))):
        assert VALUE not in text and "another-long-value" not in text


def test_one_statement_for_all_of_them_and_none_without(home: Home) -> None:
    for number in range(8):
        put(f"s{number}", VALUE)
    planner = Planner()
    plain = kit.task(shell="true")
    some = kit.task(shell="true", secrets={f"S{number}": f"s{number}" for number in range(8)})
    counts = []
    for task in (plain, some):
        plan(task, planner)
        run = kit.run_of(task)
        attempt = kit.attempt_of(run)
        with CaptureQueriesContext(connection) as queries:
            planner.plan(run, attempt, "default", task.slug)
        counts.append(len(queries))
    assert counts == [0, 1]


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: services.disable(MANAGE, "token", mutation_id="d"), "secret_disabled"),
        (lambda: Path(keyring.settings.KEYRING_PATH).chmod(0o640), "local_secret_unavailable"),
        (lambda: Path(keyring.settings.KEYRING_PATH).unlink(), "local_secret_unavailable"),
    ],
)
def test_refusals_end_the_run_and_make_nothing(home: Home, make: Any, code: str) -> None:
    put("token", VALUE)
    task = kit.task(shell=f"touch {home.path}/ran", secrets={"TOKEN": "token"})
    run = kit.run_of(task)
    make()
    home.session()
    ended = kit.fresh(run)
    assert (ended.status, ended.error_code, ended.error_summary) == ("failed", "EXECUTOR_START_FAILED", code)
    assert not (home.path / "ran").exists()
    assert not list((home.path / "logs").glob("*"))
    assert not list((home.path / "node/attempts").glob("*/*"))
    kit.check_history(run)


def test_a_recipe_that_names_another_project_is_refused(home: Home) -> None:
    """Secrets §14.9 at the door of a start: whoever forged a recipe gets nothing."""
    put("token", VALUE)
    task = kit.task(shell="true", secrets={"TOKEN": "token"})
    recipe = recipes.resolve(task.revision.context_ref)
    assert recipe is not None
    from apps.tasks.secrets import SecretUse

    with pytest.raises(Exception, match="local_secret_unavailable"):
        given.secrets_of("other", recipe, (SecretUse("TOKEN", "token"),))
    with pytest.raises(Exception, match="plan_unavailable"):
        given.secrets_of("default", recipe, ())


def test_an_environment_that_is_too_large_names_the_biggest(home: Home) -> None:
    put("huge", "x" * 32_000)
    env = {f"PLAIN_{number}": "y" * 60_000 for number in range(4)}
    task = kit.task(shell="true", env=env, secrets={"HUGE": "huge"})
    run = ends(home, task)
    assert run.status == "failed" and run.error_summary is not None
    assert run.error_summary.startswith("environment_too_large: PLAIN_0 (60,007), PLAIN_1 (60,007)")
    assert "HUGE (32,004)" in run.error_summary
    assert "xxx" not in run.error_summary and "yyy" not in run.error_summary


def test_all_that_the_kernel_takes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The room is that of this process's stack, as the kernel counts it; the bound is tried on a real process."""
    import resource
    import subprocess

    room = given._room()
    soft = resource.getrlimit(resource.RLIMIT_STACK)[0]
    assert room == (
        6 * 1_048_576 if soft == resource.RLIM_INFINITY else max(131_072, min(soft // 4, 6 * 1_048_576))
    )

    def fits(count: int) -> bool:
        try:
            given.check_size({"A": "1"}, CommandBody(("/bin/true", *["x" * 99_990] * count)), None, None)
        except EnvironmentTooLarge:
            return False
        return True

    most = max(count for count in range(1, 80) if fits(count))
    assert most >= (room - 200_000) // 100_000
    subprocess.run(["/bin/true", *["x" * 99_990] * most], env={"A": "1"}, check=True)
    with pytest.raises(OSError, match="rgument list too long"):
        subprocess.run(["/bin/true", *["x" * 99_990] * (room // 100_000 + 2)], env={"A": "1"}, check=False)
    # Each string has a bound of its own, hooks count like the body.
    with pytest.raises(EnvironmentTooLarge):
        given.check_size({"A": "x" * 131_072}, ShellBody("true"), None, None)
    monkeypatch.setattr(given, "_room", lambda: 131_072)
    given.check_size({"A": "x"}, ShellBody("true"), None, None)
    for hooks in (("x" * 120_000, None), (None, "x" * 120_000)):
        with pytest.raises(EnvironmentTooLarge) as caught:
            given.check_size({"A": "x"}, ShellBody("true"), *hooks)
        assert caught.value.extra["names"] == "A (2)"


def test_arguments_and_environment_together_end_the_run_clearly(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given, "_room", lambda: 131_072)
    env = {"BIG": "x" * 60_000, "SMALL": "y"}
    run = kit.run_of(kit.task(command=["true", "x" * 60_000], env=env))
    home.session()
    ended = kit.fresh(run)
    assert ended.status == "failed" and ended.error_summary is not None
    assert ended.error_summary.startswith("environment_too_large: BIG (60,003)")


def test_names_that_would_break_a_line_are_not_shown() -> None:
    assert given._biggest({"A\nB": 9, "B" * 255: 3}) == "? (9), " + "B" * 64 + " (3)"


def test_nul_cannot_come_through(tmp_path: Path) -> None:
    bench = Kit(tmp_path)
    good = json.loads(bench.spec("true", secret_files=(("A", "x"),)).encode())
    assert parse(written(good)).secret_files == (("A", "x"),)
    with pytest.raises(SpecError, match="NUL"):
        parse(written({**good, "secret_files": {"A": "x\0"}}))
    with pytest.raises(LaunchRefused, match="x"):
        raise LaunchRefused("x")


def test_before_and_after_see_them_too(home: Home) -> None:
    put("token", VALUE)
    put("tls", "a-file-of-some-length")
    out = home.path / "out"
    task = kit.task(
        shell=f'printf "%s\\n" "$TOKEN" >> {out}; cat "$TLS_FILE" >> {out}',
        before=f'printf "before %s\\n" "$TOKEN" >> {out}',
        after=f'cat "$TLS_FILE" >> {out}',
        secrets={"TOKEN": "token", "TLS": {"secret": "tls", "as": "file"}},
    )
    assert ends(home, task).status == "succeeded"
    assert out.read_text() == f"before {VALUE}\n{VALUE}\n" + "a-file-of-some-length" * 2


def test_files_are_gone_when_a_run_is_stopped(home: Home) -> None:
    from apps.runs.services import cancel
    from tests.dispatch.sessions import wait, wait_for

    put("tls", "a-file-of-some-length")
    where = home.path / "where"
    task = kit.task(
        shell=f'printf %s "$TLS_FILE" > {where}.new; mv {where}.new {where}; exec sleep 600',
        secrets={"TLS": {"secret": "tls", "as": "file"}},
    )
    with home.session_beside():
        run = kit.run_of(task)
        wait(where.exists, "the script to be there")
        path = Path(where.read_text())
        assert path.read_text() == "a-file-of-some-length"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        cancel.request_cancel(Grant.system("default", "run.stop", "tests"), run.pk)
        wait_for(run, "cancelled")
        assert not path.exists()


def test_what_nobody_started_leaves_no_file(home: Home) -> None:
    """A shim that never got its `go` takes everything back; one that takes its place finds nothing of it."""
    from apps.dispatch.launcher.files import AttemptFolder

    put("tls", "a-file-of-some-length")
    put("two", "another-file-of-length")
    named = {name: {"secret": secret, "as": "file"} for name, secret in (("TLS", "tls"), ("TWO", "two"))}
    spec = plan(kit.task(shell="true", secrets=named)).spec
    folder = AttemptFolder(spec)
    folder.prepare(spec)
    kept = Path(spec.attempt_dir, "secrets")
    assert sorted(path.name for path in kept.iterdir()) == ["0", "1"]
    os.close(folder._descriptor)  # it died
    other = plan(kit.task(shell="true", secrets={"TLS": named["TLS"]})).spec
    import dataclasses

    other = dataclasses.replace(other, attempt_dir=spec.attempt_dir)
    second = AttemptFolder(other)
    second.prepare(other)
    assert [path.name for path in kept.iterdir()] == ["0"]
    second.remove()
    assert not Path(spec.attempt_dir).exists()
