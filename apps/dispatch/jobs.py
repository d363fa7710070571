"""Entry points of dispatch for the queue: the session, and the housekeeping of leases."""

from __future__ import annotations

from apps.core import control, node, wakeups
from apps.dispatch import keeping
from apps.dispatch.services import deadlines, expiry, forgetting, orphans, recovery

# Nodes whose place in the round is remembered.
_NODES = 64


def session() -> str:
    """What a message of the `runs` cluster calls."""
    from apps.dispatch.session import run_queued

    return run_queued()


def expire_leases(_cursor: control.Cursor) -> control.Cursor | None:
    """Settles leases that ran out, page by page."""
    after = expiry.expire_page()
    while after is not None:
        after = expiry.expire_page(after)
    expiry.end_unheld()
    return None


def request_timeouts(_cursor: control.Cursor) -> control.Cursor | None:
    """Asks for the stop of attempts whose time is over, page by page."""
    after = deadlines.request_timeouts()
    while after is not None:
        after = deadlines.request_timeouts(after)
    return None


def recover(_cursor: control.Cursor) -> control.Cursor | None:
    """Settles runs that have no attempt any more, page by page."""
    after = recovery.settle_page()
    while after is not None:
        after = recovery.settle_page(after)
    return None


def audit_receipts(cursor: control.Cursor) -> control.Cursor | None:
    """Tidies a few folders of the node it happens to run on, the next ones with its next call there."""
    name = node.node_id()
    report = orphans.audit("quarantine", start=cursor.pop(name, 0))
    return dict([*cursor.items(), (name, report.next_shard)][-_NODES:])


def forget_nodes(_cursor: control.Cursor) -> control.Cursor | None:
    """Removes what was not seen for as long as histories are kept."""
    forgetting.forget_nodes()
    return None


def register() -> None:
    """Makes the cluster and the jobs known, and what is not settled yet."""
    keeping.register()
    wakeups.register(wakeups.Cluster("runs", "apps.dispatch.jobs.session"))
    control.register("dispatch.expire_leases", expire_leases, every_ms=5_000)
    control.register("dispatch.request_timeouts", request_timeouts, every_ms=5_000)
    control.register("dispatch.recover", recover, every_ms=60_000)
    control.register("dispatch.forget_nodes", forget_nodes, every_ms=3_600_000)
    control.register("dispatch.audit_receipts", audit_receipts, every_ms=60_000)
