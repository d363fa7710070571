"""What must be true after a storm, told by nobody but the marks of the scripts, the event log and the files.

It imports nothing of the product and believes no summary of it: a run's columns are only compared with its events.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Query = Callable[[str], list[Any]]
ENDS = ("run.succeeded", "run.failed", "run.cancelled", "run.timed_out")
# Codes of attempts that never ran: their script was provably never let go.
NEVER_RAN = {"RECOVERY_NEVER_STARTED"}


@dataclass(frozen=True)
class Mark:
    """What a script wrote of itself: `begin` and `end` with seconds since boot; an end with its exit code."""

    begun: float
    ended: float | None = None
    code: int | None = None


@dataclass
class Report:
    """Counts of what was seen, and every rule that was broken."""

    counts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def rule(self, holds: bool, told: str) -> None:
        """One more rule looked at."""
        self.counts["rules looked at"] += 1
        if not holds:
            self.broken.append(told)


def read_marks(path: Path, report: Report) -> dict[tuple[str, int], Mark]:
    """By run and attempt; a second beginning or end of the same attempt breaks a rule."""
    found: dict[tuple[str, int], Mark] = {}
    for line in path.read_text().splitlines():
        kind, run, attempt, at, *code = line.split()
        key = (run, int(attempt))
        if kind == "begin":
            report.rule(key not in found, f"{key} began twice")
            found[key] = Mark(float(at))
        else:
            known = found.get(key)
            report.rule(
                known is not None and known.ended is None, f"{key} ended twice, or without a beginning"
            )
            found[key] = Mark(known.begun if known else 0.0, float(at), int(code[0]))
    return found


def check(query: Query, marks_path: Path, accepted: Mapping[str, int], killed: Collection[int]) -> Report:
    """`accepted`: the runs that somebody was promised, with the exit code of their script. `killed`: pids of shims."""
    report = Report()
    marks = read_marks(marks_path, report)
    runs = {
        str(row[0]).replace("-", ""): row[1:]
        for row in query("SELECT id, status, version, event_sequence, error_code FROM runs")
    }
    attempts = defaultdict(list)
    for row in query(
        "SELECT run_id, attempt, status, exit_code, error_code, executor_handle, id FROM run_attempts ORDER BY attempt"
    ):
        attempts[str(row[0]).replace("-", "")].append(row[1:])
    events = defaultdict(list)
    for row in query("SELECT run_id, sequence, type, attempt_id FROM run_events ORDER BY sequence"):
        events[str(row[0]).replace("-", "")].append(row[1:])
    known = set()
    for run_id, code in accepted.items():
        key = run_id.replace("-", "")
        known.add(key)
        if key not in runs:
            report.rule(False, f"{run_id} is gone")
            continue
        _check_run(report, run_id, runs[key], attempts[key], events[key])
        _check_attempts(report, run_id, code, runs[key][0], attempts[key], marks, killed)
    report.counts["runs accepted"] = len(accepted)
    report.counts["scripts that began"] = len(marks)
    for key in set(runs) - known:
        report.rule(False, f"nobody asked for run {key}, or its answer was lost and another one made for it")
    for run, attempt in marks:
        report.rule(run in accepted, f"a script ran for {run}, attempt {attempt}, which nobody was promised")
    return report


def _check_run(report: Report, run_id: str, run: Any, attempts: list[Any], events: list[Any]) -> None:
    status, version, sequence, _error = run
    types = [row[1] for row in events]
    ends = [type_ for type_ in types if type_ in ENDS]
    report.rule(ends == [f"run.{status}"], f"{run_id} is {status}, its events say {ends}")
    numbers = [row[0] for row in events]
    report.rule(numbers == list(range(1, len(numbers) + 1)), f"{run_id} has a gap in its events: {numbers}")
    report.rule(len(numbers) == sequence == version, f"{run_id}: {len(numbers)} events, version {version}")
    for row in attempts:
        told = [type_ for _n, type_, of in events if str(of) == str(row[5]) and type_ == f"attempt.{row[1]}"]
        report.rule(len(told) == 1, f"{run_id}: attempt {row[0]} is {row[1]}, {len(told)} events say so")
    report.counts[f"runs {status}"] += 1


def _check_attempts(
    report: Report,
    run_id: str,
    code: int,
    status: str,
    attempts: list[Any],
    marks: Mapping[tuple[str, int], Mark],
    killed: Collection[int],
) -> None:
    before: float | None = 0.0
    for number, state, exit_code, error, handle, _id in attempts:
        mark = marks.get((run_id, number))
        report.counts[f"attempts {state}" + (f" ({error})" if state == "lost" else "")] += 1
        told = f"{run_id}, attempt {number}, {state}, exit {exit_code}, {error}, {mark}"
        if state in ("succeeded", "failed"):
            report.rule(
                mark is not None and mark.code == code == exit_code,
                f"not what its script says, {code}: {told}",
            )
        elif state == "lost" and error in NEVER_RAN:
            report.rule(mark is None, f"it ran after all: {told}")
        elif state == "lost":
            pid = json.loads(handle)["pid"] if handle else None
            report.rule(pid in killed, f"lost, and nobody killed its shim: {told}")
        else:
            report.rule(False, f"it has no end: {told}")
        if mark is not None:
            report.rule(
                before is not None and before <= mark.begun, f"it began beside the one before: {told}"
            )
            before = mark.ended
    succeeded = [row for row in attempts if row[1] == "succeeded"]
    report.rule(
        len(succeeded) == (status == "succeeded"), f"{run_id} is {status} with {len(succeeded)} successes"
    )
