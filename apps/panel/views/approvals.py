"""The approvals inbox: what waits, what exactly would happen, deciding, what became of it, closing by hand."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext_lazy

from apps.access.services import session_of
from apps.approvals import queries, services, voting
from apps.approvals.contract import RECOVERY_REQUIRED
from apps.approvals.errors import RecoveryStrongAuthenticationRequired
from apps.approvals.models import ApprovedActionPlan
from apps.approvals.models.recovery import RECENT_MS
from apps.approvals.queries import Filters, Seen
from apps.approvals.services import Verdict
from apps.approvals.services.deciding import PERMISSION as DECIDE
from apps.approvals.services.manual import PERMISSION as RECOVER
from apps.approvals.services.manual import Recovery, recover, require_strong
from apps.approvals.voting import Tally
from apps.core import clock
from apps.core.errors import InvalidInput, NotFound
from apps.panel import approval_page, approval_words
from apps.panel.page import ORIGIN, SIGNED_IN, Action, Page, current_project, deciding_in
from apps.panel.queries import names
from apps.panel.views.single_sign_on import again_url
from apps.projects.models import Project

PAGE = 50
# What each tab of the inbox shows; the first is the one that opens.
TABS: tuple[tuple[str, str | Promise], ...] = (
    ("waiting", pgettext_lazy("approvals", "Waiting")),
    ("done", pgettext_lazy("approvals", "Handed over")),
    ("rejected", pgettext_lazy("approvals", "Rejected")),
    ("own", pgettext_lazy("approvals", "Asked by you")),
    ("all", pgettext_lazy("approvals", "All")),
)
RECOVERY = ("recovery", pgettext_lazy("approvals", "Recovery"))
ANSWER = gettext_lazy(
    "What you decided counts as soon as you have shown that it is you; nothing has happened yet."
)


@dataclass(frozen=True)
class Row:
    """A request as the inbox shows it."""

    seen: Seen
    plan: ApprovedActionPlan | None
    requester: str
    decider: str
    tally: Tally
    voted: bool

    @property
    def title(self) -> str:
        """The task's name as it was sealed, else the kind of action."""
        name = self.plan.task_name if self.plan else None
        return name or self.seen.request.action_type

    @property
    def word(self) -> str:
        return str(approval_words.STATUSES[self.seen.status])

    @property
    def risk(self) -> str:
        return str(approval_words.RISKS[self.seen.request.risk])

    @property
    def why(self) -> str:
        """What ended it by itself."""
        return approval_words.lapse(self.seen.reason)


class FindInbox(Page):
    """To the inbox of the project where something waits, else of the one that was looked at last."""

    permissions = {"GET": SIGNED_IN}
    section = "approvals"

    def get(self, request: HttpRequest) -> HttpResponse:
        chosen = current_project(request, self.visitor)
        if chosen is None:
            return HttpResponseRedirect(reverse("panel:index"))
        waiting = _elsewhere(self)
        found = next((one for one in self.visitor.projects if waiting.get(one.pk)), None)
        if not waiting.get(chosen.pk) and found is not None:
            chosen = found
        return HttpResponseRedirect(reverse("panel:approvals", args=[chosen.slug]))


