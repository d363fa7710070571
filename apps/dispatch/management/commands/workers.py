"""Lists the nodes of the installation with their workers."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from apps.core import clock
from apps.dispatch import queries
from apps.dispatch.models import Node


class Command(BaseCommand):
    help = "Lists nodes and their workers: id, state, free slots, what runs, last heartbeat."

    def handle(self, *args: Any, **options: Any) -> None:
        now = clock.now()
        for view in queries.view_nodes(list(Node.objects.order_by("pk"))):
            labels = ",".join(f"{name}={value}" for name, value in view.node.labels.items())
            age = int((now - view.seen_at).total_seconds())
            self.stdout.write(
                f"{view.node.pk}  {view.state:8}  {len(view.leases)} running  {age} s ago  {view.node.host}  {labels}"
            )
            for worker in view.workers:
                state = worker.status if queries.is_alive(worker, now) else "offline"
                if worker.drain_requested_at is not None and state == "offline":
                    state = "draining"
                self.stdout.write(
                    f"  {worker.pk}  {state:8}  {worker.available_slots}/{worker.max_concurrent_runs} free"
                    f"  {len(view.carried(worker.pk))} running"
                )
