"""Holds: who still needs a run whole, and people's pins (upper-floors.md §7.12; lessons D23)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from django.utils.translation import gettext_lazy as _

from apps.audit import services as audit
from apps.core import bulk, db, ids
from apps.core.db import write_transaction
from apps.core.errors import InvalidInput
from apps.projects import policy
from apps.projects.policy import Grant
from apps.runs.errors import HistoryRetained, RunNotFound
from apps.runs.models import PIN, Run, RunHold, RunSummary

MAX_REASON = 200
PERMISSION = "task.update"

Holder = Callable[[Sequence[UUID]], set[UUID]]

_holders: dict[str, Holder] = {}


def register(name: str, holder: Holder) -> None:
    """Adds somebody whose own tables say which of some runs they need: one query for all of them.

    Floors that know beforehand leave a row (`hold`) instead. Called when an app is made ready.
    """
    _holders[name] = holder


def held(run_ids: Iterable[UUID]) -> set[UUID]:
    """Those of the runs that somebody needs: a query for the rows, and one per registered holder."""
    wanted = sorted(set(run_ids))
    if not wanted:
        return set()
    where, params = bulk.among(RunHold, "run_id", wanted)
    rows = bulk.select_values_later(
        f"SELECT DISTINCT run_id FROM {RunHold._meta.db_table} WHERE {where}", params
    )()
    found = {Run._meta.pk.to_python(pk) for pk in rows}
    return found.union(*(holder(wanted) for holder in _holders.values()))


def of_run(run_id: UUID) -> list[RunHold]:
    """Why a run stays whole, the oldest reason first."""
    return list(RunHold.objects.filter(run_id=run_id).order_by("created_at", "id"))


@write_transaction
def hold(
    run_id: UUID,
    holder: str,
    holder_id: str = "",
    *,
    reason: str = "",
    held_by: tuple[str, str] = ("system", "hold"),
) -> RunHold:
    """Keeps a run whole for `holder` (≤ 32 characters) until it is released; the same hold again is the first.

    Its logs stay from now on and its history does not fold. Raises RunNotFound, and HistoryRetained where it folded
    before.
    """
    if not ids.is_text_id(holder, 32) or len(holder_id) > 255 or len(reason) > MAX_REASON:
        raise InvalidInput
    run = db.lock(Run.objects.filter(pk=run_id)).first()
    if run is None:
        raise RunNotFound
    if RunSummary.objects.filter(pk=run_id).exists():
        raise HistoryRetained
    found, _created = RunHold.objects.get_or_create(
        run=run,
        holder=holder,
        holder_id=holder_id,
        defaults={"reason": reason, "held_by_type": held_by[0], "held_by_id": held_by[1]},
    )
    return found


@write_transaction
def release(run_id: UUID, holder: str, holder_id: str = "") -> bool:
    """Takes a hold back; False where there was none."""
    removed, _rows = RunHold.objects.filter(run_id=run_id, holder=holder, holder_id=holder_id).delete()
    return removed > 0


@write_transaction
def pin_run(grant: Grant, run_id: UUID, reason: str = "") -> RunHold:
    """A person keeps a run. Raises InvalidInput, RunNotFound, HistoryRetained and the policy's errors."""
    if len(reason) > MAX_REASON or ids.has_control(reason) or not ids.is_utf8(reason):
        raise InvalidInput.field("reason", _("At most 200 characters without control characters."))
    policy.confirm(grant, PERMISSION)
    _mine(grant, run_id)
    before = RunHold.objects.filter(run_id=run_id, holder=PIN, holder_id="").first()
    found = before or hold(run_id, PIN, reason=reason, held_by=grant.actor.pair)
    if before is None:
        _audit(grant, "run.pinned", run_id)
    return found


@write_transaction
def unpin_run(grant: Grant, run_id: UUID) -> None:
    """Takes a pin back, whoever set it; without one nothing happens. Raises RunNotFound and the policy's errors."""
    policy.confirm(grant, PERMISSION)
    _mine(grant, run_id)
    if release(run_id, PIN):
        _audit(grant, "run.unpinned", run_id)


def _mine(grant: Grant, run_id: UUID) -> None:
    if not Run.objects.filter(pk=run_id, project_id=grant.project_id).exists():
        raise RunNotFound


def _audit(grant: Grant, action: str, run_id: UUID) -> None:
    audit.record(
        grant.project_id,
        actor=grant.actor.pair,
        action=action,
        subject=("run", str(run_id)),
        origin=grant.origin,
    )