class Inbox(Page):
    """Requests of a project; what waits comes as it expires. The address is the filter."""

    permissions = {"GET": "project.read"}
    template = "panel/approvals.html"
    part = "panel/approvals_live.html"
    section = "approvals"
    title = pgettext_lazy("navigation", "Approvals")

    def get(self, request: HttpRequest, p: str) -> HttpResponse:
        tabs = [*TABS, RECOVERY] if self.may(RECOVER) else list(TABS)
        tab = request.GET.get("tab") or "waiting"
        if tab not in dict(tabs):
            raise NotFound
        wanted: dict[str, Any] = {"limit": PAGE, "cursor": request.GET.get("cursor")}
        context: dict[str, Any] = {
            "tabs": tabs, "tab": tab, "may_decide": self.project.pk in deciding_in(self.visitor),
        }  # fmt: skip
        if tab == "recovery":
            self.also(RECOVER)
            context |= self.recovery(**wanted)
        else:
            page = queries.page(self.project.pk, self.filters(tab), **wanted)
            context |= {"page": page, "rows": _rows(self, page.items)}
        if len(self.visitor.projects) > 1:
            waiting = _elsewhere(self)
            context["elsewhere"] = [
                (one, waiting[one.pk])
                for one in self.visitor.projects
                if waiting[one.pk] and one.pk != self.project.pk
            ]
        return self.show(**context)

    def filters(self, tab: str) -> Filters:
        """What a tab shows."""
        if tab == "waiting":
            return Filters(state="pending", live=True)
        if tab == "own":
            return Filters(requested_by=self.visitor.principal.subject)
        return Filters(state={"done": "consumed", "rejected": "rejected"}.get(tab))

    def recovery(self, **wanted: Any) -> dict[str, Any]:
        """What only a person can close, and what still looks for evidence."""
        page = queries.for_people(self.project.pk, **wanted)
        still = queries.executions(self.project.pk, "executing", limit=PAGE).items
        lost = [one for one in still if one.status == RECOVERY_REQUIRED]
        by_hand = {control.dispatch_id for control in page.items}
        looking = [one.execution for one in lost if one.execution.dispatch_id not in by_hand]
        return {"page": page, "by_hand": page.items, "looking": looking}


class ApprovalPage(Page):
    """What belongs to one request; the project is found through it, and masked like one that does not exist."""

    section = "approvals"

    def locate(self, **kwargs: Any) -> Project:
        project_id = queries.project_of(kwargs["approval"])
        if project_id is None:
            raise NotFound
        return self.visitor.project(project_id)


class ShowApproval(ApprovalPage):
    """What exactly would happen, the decision, and what became of it."""

    permissions = {"GET": "project.read"}
    template = "panel/approval.html"
    part = "panel/approval_live.html"

    def get(self, request: HttpRequest, approval: str) -> HttpResponse:
        part = bool(request.headers.get("X-Part"))
        facts = approval_page.facts(approval, whole=not part)
        row = facts.seen.request
        me = self.visitor.principal.subject
        own = (row.requested_by_type, row.requested_by_id) == me.pair
        voted = facts.tally.of(me.id)
        able = facts.policy.lets_decide(me.id, self.visitor.roles.get(self.project.pk))
        may_decide = able and not own and voted is None
        title = facts.plan.task_name if facts.plan else None
        context: dict[str, Any] = {
            "facts": facts,
            "approval": row,
            "title": title or row.action_type,
            "status_word": approval_words.STATUSES[facts.seen.status],
            "own": own,
            "voted": voted,
            "may_decide": may_decide,
            "narrowed": self.may(DECIDE) and not able,
        }
        if facts.open and not may_decide and (not part or voted):
            said = [vote.voter_id for vote in facts.tally.votes]
            context["deciders"] = approval_page.deciders(facts.policy, row.requested_by_id, said)
        if not part:
            context |= {
                "may_see_given": self.may(DECIDE) or own,
                "approve_reasons": approval_words.APPROVE_REASONS,
                "reject_reasons": approval_words.REJECT_REASONS,
                "once": secrets.token_hex(12),
            }
            if context["may_see_given"] and facts.plan:
                context["given"] = approval_page.given(facts.plan)
        return self.show(**context)


class Decide(ApprovalPage, Action):
    """Approves or rejects, through the one function that decides."""

    permissions = {"POST": DECIDE}
    fresh = True
    fresh_because = ANSWER

    def act(self, approval: str) -> HttpResponse:
        post = self.request.POST
        decision = post.get("decision", "")
        verdict = Verdict(
            request_id=approval,
            expected_version=_number(post.get("version")),
            decision_id=f"{post.get('once', '')}.{decision}",
            decision=decision,
            reason_code=post.get(f"{decision}_reason", ""),
        )
        decided = services.decide(self.visitor.principal, verdict, origin=ORIGIN).request
        if decided.state == "pending":
            tally = queries.tally_of(decided)
            more = tally.needed - tally.given
            said = ngettext(
                "Your approval counts; %(n)d more must approve.",
                "Your approval counts; %(n)d more must approve.",
                more,
            )
            self.say(said % {"n": more})
        else:
            self.say(_("Approved.") if decision == "approved" else _("Rejected."))
        return self.after(approval=approval)

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:approval", args=[kwargs["approval"]]))


