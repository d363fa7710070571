"""Routes of the health checks, for anyone, and of the figures, for whoever has their token; outside `/api`."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.core import health, metrics

urlpatterns: list[URLPattern] = [
    path("livez", health.livez, name="livez"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", metrics.metrics, name="metrics"),
]
