"""Routes of sign-in: the caller, tokens, people and applications."""

from __future__ import annotations

from apps.access.api import applications, me, people, tokens

urlpatterns = [*me.urlpatterns, *tokens.urlpatterns, *people.urlpatterns, *applications.urlpatterns]
