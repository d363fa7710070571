from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class CoreConfig(AppConfig):
    name = "apps.core"
    label = "core"

    def ready(self) -> None:
        """Lets every app's `jobs` and `health` register what they have, in every process alike."""
        from apps.core import watchdogs

        autodiscover_modules("jobs", "health")
        watchdogs.register()
