"""One action on many tasks, and the saved views of the list."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from apps.core import ids
from apps.core.errors import InvalidInput, NotFound
from apps.panel import bulk, task_list
from apps.panel.page import Action, Page, refuse_nul_in_form, safe_next
from apps.panel.views.tasks import look
from apps.tasks import batches, saved_views
from apps.tasks.batches import BatchWish
from apps.tasks.saved_views import ViewDraft

SHOWN = 12


class Bulk(Page):
    """Asks where it stops things or takes in many; then does it, and says what became of each."""

    permissions = {"POST": "task.read"}
    template = "panel/task_bulk.html"
    section = "tasks"

    def post(self, request: HttpRequest, p: str) -> HttpResponse:
        refuse_nul_in_form(request)
        post = request.POST
        action = bulk.ACTIONS.get(post.get("do", ""))
        if action is None:
            raise NotFound
        wish = bulk.Wish(post["do"], post.get("value", "").strip()[:64], post.get("once", "")[:64])
        if post.get("all") == "1":
            return self.all_that_match(p, wish)
        chosen = bulk.chosen(self.project.pk, [i for i in map(ids.parse_uuid, post.getlist("task")) if i])
        self.also(action.permission)
        back = safe_next(request, reverse("panel:tasks", args=[p]))
        if not chosen:
            self.complain(InvalidInput(_("No task was chosen.")))
            return HttpResponseRedirect(back)
        if action.takes and not wish.value:
            self.complain(InvalidInput(_("Write a label first.")))
            return HttpResponseRedirect(back)
        shown: dict[str, Any] = {"wish": wish, "chosen": chosen, "back": back}
        if (action.asks or len(chosen) >= bulk.ASK_FROM) and post.get("sure") != "1":
            question = str(action.question % {"n": len(chosen)})
            return self.show(
                title=question, names=chosen[:SHOWN], more=len(chosen) - SHOWN,
                warning=bulk.WARNINGS.get(wish.action, ""), danger=action.asks, **shown,
            )  # fmt: skip
        outcomes = bulk.carry_out(lambda: self.also(action.permission), chosen, wish)
        said = bulk.summary(wish, outcomes)
        refused = [outcome for outcome in outcomes if outcome.refusal]
        if not refused:
            self.say(said)
            return HttpResponseRedirect(back)
        return self.show(
            template="panel/task_bulk_done.html", title=said, outcomes=outcomes, refused=refused, **shown
        )

    def all_that_match(self, p: str, wish: bulk.Wish) -> HttpResponse:
        """Asks, showing the first of them; then begins the batch and shows how it goes on."""
        post, action = self.request.POST, bulk.ACTIONS[wish.action]
        grant = self.also(action.permission)
        wanted = task_list.Wanted(post.get("search", "")[:200], show=post.get("show", "")[:16])
        back = safe_next(self.request, reverse("panel:tasks", args=[p]))
        if action.takes and not wish.value:
            self.complain(InvalidInput(_("Write a label first.")))
            return HttpResponseRedirect(back)
        if post.get("sure") != "1":
            names = list(task_list.wanted_tasks(self.project.pk, wanted).order_by("-pk")[: SHOWN + 1])
            return self.show(
                title=action.question_all, names=names[:SHOWN], and_more=len(names) > SHOWN, wish=wish, back=back,
                warning=bulk.WARNINGS.get(wish.action, ""), danger=action.asks, wanted=wanted,
            )  # fmt: skip
        asked = BatchWish(
            action=wish.action,
            value=wish.value,
            search=wanted.search,
            show=wanted.show,
            language=get_language() or "en",
        )
        try:
            batch = batches.start_batch(grant, asked)
        except batches.BatchRunning as refusal:
            self.complain(refusal)
            return HttpResponseRedirect(back)
        return HttpResponseRedirect(reverse("panel:batch", args=[p, batch.pk]))


class ShowBatch(Page):
    """How far an action on all that match has come; only whoever began it sees it."""

    permissions = {"GET": "task.read", "POST": "task.read"}
    template = "panel/task_batch.html"
    part = "panel/task_batch_live.html"
    section = "tasks"

    def get(self, request: HttpRequest, p: str, batch: UUID) -> HttpResponse:
        found = batches.find(self.project.pk, self.grant.actor.id, batch)
        action = bulk.ACTIONS[found.action]
        return self.show(title=action.title_all, batch=found, done=action.done % {"n": found.done})

    def post(self, request: HttpRequest, p: str, batch: UUID) -> HttpResponse:
        batches.stop_batch(self.grant, batch)
        return HttpResponseRedirect(reverse("panel:batch", args=[p, batch]))


class SaveView(Action):
    """Keeps the present look of the list under a name."""

    permissions = {"POST": "task.read"}

    def act(self, p: str) -> HttpResponse:
        post = self.request.POST
        views = saved_views.of_person(self.project.pk, self.grant.actor.id)
        now = look(post, views)
        draft = ViewDraft(
            name=post.get("name", "") or (now.view.name if now.view else ""),
            search=now.wanted.search,
            order=now.wanted.order,
            compact=now.compact,
            hidden=sorted(now.hidden),
        )
        # A name makes a view; without one the view that is open is brought up to date.
        known = None if post.get("name") or now.view is None else now.view.pk
        view = saved_views.save_view(self.grant, draft, known)
        self.say(_("View kept: %(name)s.") % {"name": view.name})
        return HttpResponseRedirect(f"{reverse('panel:tasks', args=[p])}?view={view.pk}")

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:tasks", kwargs["p"])


class MoveView(Action):
    """Puts a saved view a place earlier or later among the tabs."""

    permissions = {"POST": "task.read"}

    def act(self, p: str, view: UUID, way: str) -> HttpResponse:
        by = {"earlier": -1, "later": 1}.get(way)
        if by is None:
            raise NotFound
        saved_views.move_view(self.grant, view, by)
        return HttpResponseRedirect(f"{reverse('panel:tasks', args=[p])}?view={view}")


class RemoveView(Action):
    """Forgets a saved view."""

    permissions = {"POST": "task.read"}

    def act(self, p: str, view: UUID) -> HttpResponse:
        name = saved_views.remove_view(self.grant, view)
        self.say(_("View removed: %(name)s.") % {"name": name})
        return HttpResponseRedirect(reverse("panel:tasks", args=[p]))