class Withdraw(ApprovalPage, Action):
    """Takes back what one asked for; the service looks whose it is."""

    permissions = {"POST": "project.read"}

    def act(self, approval: str) -> HttpResponse:
        services.withdraw(self.visitor.principal, approval, origin=ORIGIN)
        self.say(_("Taken back; nothing has happened, and nothing will."))
        return self.after(approval=approval)

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:approval", args=[kwargs["approval"]]))


class CloseByHand(ApprovalPage, Action):
    """Says what became of an action that no evidence tells of; takes a second factor of the last five minutes."""

    permissions = {"GET": RECOVER, "POST": RECOVER}
    template = "panel/approval_recover.html"
    title = gettext_lazy("What became of it?")
    fresh = True
    fresh_minutes = RECENT_MS // 60_000
    fresh_because = ANSWER

    def get(self, request: HttpRequest, approval: str) -> HttpResponse:
        facts = approval_page.facts(approval, whole=False)
        if not facts.for_people:
            return HttpResponseRedirect(reverse("panel:approval", args=[approval]))
        try:
            require_strong(self.visitor.principal, clock.now())
            strong = True
        except RecoveryStrongAuthenticationRequired:
            strong = False
        return self.show(
            facts=facts,
            approval=facts.seen.request,
            strong=strong,
            again=again_url(session_of(request), request.path),
            ends=approval_words.ENDS,
            reasons=approval_words.RECOVER_REASONS,
            once=secrets.token_hex(12),
        )

    def act(self, approval: str) -> HttpResponse:
        post = self.request.POST
        found = queries.execution_of(approval)
        if found is None:
            raise NotFound
        wish = Recovery(
            dispatch_id=found.execution.dispatch_id,
            expected_execution_version=_number(post.get("execution_version")),
            expected_recovery_version=_number(post.get("recovery_version")),
            mutation_id=post.get("once", ""),
            decision=post.get("decision", ""),
            reason_code=post.get("reason", ""),
        )
        done = recover(self.visitor.principal, wish, origin=ORIGIN)
        if done.status == "already_terminal":
            self.warn(_("It was closed already; nothing was changed."))
        else:
            self.say(_("Closed."))
        return HttpResponseRedirect(reverse("panel:approval", args=[approval]))

    def after(self, **kwargs: Any) -> HttpResponse:
        return HttpResponseRedirect(reverse("panel:approval-recover", args=[kwargs["approval"]]))


def _elsewhere(page: Page) -> Counter[str]:
    visitor = page.visitor
    return queries.waiting_elsewhere(deciding_in(visitor), visitor.principal.subject)


def _rows(page: Page, items: list[Seen]) -> list[Row]:
    plans = queries.plans_of(items)
    requests = [seen.request for seen in items]
    tallies = voting.tallies(page.project.pk, requests)
    me = page.visitor.principal.subject.id
    people = names(who for row in requests for who in (row.requested_by_id, row.decided_by_id))
    return [
        Row(
            seen,
            plans.get(seen.request.pk),
            people.get(seen.request.requested_by_id, seen.request.requested_by_id),
            people.get(seen.request.decided_by_id or "", ""),
            tallies[seen.request.pk],
            tallies[seen.request.pk].of(me) is not None,
        )
        for seen in items
    ]


def _number(text: str | None) -> int:
    if not (text and text.isascii() and text.isdigit() and len(text) < 11):
        raise InvalidInput(_("The form is not complete; reload the page."))
    return int(text)
