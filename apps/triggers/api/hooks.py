"""`POST /hooks/{secret}`: the one door that needs no account, only the secret in its address."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext_lazy as _
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from apps.access.addresses import address_of
from apps.access.errors import LengthRequired
from apps.core import problems
from apps.core.errors import InvalidInput, TooLarge
from apps.core.throttle import Throttle
from apps.runs.errors import ConcurrencySkipped
from apps.runs.services import Skipped
from apps.triggers.errors import HookNotFound, HookThrottled
from apps.triggers.models import Trigger
from apps.triggers.services import hooks

# Per minute: calls of one webhook, and calls of one address with secrets that nobody has.
CALLS = 120
GUESSES = 30
# Names under which senders give a delivery its id: ours, and those of the usual ones.
DELIVERY_HEADERS = (
    "Idempotency-Key",
    "X-GitHub-Delivery",
    "X-Gitlab-Event-UUID",
    "X-Gitea-Delivery",
    "Webhook-Id",
)
SIGNATURE_HEADERS = ("X-QingLong-Signature", "X-Hub-Signature-256")


calls = Throttle(CALLS)
guesses = Throttle(GUESSES)


@method_decorator(csrf_exempt, name="dispatch")
class Hook(View):
    """Starts the webhook's task: 201 with the run, 200 for a delivery that came before, 202 where it is asked for."""

    http_method_names = ["post"]

    def dispatch(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        """Every refusal as a problem, as in the API."""
        try:
            return super().dispatch(request, *args, **kwargs)
        except Exception as error:
            found = problems.handle(error, {})
            if found is None:
                raise
            return found

    def post(self, request: HttpRequest, secret: str) -> HttpResponse:
        """See `services.hooks`."""
        if "Transfer-Encoding" in request.headers and "Content-Length" not in request.headers:
            raise LengthRequired
        trigger = _find(request, secret)
        _pass(calls, str(trigger.pk))
        kind = request.content_type or ""
        if kind not in ("application/json", "") and not kind.endswith("+json") and _length(request):
            raise _NotJson
        delivery = hooks.Delivery(
            _body(request), _header(request, SIGNATURE_HEADERS), _header(request, DELIVERY_HEADERS)
        )
        result = hooks.receive(trigger, delivery)
        if isinstance(result, hooks.Asked):
            answer: dict[str, object] = {
                "run": None, "approval": {"id": result.approval_id}, "replayed": result.replayed,
            }  # fmt: skip
            return JsonResponse(
                answer, status=200 if result.replayed else 202, headers={"Cache-Control": "no-store"}
            )
        if isinstance(result, Skipped):
            raise ConcurrencySkipped(skip=str(result.skip.pk))
        answer = {"run": {"id": str(result.run.pk)}, "replayed": result.replayed}
        return JsonResponse(
            answer, status=200 if result.replayed else 201, headers={"Cache-Control": "no-store"}
        )


class _NotJson(InvalidInput):
    code = "unsupported_media_type"
    status = 415
    message = _(
        "A webhook takes JSON: send it with the header Content-Type: application/json, or send no body."
    )


def _find(request: HttpRequest, secret: str) -> Trigger:
    """Whoever tries many wrong secrets is asked to wait; the right one works beside such a neighbour."""
    try:
        return hooks.find(secret)
    except HookNotFound:
        _pass(guesses, address_of(request))
        raise


def _pass(throttle: Throttle, key: str) -> None:
    if wait := throttle.full(key):
        raise HookThrottled(retry_after=wait)
    throttle.count(key)


def _body(request: HttpRequest) -> bytes:
    if _length(request) > hooks.MAX_BODY:
        raise TooLarge
    return request.read(hooks.MAX_BODY + 1)


def _length(request: HttpRequest) -> int:
    text = request.META.get("CONTENT_LENGTH") or "0"
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else hooks.MAX_BODY + 1


def _header(request: HttpRequest, names: tuple[str, ...]) -> str | None:
    return next((request.headers[name] for name in names if name in request.headers), None)
