"""The panel and the pages before it; mounted at the root."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, path
from django.views.generic import RedirectView
from django.views.i18n import set_language

from apps.panel.site import site
from apps.panel.views.door import SetUp, SignIn, SignOut, Theme

_to_panel = RedirectView.as_view(pattern_name="panel:index")

urlpatterns: list[URLPattern | URLResolver] = [
    path("", _to_panel),
    path("panel", _to_panel),
    path("setup", SetUp.as_view(), name="setup"),
    path("i18n", set_language, name="set_language"),
    path("panel/theme/", Theme.as_view(), name="theme"),
    path("panel/login/", SignIn.as_view(), name="login"),
    path("panel/logout/", SignOut.as_view(), name="logout"),
    path("panel/", site.urls),
]
