from __future__ import annotations

from django.apps import AppConfig


class ApprovalsConfig(AppConfig):
    name = "apps.approvals"
    label = "approvals"

    def ready(self) -> None:
        from apps.approvals import actions, jobs  # noqa: F401 - action types register when they are loaded

        jobs.register()
