"""Error pages: what happened, what to do, the code in small (panel.md §7)."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseForbidden
from django.shortcuts import render
from django.utils.translation import gettext as _

from apps.core.errors import DomainError


def page(request: HttpRequest, error: DomainError) -> HttpResponse:
    """The page of a refusal; an id that does not exist and one that is masked give the same bytes."""
    titles = {
        403: _("Not allowed"),
        404: _("Nothing here"),
        409: _("Changed meanwhile"),
        503: _("Busy just now"),
    }
    advice = {
        403: _("An owner or admin of the project, or an instance administrator, can give you the right."),
        404: _("It does not exist, or it is not shared with you."),
        409: _("Reload the page to see how it is now, then try again."),
        503: _("Wait a moment, then reload the page."),
    }
    context = {
        "title": titles.get(error.status, _("Something went wrong")),
        "sentence": "" if error.status == 404 else str(error.detail),
        "advice": advice.get(error.status, _("Go back and try again. The server's log says more.")),
        "code": error.code,
    }
    return render(request, "panel/trouble.html", context, status=error.status)


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    """A form that is too old or not ours."""
    context = {
        "title": _("The form is too old"),
        "sentence": _("This form was opened before you signed in or too long ago; nothing was changed."),
        "advice": _("Go back, reload the page and send it again."),
        "code": "csrf_failed",
    }
    return HttpResponseForbidden(render(request, "panel/trouble.html", context).content)
