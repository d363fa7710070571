"""The panel and the pages before it; mounted at the root."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, path
from django.views.generic import RedirectView
from django.views.i18n import set_language

from apps.panel.site import site
from apps.panel.views import coming_in
from apps.panel.views import single_sign_on as sso
from apps.panel.views.door import AskPasskey, SecondStep, SetUp, SignIn, SignOut, Theme

_to_panel = RedirectView.as_view(pattern_name="panel:index")

urlpatterns: list[URLPattern | URLResolver] = [
    path("", _to_panel),
    path("panel", _to_panel),
    path("setup", SetUp.as_view(), name="setup"),
    path("invitation/", coming_in.ComeIn.as_view(), name="invitation"),
    path("invitation/<slug:alias>/", coming_in.ComeInThroughProvider.as_view(), name="invitation-provider"),
    path("i18n", set_language, name="set_language"),
    path("panel/theme/", Theme.as_view(), name="theme"),
    path("panel/login/", SignIn.as_view(), name="login"),
    path("panel/login/second/", SecondStep.as_view(), name="login-second"),
    path("panel/login/passkey/", AskPasskey.as_view(), name="ask-passkey"),
    path("panel/logout/", SignOut.as_view(), name="logout"),
    path("oidc/login/", sso.Begin.as_view(), name="oidc-begin"),
    path("oidc/login/<slug:alias>/", sso.Begin.as_view(), name="oidc-begin-of"),
    path("oidc/link/<slug:alias>/", sso.Link.as_view(), name="oidc-link"),
    # Registered by hand at providers: with or without the last slash.
    path("oidc/callback/", sso.Callback.as_view(), name="oidc-callback"),
    path("oidc/callback", sso.Callback.as_view()),
    path("oidc/callback/<slug:alias>/", sso.Callback.as_view(), name="oidc-callback-of"),
    path("oidc/callback/<slug:alias>", sso.Callback.as_view()),
    path("oidc/back-channel-logout/", sso.BackChannelLogout.as_view(), name="oidc-back-channel"),
    path(
        "oidc/back-channel-logout/<slug:alias>/", sso.BackChannelLogout.as_view(), name="oidc-back-channel-of"
    ),
    path("panel/", site.urls),
]
