"""What runs of a revision have in common is built once; what is a run's own is its own."""

from __future__ import annotations

import pytest

from apps.dispatch import interpreters
from apps.dispatch.launcher.spec import ScriptBody
from apps.dispatch.launching import Plan, Planner
from apps.tasks.models import Task
from tests.dispatch.sessions import Home
from tests.runs import kit


def planned(planner: Planner, task: Task) -> Plan:
    run = kit.run_of(task)
    return planner.plan(run, kit.attempt_of(run), "default", task.slug)


def interpreter_of(plan: Plan) -> tuple[tuple[str, ...], ...]:
    assert isinstance(plan.spec.body, ScriptBody)
    return plan.spec.body.interpreter


def test_two_runs_differ_in_what_is_their_own(home: Home) -> None:
    planner = Planner()
    task = kit.task(
        shell="true", concurrency="parallel", max_parallel=8, env={"A": "1", "LANG": "de_DE.UTF-8"}
    )
    first, second = planned(planner, task), planned(planner, task)
    differing = {name for name in first.spec.env if first.spec.env[name] != second.spec.env.get(name)}
    assert differing == {"QINGLONG_RUN_ID", "RUN_FENCE"}
    assert first.spec.env["QINGLONG_RUN_ID"] == first.spec.run_id
    assert second.spec.env["RUN_FENCE"] == f"{second.spec.run_id}:1"
    assert (first.spec.env["A"], first.spec.env["LANG"]) == ("1", "de_DE.UTF-8")
    assert first.spec.body == second.spec.body and first.spec.attempt_dir != second.spec.attempt_dir
    assert first.spec.token != second.spec.token and first.token_hash != second.token_hash


@pytest.mark.parametrize(("language", "asked_anew"), [("python", False), ("typescript", True)])
def test_what_depends_on_what_is_installed_is_looked_for_at_each_start(
    home: Home, monkeypatch: pytest.MonkeyPatch, language: str, asked_anew: bool
) -> None:
    planner = Planner()
    task = kit.task(script={"language": language, "source": "0"}, concurrency="parallel", max_parallel=8)
    monkeypatch.setattr(interpreters, "candidates", lambda _language, _path: (("before",),))
    assert interpreter_of(planned(planner, task)) == (("before",),)
    monkeypatch.setattr(interpreters, "candidates", lambda _language, _path: (("after",),))
    assert interpreter_of(planned(planner, task)) == ((("after",) if asked_anew else ("before",)),)
