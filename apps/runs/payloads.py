"""What a run is given and what it leaves: sealed, never clear in a column (upper-floors.md §7.11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from apps.core import canonical, ids
from apps.core.errors import InvalidInput
from apps.runs.errors import InputTooLarge
from apps.runs.models import Run
from apps.vault import sealing

INPUT = "run.input"
OUTPUT = "run.output"
MAX_BYTES = 65_536
MAX_ARGS = 256
SCHEMA = "run.v1"

for _purpose in (INPUT, OUTPUT):
    sealing.register_purpose(_purpose)


@dataclass(frozen=True)
class Given:
    """The input and arguments of one start."""

    input: Mapping[str, Any] | None
    args: tuple[str, ...]


def check(input: Mapping[str, Any] | None, args: Sequence[str]) -> None:
    """Raises InvalidInput unless this can be given to a run."""
    if input is not None and not isinstance(input, Mapping):
        raise InvalidInput.field("input", "A JSON object.")
    if not isinstance(args, list | tuple) or len(args) > MAX_ARGS:
        raise InvalidInput.field("args", f"A list of at most {MAX_ARGS} texts.")
    for arg in args:
        if not isinstance(arg, str) or "\0" in arg or not ids.is_utf8(arg):
            raise InvalidInput.field("args", "Each argument is text without NUL.")
    try:
        canonical.dumps({"input": input, "args": list(args)}, max_bytes=MAX_BYTES)
    except canonical.NotCanonical as error:
        if "larger" in str(error):
            raise InputTooLarge from error
        raise InvalidInput.field("input", "Not plain JSON.") from error


def seal_input(run: Run, input: Mapping[str, Any] | None, args: Sequence[str]) -> UUID:
    """Stores the input and returns its reference."""
    return _seal(INPUT, run, {"input": input, "args": list(args)})


def open_input(run: Run) -> Given:
    """The input of a run; both parts empty where none was given."""
    if run.input_ref is None:
        return Given(None, ())
    value = _open(INPUT, run, run.input_ref)
    return Given(value["input"], tuple(value["args"]))


def seal_output(run: Run, value: Any) -> UUID:
    """Stores what the script left in QINGLONG_OUTPUT and returns its reference."""
    return _seal(OUTPUT, run, {"output": value})


def open_output(run: Run) -> Any:
    """The output of a run, None where it left none."""
    return None if run.output_ref is None else _open(OUTPUT, run, run.output_ref)["output"]


def _seal(purpose: str, run: Run, value: dict[str, Any]) -> UUID:
    row = sealing.seal(
        purpose, project_id=run.project_id, holder=("run", str(run.pk)), value=value, schema_id=SCHEMA
    )
    found: UUID = row.pk
    return found


def _open(purpose: str, run: Run, payload_id: UUID) -> Any:
    return sealing.unseal(payload_id, purpose, project_id=run.project_id, holder=("run", str(run.pk)))
