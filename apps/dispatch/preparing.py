"""Readying runs that are claimed and let go in one pass, for shims that are warm (architecture.md §2)."""

from __future__ import annotations

from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from apps.dispatch.carried import Carried
from apps.dispatch.launcher.client import Launcher, Shim
from apps.dispatch.launcher.control import SPEC_BYTES_MAX
from apps.dispatch.launcher.files import make_attempt_folder
from apps.dispatch.launching import Plan, Planner
from apps.dispatch.services.passes import Prepared
from apps.runs.models import Run, RunAttempt


@dataclass(frozen=True, eq=False)
class Handover:
    """What goes to a warm shim once its run is on record as starting."""

    plan: Plan
    spec: bytes = field(repr=False)
    shim: Shim


class Preparation:
    """What the pass under way has readied; it is taken up after the commit, or undone."""

    def __init__(self, launcher: Launcher, planner: Planner, carried: Mapping[UUID, Carried]) -> None:
        """`carried` is read as it stands: shims of runs that end in the pass are free as soon as it is stored."""
        self._launcher = launcher
        self._planner = planner
        self._carried = carried
        self._ready: dict[UUID, Handover] = {}
        self._promised: set[Shim] = set()

    def prepare(
        self, run: Run, attempt: RunAttempt, project: str, task: str, settled: Set[UUID]
    ) -> Prepared | None:
        """A warm shim and a specification that needs no look into the database, or None.

        The folder is made here: until the shim has its `go`, it says that nothing of the attempt has run.
        """
        if attempt.attempt > 1 or not self._planner.knows(run) or (shim := self._warm(settled)) is None:
            return None
        try:
            plan = self._planner.plan(run, attempt, project, task)
            spec = plan.spec.encode()
            if len(spec) > SPEC_BYTES_MAX:
                raise ValueError("too long for the control socket")
            make_attempt_folder(plan.spec.attempt_dir, passable=plan.spec.run_as is not None)
        except Exception:
            # Whatever it is, the longer way meets it alone and says so; here it would cost the whole pass.
            self.give_back(shim)
            return None
        self._ready[attempt.id] = Handover(plan, spec, shim)
        assert shim.handle is not None
        return Prepared(
            shim.handle.encode(), shim.handle.pid, plan.spec.log.artifact_id, plan.token_hash, plan.timeout_ms
        )

    def take(self, attempt_id: UUID) -> Handover:
        """What was readied for an attempt that is on record as starting now."""
        return self._ready.pop(attempt_id)

    def undo(self) -> None:
        """Takes back what was readied and is not on record."""
        for handover in self._ready.values():
            self.give_back(handover.shim)
            with suppress(OSError):
                Path(handover.plan.spec.attempt_dir).rmdir()
        self._ready.clear()

    def give_back(self, shim: Shim) -> bool:
        """A shim whose run is over, or that was not needed after all; True for one that is promised, and stays so."""
        if shim in self._promised:
            self._promised.remove(shim)
            return True
        self._launcher.keep(shim)
        return False

    def _warm(self, settled: Set[UUID]) -> Shim | None:
        for attempt_id in settled:
            item = self._carried[attempt_id]
            shim = item.shim
            if item.warm and shim is not None and not shim.closed and shim not in self._promised:
                self._promised.add(shim)
                return shim
        return self._launcher.take_warm()
