"""The panel's own admin site: nothing reaches it but what is listed here (architecture.md §4, "Admin")."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.urls import URLPattern, URLResolver
from unfold.sites import UnfoldAdminSite


class PanelSite(UnfoldAdminSite):  # type: ignore[misc]
    """Serves the panel's pages under the namespace `panel`; the theme's and Django's own pages have no route."""

    def get_urls(self) -> list[URLPattern | URLResolver]:
        from apps.panel.routes import pages

        return pages

    def has_permission(self, request: HttpRequest) -> bool:
        """Pages decide by the project policy; what Django's admin offers beside them is closed."""
        return False

    def register(self, *args: Any, **kwargs: Any) -> None:
        """Model pages need rights from the policy decision first; until they have them there are none."""
        raise NotImplementedError("The panel has no model pages.")


site = PanelSite(name="panel")
