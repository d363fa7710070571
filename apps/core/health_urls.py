"""Routes of the health checks; outside `/api`, for anyone."""

from __future__ import annotations

from django.urls import URLPattern, path

from apps.core import health

urlpatterns: list[URLPattern] = [
    path("livez", health.livez, name="livez"),
    path("readyz", health.readyz, name="readyz"),
]
