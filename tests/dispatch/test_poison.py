"""A run that breaks what looks after it costs itself only: the session lives, and the others are carried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.db import DataError

from apps.core import clock
from apps.dispatch.launching import Planner, attempt_folder
from apps.dispatch.models import RunDispatchLease
from apps.dispatch.receipts import ReceiptStore
from apps.dispatch.services import completion
from apps.runs.models import Run
from tests.dispatch.sessions import Home, wait
from tests.runs import kit

ENDED = ("succeeded", "failed", "lost")
NESTED = """python3 - <<'END'
open("stop.json", "w").write("[" * 60_000)
END
"""
DEEP = """cd "$TMPDIR" && python3 - <<'END'
import os
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
END
"""


def pair(poison: str) -> tuple[Run, Run]:
    """A hostile run and one that has nothing to do with it."""
    return kit.run_of(kit.task(shell=poison)), kit.run_of(kit.task(shell="exit 0"))


def ended(run: Run) -> tuple[str, str | None, str | None]:
    found = kit.fresh(run)
    return found.status, found.error_code, found.error_summary


def carried_on(home: Home, hostile: Run, other: Run) -> None:
    """The session ended by itself, both runs are over, and the next session starts as if nothing had been."""
    assert home.session() == "idle"
    assert ended(other) == ("succeeded", None, None), (kit.attempt_of(other).exit_code, home.log_of(other))
    assert ended(hostile)[0] in ENDED
    third = kit.run_of(kit.task(shell="exit 0"))
    assert home.session() == "idle"
    assert kit.fresh(third).status == "succeeded"


def test_a_stop_fact_nested_too_deep(home: Home) -> None:
    hostile, other = pair('cd "$TMPDIR" && ' + NESTED)
    carried_on(home, hostile, other)
    assert kit.fresh(hostile).status == "succeeded"


def test_folders_nested_too_deep_to_remove_one_call_deeper_each(home: Home) -> None:
    hostile, other = pair(DEEP)
    carried_on(home, hostile, other)
    # A session waits a second for its cleaner; on a busy machine that goes on a little longer.
    wait(lambda: not Path(attempt_folder(kit.attempt_of(hostile))).exists(), "the folder to go")


def test_read_only_folders_are_removed(home: Home) -> None:
    hostile, other = pair('cd "$TMPDIR" && mkdir -p a/b && touch a/b/c && ln -s / a/b/root && chmod -R a-w a')
    carried_on(home, hostile, other)
    wait(lambda: not Path(attempt_folder(kit.attempt_of(hostile))).exists(), "the folder to go")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_receipt_that_can_neither_be_read_nor_put_aside(home: Home, kind: str) -> None:
    """The script plants something in place of its own receipt, and stands in the way of putting it aside."""
    node = home.node
    plant = "mkdir -p {0} && touch {0}/x" if kind == "folder" else "echo nonsense > {0}"
    hostile, other = pair(
        f'id=$(basename "$TMPDIR"); cd {node}/receipts && : > .quarantine && '
        + plant.format('"${id#"${id%??}"}/$id.json"')
    )
    carried_on(home, hostile, other)
    assert ended(hostile)[0] == "lost", ended(hostile)


@pytest.mark.parametrize("error", [ValueError(), DataError(), RecursionError(), AssertionError()])
def test_a_run_whose_end_breaks_every_pass(home: Home, error: Exception) -> None:
    hostile, other = pair("exit 0")
    apply = completion.apply

    def broken(run: Run, *args: Any) -> Any:
        if run.pk == hostile.pk:
            raise error
        return apply(run, *args)

    with patch.object(completion, "apply", broken):
        carried_on(home, hostile, other)
    assert (kit.fresh(hostile).status, kit.fresh(hostile).error_code) == ("lost", "DISPATCH_BROKEN")
    kit.check_history(hostile)


def test_a_run_of_which_nothing_can_be_stored_is_let_go(home: Home) -> None:
    hostile, other = pair("exit 0")
    apply, lose = completion.apply, completion.lose

    def broken(run: Run, *args: Any) -> Any:
        if run.pk == hostile.pk:
            raise ValueError
        return apply(run, *args)

    def broken_too(change: Any, *args: Any) -> Any:
        if change.run.pk == hostile.pk:
            raise ValueError
        return lose(change, *args)

    with patch.object(completion, "apply", broken), patch.object(completion, "lose", broken_too):
        assert home.session() == "idle"
    assert kit.fresh(other).status == "succeeded"
    # Whether its beginning was stored before its end came is a matter of milliseconds.
    assert kit.fresh(hostile).status in ("dispatching", "running")
    RunDispatchLease.objects.filter(run=hostile).update(expires_at=clock.now())
    assert home.session() == "idle"
    assert kit.fresh(hostile).status == "succeeded"


def test_a_run_that_cannot_be_planned(home: Home) -> None:
    hostile, other = pair("exit 0")
    plan = Planner.plan

    def broken(self: Planner, run: Run, *args: Any) -> Any:
        if run.pk == hostile.pk:
            raise OSError
        return plan(self, run, *args)

    with patch.object(Planner, "plan", broken):
        carried_on(home, hostile, other)
    ended = kit.fresh(hostile)
    assert (ended.status, ended.error_summary) == ("failed", "DISPATCH_BROKEN")


def test_a_receipt_of_no_calendar(home: Home) -> None:
    """Another script of the same user may rewrite a receipt between its end and its reading."""
    hostile, other = pair("exit 0")
    read = ReceiptStore.read

    def rewritten(self: ReceiptStore, attempt_id: str) -> Any:
        found = read(self, attempt_id)
        if found is not None and found.run_id == str(hostile.pk):
            return replace(found, finished_at_ms=2**53 - 1)
        return found

    with patch.object(ReceiptStore, "read", rewritten):
        carried_on(home, hostile, other)
    assert ended(hostile)[0] == "lost", ended(hostile)
