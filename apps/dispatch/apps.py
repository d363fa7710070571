from __future__ import annotations

from django.apps import AppConfig


class DispatchConfig(AppConfig):
    name = "apps.dispatch"
    label = "dispatch"

    def ready(self) -> None:
        from apps.dispatch import jobs

        jobs.register()
