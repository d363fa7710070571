"""What the page of a run says of a stop that a person has to look at: one that is blocked, and who outlived one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from apps.core import clock
from apps.dispatch import cancellations
from apps.panel.run_page import Story

LATE = timedelta(seconds=10)
WHY: dict[str, Promise] = {
    "identity_mismatch": gettext_lazy("its process number belongs to another process now"),
    "pid_mismatch": gettext_lazy("the process is not the one on record"),
    "unsupported": gettext_lazy("this worker cannot stop such a process"),
    "invalid": gettext_lazy("what is on record of the process cannot be read"),
}
OUTCOMES: dict[str, Promise] = {
    "killed": gettext_lazy("was ended"),
    "already_gone": gettext_lazy("had ended already"),
    "identity_mismatch": gettext_lazy("is another process now, nothing was done to it"),
    "refused": gettext_lazy("may not be ended by this worker"),
    "still_there": gettext_lazy("was told to end, but the kernel still holds it"),
}


@dataclass(frozen=True)
class StopPart:
    """`blocked` says why the stop did not arrive; `late` that it did and nothing came of it."""

    blocked: str | Promise = ""
    late: bool = False
    escaped: tuple[int, ...] = ()
    asked: bool = False
    outcome: tuple[tuple[str, str | Promise], ...] = ()


def of(story: Story) -> StopPart | None:
    """What there is to say, None where nothing was stopped; three queries at most."""
    run, attempt = story.run, story.attempt
    if attempt is None or attempt.pid is None or (run.cancel_requested_at is None and not story.proof):
        return None
    stop = cancellations.stops(run.pk).get(attempt.pk)
    if stop is None:
        return None
    delivery, wish = stop.delivery, stop.kill
    blocked = delivery is not None and delivery.status == "blocked" and run.status != "lost" and not run.ended
    due = story.stopping.kill_at or story.stopping.told_at if story.stopping is not None else None
    outcome = (wish.outcome or {}) if wish is not None else {}
    escaped = tuple(one["pid"] for one in stop.proof["escaped"]) if stop.proof else ()
    return StopPart(
        blocked=WHY.get(delivery.last_result or "", "") if blocked and delivery is not None else "",
        late=due is not None and clock.now() >= due + LATE,
        escaped=escaped,
        asked=wish is not None and wish.done_at is None,
        outcome=tuple(
            (str(pid), OUTCOMES.get(outcome[str(pid)], "")) for pid in escaped if str(pid) in outcome
        ),
    )
