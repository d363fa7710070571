"""Secrets of a project: set and replaced by one field that nothing is ever read from, disabled, enabled."""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.debug import sensitive_post_parameters

from apps.core import ids
from apps.core.errors import DomainError, InvalidInput, NotFound
from apps.dispatch.launcher.forms import too_short
from apps.panel.page import Action, Page
from apps.panel.task_form import kept
from apps.tasks import queries as tasks
from apps.vault import providers, queries, services
from apps.vault.services import Put

SHOWN_USERS = 50
# How many names are tried for a value that is kept from the form of a task: NAME, NAME-2, …
_NAMES = 20
_LONGEST = 100
_LINE_BREAK = re.compile(r"\r\n?")


class SecretPage(Page):
    """What list and single page have in common: the form, its mutation id made when it is shown."""

    permissions = {"GET": "secret.manage", "POST": "secret.manage"}
    section = "secrets"
    errors: dict[str, Any]

    def store(self, name: str) -> Put | None:
        """Sets the value that was sent; None where it was refused, with `errors` by field."""
        sent = self.request.POST
        same: dict[str, Any] = {
            "mutation_id": sent.get("mutation_id", ""),
            "expected_version": _version(self.request),
        }
        try:
            if sent.get("provider"):
                return services.put_external(self.grant, name, sent["provider"], sent.get("key", ""), **same)
            return services.put(self.grant, name, self._value(), **same)
        except InvalidInput as refusal:
            self.errors = dict(refusal.fields) or {"value": [refusal.detail]}
        except DomainError as refusal:
            if refusal.status not in (409, 503):
                raise
            self.errors = {"value": [refusal.detail]}
        return None

    def stored(self, name: str, done: Put) -> None:
        """Says so, and by name what a log would show."""
        self.say(_("Stored: %(name)s, version %(version)s.") % {"name": name, "version": done.version})
        if not self.request.POST.get("provider") and too_short(self._value()):
            self.warn(
                _(
                    "The value of %(name)s is too short or too plain to be hidden in logs: what prints it shows it."
                )
                % {"name": name}
            )

    def _value(self) -> str:
        # Browsers send every line break as CR LF; the API takes those that are meant so.
        return _LINE_BREAK.sub("\n", self.request.POST.get("value", ""))

    def form_context(self) -> dict[str, Any]:
        """What a new form is made with."""
        return {"mutation_id": ids.token(16), "providers": list(providers.in_use().items())}


@method_decorator(sensitive_post_parameters("value"), name="dispatch")
class SecretList(SecretPage):
    template = "panel/secrets.html"
    title = gettext_lazy("Secrets")

    def get(self, request: HttpRequest, p: str) -> HttpResponse:
        return self.list_page()

    def post(self, request: HttpRequest, p: str) -> HttpResponse:
        name = request.POST.get("name", "").strip()
        done = self.store(name)
        if done is None:
            return self.list_page(400, name=name, key=request.POST.get("key", ""), errors=self.errors)
        self.stored(name, done)
        return HttpResponseRedirect(reverse("panel:secrets", args=[p]))

    def list_page(self, status: int = 200, **context: Any) -> HttpResponse:
        """All secrets by name, with the form of a new one beneath."""
        page = queries.page(self.project.pk, cursor=self.request.GET.get("cursor"))
        used = tasks.secret_users(self.project.pk, [row.name for row in page.items])
        rows = [(row, used.get(row.name, 0)) for row in page.items]
        return self.show(status, page=page, rows=rows, version=0, **self.form_context(), **context)


@method_decorator(sensitive_post_parameters("value"), name="dispatch")
class ShowSecret(SecretPage):
    """One secret: what uses it, and a new value for it."""

    template = "panel/secret.html"

    def get(self, request: HttpRequest, p: str, name: str) -> HttpResponse:
        return self.one_page(name)

    def post(self, request: HttpRequest, p: str, name: str) -> HttpResponse:
        queries.find(self.project.pk, name)
        done = self.store(name)
        if done is None:
            return self.one_page(name, 400, key=request.POST.get("key", ""), errors=self.errors)
        self.stored(name, done)
        return HttpResponseRedirect(reverse("panel:secret", args=[p, name]))

    def one_page(self, name: str, status: int = 200, **context: Any) -> HttpResponse:
        """The secret as it is now; the next value has to follow on what is shown."""
        secret = queries.find(self.project.pk, name)
        users = tasks.users_of_secret(self.project.pk, name, SHOWN_USERS + 1)
        more = len(users) > SHOWN_USERS
        return self.show(
            status,
            title=secret.name,
            secret=secret,
            version=secret.current,
            users=users[:SHOWN_USERS],
            more=more,
            place=providers.PROVIDERS.get(secret.provider),
            **self.form_context(),
            **context,
        )


