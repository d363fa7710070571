"""Wake-ups: whoever makes work rings its cluster in the same transaction (upper-floors.md §2, architecture.md §2).

The queue is the doorbell, never the truth: a ring carries no data, rings are coalesced to one waiting message
per cluster, and live sessions are woken directly. A lost ring is made good by the sweep.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import Case, F, Q, Value, When

from apps.core import bulk, clock, db, node
from apps.core.models import Wakeup

STALE = timedelta(seconds=20)
UNANSWERED = f'EXISTS (SELECT 1 FROM "{Wakeup._meta.db_table}" WHERE NOT answered)'
"""Whether a ring of any cluster stands unanswered, as SQL: a part of a larger question."""


@dataclass(frozen=True)
class Cluster:
    """A django-q2 cluster: its name, the function a message calls, and whether `up` starts it at once."""

    name: str
    function: str
    optional: bool = False


_clusters: dict[str, Cluster] = {}


def register(cluster: Cluster) -> None:
    """Makes a cluster known; `up` supervises every one."""
    _clusters[cluster.name] = cluster


def clusters() -> list[Cluster]:
    """All registered clusters, by name."""
    return [_clusters[name] for name in sorted(_clusters)]


def function_of(cluster: str) -> str:
    """What a message of the cluster calls."""
    return _clusters[cluster].function


def channel(cluster: str) -> str:
    """The PostgreSQL notification channel of a cluster."""
    return f"qinglong_{cluster}"


def ring(cluster: str, *, anew: bool = False) -> None:
    """Wakes the cluster when the open transaction commits; joins at most one message to those that wait.

    `anew` sends one whatever is on record, for those who know that it died with whom it reached.
    """
    if _needs_message(cluster, clock.now()):
        _send(cluster)
    nudge(cluster)


def nudge(name: str) -> None:
    """Wakes whoever listens under the name when the open transaction commits; sends no message."""
    if db.is_postgresql():
        db.notify(channel(name))
    else:
        transaction.on_commit(lambda: poke(name))


@db.write_transaction
def renew(cluster: str) -> None:
    """Sends an unanswered ring anew: the cluster that died may have taken its message off the queue."""
    if Wakeup.objects.filter(cluster=cluster, answered=False).exists():
        answer(cluster)
        ring(cluster)


def answer(cluster: str) -> None:
    """A session is there and will look for work until it ends: the next ring needs a message again."""
    columns, row = ["answered", "unanswered_since"], (cluster, True, None)
    bulk.update_rows(Wakeup, ["cluster"], columns, [row], condition="NOT t.answered")


def unanswered(now: datetime) -> list[str]:
    """Clusters whose ring nobody answered within 20 s: for the sweep."""
    return list(
        Wakeup.objects.filter(answered=False, rung_at__lte=now - STALE).values_list("cluster", flat=True)
    )


def deaf(before: datetime) -> list[str]:
    """Clusters that have not answered any ring since `before`, however often they were rung again."""
    return list(
        Wakeup.objects.filter(answered=False, unanswered_since__lte=before).values_list("cluster", flat=True)
    )


def socket_folder(cluster: str) -> Path:
    """Where live sessions of this node listen for datagrams."""
    return Path(settings.NODE_DIR) / "wake" / cluster


def listen(cluster: str, name: str) -> socket.socket:
    """A non-blocking datagram socket that `poke` reaches; `name` is unique among the living of this node."""
    folder = node.folder("wake", cluster)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    (folder / name).unlink(missing_ok=True)
    with _short(folder) as short:
        listener.bind(f"{short}/{name}")
    return listener


def poke(cluster: str) -> None:
    """Sends a datagram to every session of this node; who is gone is cleared away."""
    folder = socket_folder(cluster)
    if not folder.is_dir():
        return
    flags = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
    with socket.socket(socket.AF_UNIX, flags) as sender, _short(folder) as short:
        for path in folder.iterdir():
            try:
                sender.sendto(b"", f"{short}/{path.name}")
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Another way to a folder: the address of a socket has room for 108 bytes, a home folder may be deep."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _needs_message(cluster: str, now: datetime) -> bool:
    """Notes the ring; of many at once only the first sends, the others find it noted behind its lock."""
    due = Q(answered=True) | Q(rung_at__lte=now - STALE)
    rows = Wakeup.objects.filter(cluster=cluster)
    row = rows.first()
    if row is None:
        fresh = {"rung_at": now, "unanswered_since": now, "answered": False}
        return Wakeup.objects.get_or_create(cluster=cluster, defaults=fresh)[1]
    if not row.answered and row.rung_at > now - STALE:
        return False
    since = Case(When(answered=True, then=Value(now)), default=F("unanswered_since"))
    return rows.filter(due).update(rung_at=now, unanswered_since=since, answered=False) == 1


def _send(cluster: str) -> None:
    known = _clusters[cluster]
    if settings.Q_CLUSTER.get("redis"):
        from django_q.tasks import async_task

        transaction.on_commit(lambda: async_task(known.function, cluster=known.name))
    else:
        from django_q.models import OrmQ

        # Nothing in it is read (`doorbell.own_message`), so nothing is signed.
        bulk.insert_rows(OrmQ, ["key", "payload"], [(known.name, "")])
