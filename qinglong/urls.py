"""Routes: the API, the panel, and the few pages beside them."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path

from apps.access.exchange import Exchange
from apps.triggers.api.hooks import Hook

# One line per app; each brings its own `urlpatterns`.
API = "api/v3/"

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("apps.core.health_urls")),
    path(API, include("apps.access.api")),
    path(API, include("apps.projects.api")),
    path(API, include("apps.audit.api")),
    path(API, include("apps.artifacts.api")),
    path(API, include("apps.vault.api")),
    path(API, include("apps.tasks.api")),
    path(API, include("apps.triggers.api.urls")),
    path(API, include("apps.dispatch.api")),
    path(API, include("apps.runs.api.urls")),
    path(API, include("apps.approvals.api.urls")),
    path("oauth/token", Exchange.as_view(), name="exchange"),
    path("hooks/<str:secret>", Hook.as_view(), name="hook"),
    path("", include("apps.panel.urls")),
]

handler400 = "apps.core.problems.bad_request"
handler403 = "apps.core.problems.forbidden"
handler404 = "apps.core.problems.not_found"
handler500 = "apps.core.problems.server_error"