@method_decorator(sensitive_post_parameters("value"), name="dispatch")
class KeepValue(Page):
    """Keeps a value that stands in the form of a task as a secret of its own, under the first name that is free.

    Answers the script of the form: `name` of the secret, or a sentence and the code of the refusal. The task is not
    touched: who asked puts the reference into the form and saves it.
    """

    permissions = {"POST": "secret.manage"}

    def post(self, request: HttpRequest, p: str) -> HttpResponse:
        variable = request.POST.get("variable", "").strip().lstrip("_")
        try:
            name = self.keep(services.check_name(variable[:_LONGEST]), self.value())
        except DomainError as refusal:
            if not 400 <= refusal.status < 500 and refusal.status != 503:
                raise
            fields = getattr(refusal, "fields", {})
            said = next((str(one) for sentences in fields.values() for one in sentences), str(refusal.detail))
            return JsonResponse({"detail": said, "code": refusal.code}, status=refusal.status)
        return JsonResponse({"name": name})

    def keep(self, name: str, value: str) -> str:
        """Under `name` or the next free one like it, which it returns; somebody faster is a conflict."""
        wanted = [name, *(f"{name}-{number}" for number in range(2, _NAMES + 1))]
        free = queries.unknown(self.project.pk, wanted)
        chosen = next((one for one in wanted if one in free), wanted[-1])
        services.put(self.grant, chosen, value, mutation_id=ids.token(16), expected_version=0)
        return chosen

    def value(self) -> str:
        """What was sent; byte for byte the stored value of the task where nobody changed it."""
        sent, task = self.request.POST, self.request.POST.get("task", "")
        stored = ""
        if "\0" in task:
            raise NotFound
        if task:
            view = tasks.view(tasks.find(self.project.pk, task))
            stored = view.env.get(sent.get("variable", ""), "")
        return kept(sent.get("value", ""), stored)


class SwitchSecret(Action):
    """Disables a secret, asking once and naming the tasks that will fail."""

    permissions = {"GET": "secret.manage", "POST": "secret.manage"}
    template = "panel/secret_disable.html"
    section = "secrets"
    enabled = False

    def get(self, request: HttpRequest, p: str, name: str) -> HttpResponse:
        secret = queries.find(self.project.pk, name)
        users = tasks.users_of_secret(self.project.pk, name, SHOWN_USERS + 1)
        return self.show(
            title=_("Disable %(name)s") % {"name": secret.name},
            secret=secret,
            users=users[:SHOWN_USERS],
            more=len(users) > SHOWN_USERS,
            mutation_id=ids.token(16),
        )

    def act(self, p: str, name: str) -> HttpResponse:
        mutation_id = self.request.POST.get("mutation_id") or ids.token(16)
        if self.enabled:
            services.enable(self.grant, name, mutation_id=mutation_id)
            self.say(_("Enabled: %(name)s can be used again.") % {"name": name})
        else:
            services.disable(self.grant, name, mutation_id=mutation_id)
            count = tasks.secret_users(self.project.pk, [name]).get(name, 0)
            self.say(
                ngettext(
                    "Disabled: %(name)s. %(n)s task that names it fails until it is enabled.",
                    "Disabled: %(name)s. %(n)s tasks that name it fail until it is enabled.",
                    count,
                )
                % {"name": name, "n": count}
            )
        return self.after(p=p, name=name)

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:secret", kwargs["p"], kwargs["name"])


class EnableSecret(SwitchSecret):
    """The opposite; asks nothing."""

    permissions = {"POST": "secret.manage"}
    enabled = True


def _version(request: HttpRequest) -> int:
    text = request.POST.get("version", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 11 else -1
