"""The three tasks of the first minute: added with one click, removed together."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.panel.page import Action
from apps.triggers import examples
from apps.triggers.services.making import Rights


class AddExamples(Action):
    permissions = {"POST": "task.create"}

    def act(self, p: str) -> HttpResponse:
        made = examples.add_examples(Rights(self.grant, self.also("task.update"), self.also("run.start")))
        count = len(made)
        if not made:
            self.say(_("The examples are there already."))
        else:
            said = ngettext("%(count)s example added.", "%(count)s examples added.", count)
            self.say(said % {"count": count})
        return HttpResponseRedirect(reverse("panel:tasks", args=[p]))

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:tasks", kwargs["p"])


class RemoveExamples(Action):
    """Archives what is still an example; a task that somebody changed is theirs and stays."""

    permissions = {"POST": "task.delete"}

    def act(self, p: str) -> HttpResponse:
        count = examples.remove_examples(self.grant)
        said = ngettext(
            "%(count)s example was archived; what you changed stayed.",
            "%(count)s examples were archived; what you changed stayed.",
            count,
        )
        self.say(said % {"count": count})
        return HttpResponseRedirect(reverse("panel:tasks", args=[p]))

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:tasks", kwargs["p"])
