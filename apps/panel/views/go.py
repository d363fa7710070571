"""The palette and the keys: every place and every act, by a few letters (panel.md §6)."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy

from apps.panel import palette
from apps.panel.page import SIGNED_IN, Page, current_project


class Go(Page):
    """What fits the letters, at most eight of a kind, with the rights of this moment; acts are POST forms."""

    permissions = {"GET": SIGNED_IN}
    template = "panel/go.html"
    part = "panel/go_hits.html"
    section = "go"
    title = gettext_lazy("Go to, run, stop")

    def get(self, request: HttpRequest) -> HttpResponse:
        wanted = " ".join(request.GET.get("q", "")[:100].split())
        project = current_project(request, self.visitor)
        return self.show(
            groups=palette.hits(self.visitor, project, wanted), wanted=wanted, standing=True, current=project
        )


class Keys(Page):
    """The keys of all pages, and the switch for single keys."""

    permissions = {"GET": SIGNED_IN}
    template = "panel/keys.html"
    part = "panel/keys_list.html"
    section = "keys"
    title = gettext_lazy("Keys")

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.show(groups=palette.KEYS)
