"""In front of everything: guesses that need no look at a password are turned away before sessions and templates."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import get_language_from_request, override

from apps.access.errors import DoorBusy, TooManyAttempts
from apps.access.services.passwords import turned_away

MAX_FORM_BYTES = 131_072
_NEVER_KEPT = "max-age=0, no-cache, no-store, must-revalidate, private"


class Doorkeeper:
    """Answers a sign-in whose pair is known to be locked, or for which the queue is full, from this process's memory.

    All others go on, and are decided by the same rules with the database asked. A form of more than 128 KiB is no
    sign-in and is not read.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.method == "POST" and request.path == reverse(settings.LOGIN_URL):
            refusal = _refusal(request)
            if refusal is not None:
                return answer(request, refusal)
        return self._get_response(request)


def answer(request: HttpRequest, refusal: TooManyAttempts) -> HttpResponse:
    """As little as a browser can show, made once per language and wait: it is sent when there is much to do."""
    language = get_language_from_request(request)
    wait = int(refusal.extra["retry_after"])
    page = _page(isinstance(refusal, DoorBusy), language, reverse(settings.LOGIN_URL), wait)
    return HttpResponse(
        page,
        status=refusal.status,
        headers={
            "Retry-After": str(wait),
            "Cache-Control": _NEVER_KEPT,
            "Content-Language": language,
            # Nobody behind this counts it, and connections live on.
            "Content-Length": str(len(page)),
            "Vary": "Accept-Language, Cookie",
        },
    )


@lru_cache(maxsize=1024)
def _page(busy: bool, language: str, login: str, wait: int) -> bytes:
    refusal = DoorBusy() if busy else TooManyAttempts()
    with override(language):
        return render_to_string(
            "access/busy.html", {"refusal": refusal, "login": login, "wait": wait}
        ).encode()


def _refusal(request: HttpRequest) -> TooManyAttempts | None:
    if int(request.META.get("CONTENT_LENGTH") or 0) > MAX_FORM_BYTES:
        raise RequestDataTooBig
    try:
        form = request.POST
    except UnreadablePostError:
        # Whoever hung up is refused further on, as for every other form.
        return None
    return None if form.get("answer") else turned_away(request, form.get("username", ""))
