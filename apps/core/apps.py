from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class CoreConfig(AppConfig):
    name = "apps.core"
    label = "core"

    def ready(self) -> None:
        """Lets every app's `jobs` register its clusters and control jobs, in every process alike."""
        autodiscover_modules("jobs")
