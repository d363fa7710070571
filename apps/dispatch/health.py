"""What is looked at in dispatch and what it needs below (core.health, core.metrics)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django.conf import settings
from django.db.models import Count, Q, Sum
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from apps.core import clock, health, metrics, watchdogs
from apps.core.health import Sentence
from apps.core.metrics import Gauge
from apps.dispatch.models import Worker
from apps.dispatch.queries import oldest_undispatched
from apps.vault import keyring

RUNS = "runs"
NAMED = 3


def readable_keyring() -> Sentence | None:
    """Whether sealed values can be opened; raises what the keyring raises."""
    keyring.load().wipe()
    return None


def oldest_run() -> Sentence | None:
    """Whether queued runs that could run are taken up; while all slots are taken, waiting is as it should be."""
    waiting = _waiting_s()
    if waiting < settings.ALERTS.run_wait_s:
        return None
    workers = _workers(clock.now())
    if workers["slots"] and not workers["free"]:
        return None
    if not workers["slots"]:
        sentence = _(
            "A run has been waiting for {n} s, and no worker takes runs: start `up`, or `worker` on a node; one "
            "that is drained takes runs again after `resume`."
        )
    else:
        sentence = _(
            "A run has been waiting for {n} s although slots are free: the log of the runs cluster says why; "
            "starting it anew loses no run."
        )
    return format_lazy(sentence, n=int(waiting))


def all_busy() -> Sentence | None:
    """Whether runs wait long for a slot."""
    waiting = _waiting_s()
    if waiting < settings.ALERTS.run_wait_s:
        return None
    workers = _workers(clock.now())
    if not workers["slots"] or workers["free"]:
        return None
    return format_lazy(
        _(
            "All slots are taken and a run has been waiting for {n} s: more slots (QINGLONG_SLOTS) or nodes help."
        ),
        n=int(waiting),
    )


def runs_cluster() -> Sentence | None:
    """Whether the runs cluster answers its ring, or a session anywhere goes round."""
    if RUNS not in watchdogs.deaf() or _workers(clock.now())["alive"]:
        return None
    return watchdogs.frozen(RUNS)


def silent_workers() -> Sentence | None:
    """Whether a worker that did not sign off shows no life."""
    silent = Worker.objects.exclude(status="offline").filter(lease_expires_at__lte=clock.now())
    names = [worker.pk for worker in silent.order_by("pk")[: NAMED + 1]]
    if not names:
        return None
    shown = ", ".join(names[:NAMED]) + (" …" if len(names) > NAMED else "")
    return format_lazy(
        _(
            "Workers show no life: {names}. Look at their machines; what they ran is taken over or tried again."
        ),
        names=shown,
    )


def gauges() -> Iterator[Gauge]:
    """Two queries."""
    yield Gauge.one(
        "oldest_undispatched_run_seconds", "How long the oldest run that could run has waited.", _waiting_s()
    )
    workers = _workers(clock.now())
    yield Gauge.one("workers_alive", "Workers that show life.", workers["alive"])
    yield Gauge.one("slots", "Scripts that workers taking runs can carry at once.", workers["slots"])
    yield Gauge.one("slots_free", "How many of those are free, as of the last heartbeats.", workers["free"])


@health.shared
def _waiting_s() -> float:
    waiting = oldest_undispatched()
    return 0.0 if waiting is None else waiting.total_seconds()


def _workers(now: datetime) -> dict[str, int]:
    """Living workers, the slots of those that take runs, and how many of these are free; one query."""
    online = Q(status="online")
    found = (
        Worker.objects.exclude(status="offline")
        .filter(lease_expires_at__gt=now)
        .aggregate(
            alive=Count("pk"),
            slots=Sum("max_concurrent_runs", filter=online),
            free=Sum("available_slots", filter=online),
        )
    )
    return {name: value or 0 for name, value in found.items()}


health.register("keyring", readable_keyring)
health.register("oldest_run", oldest_run)
health.register("slots_taken", all_busy, failing=False)
health.register("runs_frozen", runs_cluster)
health.register("workers_silent", silent_workers, failing=False)
metrics.register("dispatch", gauges)
