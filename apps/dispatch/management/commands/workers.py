"""Lists the workers of all nodes."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from apps.core import clock
from apps.dispatch import queries
from apps.dispatch.models import Worker


class Command(BaseCommand):
    help = "Lists workers: id, state, free slots, last heartbeat."

    def handle(self, *args: Any, **options: Any) -> None:
        now = clock.now()
        for worker in Worker.objects.order_by("pk").iterator():
            state = worker.status if queries.is_alive(worker, now) else "offline"
            age = int((now - worker.last_heartbeat_at).total_seconds())
            self.stdout.write(
                f"{worker.pk}  {state:8}  {worker.available_slots}/{worker.max_concurrent_runs} free  {age} s ago"
            )
