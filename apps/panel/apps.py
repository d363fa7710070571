from __future__ import annotations

from django.apps import AppConfig


class PanelConfig(AppConfig):
    name = "apps.panel"
    label = "panel"
