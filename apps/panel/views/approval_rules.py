"""How a project decides about what needs an approval: who decides, how many, who may start alone, when to remind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from apps.core import ids
from apps.core.errors import DomainError, InvalidInput, VersionConflict
from apps.panel import queries, words
from apps.panel.page import Page
from apps.projects import approval_policy, permissions
from apps.projects.approval_policy import ApprovalPolicy
from apps.projects.models import BREAK_GLASS, EXEMPT, MAX_DECIDERS, MAX_QUORUM, ProjectRoleBinding
from apps.projects.queries import current_bindings
from apps.projects.services import change_approval_policy
from apps.projects.services.approval_policies import PERMISSION

TITLE = gettext_lazy("Rules for approvals")
BECAUSE = gettext_lazy(
    "This changes who can let risky tasks run. It is saved as soon as you have shown that it is you; nothing has "
    "changed yet."
)
# Fields of roles, which of them can be chosen, and how a page begins to tell of them.
ROLES: dict[str, tuple[Any, ...]] = {
    "decider_roles": EXEMPT,
    "exempt_roles": EXEMPT,
    "break_glass_roles": BREAK_GLASS,
}
LABELS: dict[str, Promise] = {
    "quorum": gettext_lazy("How many must approve"),
    "decider_roles": gettext_lazy("Who decides"),
    "decider_people": gettext_lazy("Who decides, by name"),
    "exempt_roles": gettext_lazy("Who starts alone"),
    "break_glass_roles": gettext_lazy("Who may break the glass"),
    "remind_before_minutes": gettext_lazy("Remind so many minutes before the end"),
}


@dataclass(frozen=True)
class Choice:
    """A box of the form."""

    value: str
    word: str | Promise
    chosen: bool
    help: str | Promise = ""


@dataclass
class Typed:
    """What the form shows: texts as they were typed or as they are stored."""

    quorum: str
    remind_before_minutes: str
    chosen: dict[str, list[str]]

    @classmethod
    def of(cls, policy: ApprovalPolicy) -> Typed:
        """A stored policy."""
        chosen = {name: list(getattr(policy, name)) for name in (*ROLES, "decider_people")}
        return cls(str(policy.quorum), str(policy.remind_before_minutes), chosen)

    @classmethod
    def sent(cls, request: HttpRequest) -> Typed:
        """What came from the browser."""
        post = request.POST
        chosen = {name: post.getlist(name) for name in (*ROLES, "decider_people")}
        return cls(post.get("quorum", "").strip(), post.get("remind_before_minutes", "").strip(), chosen)

    def changes(self) -> dict[str, Any]:
        """The fields of the service; raises InvalidInput for what is no number."""
        wrong: dict[str, list[str | Promise]] = {}
        found: dict[str, Any] = dict(self.chosen)
        for name in ("quorum", "remind_before_minutes"):
            text = getattr(self, name)
            if text.isascii() and text.isdigit() and len(text) < 6:
                found[name] = int(text)
            else:
                wrong[name] = [_("A whole number is expected.")]
        if wrong:
            raise InvalidInput(fields=wrong)
        return found


class ApprovalRules(Page):
    """The rules, for everybody in the project; changed by who manages rights, with a fresh sign-in."""

    permissions = {"GET": "project.read", "POST": PERMISSION}
    template = "panel/approval_rules.html"
    section = "approvals"
    title = TITLE
    fresh = True
    fresh_because = BECAUSE

    def get(self, request: HttpRequest, p: str) -> HttpResponse:
        return self.form_page(approval_policy.of(self.project.pk))

    def post(self, request: HttpRequest, p: str) -> HttpResponse:
        typed = Typed.sent(request)
        try:
            done = change_approval_policy(self.grant, _version(request), typed.changes())
        except VersionConflict as refusal:
            return self.form_page(self.stored(), refusal.status, typed=typed, stale=True)
        except DomainError as refusal:
            if not 400 <= refusal.status < 500 or refusal.status == 403:
                raise
            return self.form_page(self.stored(), refusal.status, typed=typed, errors=_errors(refusal))
        self.say(_("Saved. It holds from now on, for open requests too."))
        if done.tight:
            self.warn(_tight(done.deciders, done.policy.quorum))
        return HttpResponseRedirect(reverse("panel:approval-rules", args=[p]))

    def stored(self) -> ApprovalPolicy:
        """What holds now."""
        return approval_policy.of(self.project.pk)

    def form_page(
        self, policy: ApprovalPolicy, status: int = 200, *, typed: Typed | None = None, **context: Any
    ) -> HttpResponse:
        """The form with what was typed or what holds; six queries however many people there are."""
        shown = typed or Typed.of(policy)
        people = self.people(policy, shown)
        deciders = approval_policy.possible_deciders(policy)
        changed_by = queries.names([policy.changed_by[1]]) if policy.changed_by else {}
        roles = {name: _choices(name, known, shown.chosen[name]) for name, known in ROLES.items()}
        return self.show(
            status,
            policy=policy,
            typed=shown,
            roles=roles,
            people=people,
            chosen_people=sum(one.chosen for one in people),
            quorums=[str(number) for number in range(1, MAX_QUORUM + 1)],
            deciders=len(deciders),
            short="" if len(deciders) - 1 >= policy.quorum else _tight(len(deciders), policy.quorum),
            changed_by=changed_by.get(policy.changed_by[1], "") if policy.changed_by else "",
            labels=LABELS,
            may_change=self.may(PERMISSION) and self.project.status != "archived",
            **context,
        )

    def people(self, policy: ApprovalPolicy, shown: Typed) -> list[Choice]:
        """Who could be named: people whose role can decide, and who is named already; two queries."""
        rows = current_bindings().filter(
            project=self.project.pk,
            subject_type="user",
            state=ProjectRoleBinding.State.ACTIVE,
            role__in=permissions.find(approval_policy.DECIDE).roles,
        )
        able = dict(rows.order_by("subject_id").values_list("subject_id", "role")[:MAX_DECIDERS])
        typed = [one for one in shown.chosen["decider_people"] if ids.is_text_id(one, 255)][:MAX_DECIDERS]
        named = [one for one in (*policy.decider_people, *typed) if one not in able]
        names = queries.names([*able, *named])
        found = [
            Choice(pk, names.get(pk, pk), pk in shown.chosen["decider_people"], words.ROLES[str(role)])
            for pk, role in able.items()
        ]
        gone = gettext_lazy("no longer has a role that can decide")
        found += [
            Choice(pk, names[pk], pk in shown.chosen["decider_people"], gone)
            for pk in dict.fromkeys(named)
            if pk in names
        ]
        return sorted(found, key=lambda one: str(one.word).casefold())


def _choices(name: str, known: tuple[Any, ...], chosen: list[str]) -> list[Choice]:
    return [Choice(str(role), words.ROLES[str(role)], str(role) in chosen) for role in known]


def _errors(refusal: DomainError) -> dict[str, Any]:
    """The sentences of a refusal by field."""
    fields = getattr(refusal, "fields", None)
    if fields:
        return dict(fields)
    extra = refusal.extra
    if "possible_deciders" in extra:
        few = int(extra["possible_deciders"])
        who = ngettext("%(n)d person could decide", "%(n)d people could decide", few) % {"n": few}
        said = _("%(who)s, and %(quorum)d would have to approve: nothing could be approved any more.")
        return {"quorum": [said % {"who": who, "quorum": extra["quorum"]}]}
    return {"form": [refusal.detail]}


def _tight(deciders: int, quorum: int) -> str:
    who = ngettext("%(n)d person can decide", "%(n)d people can decide", deciders) % {"n": deciders}
    said = _(
        "%(who)s here: what one of them asks for cannot be approved, for nobody decides about their own."
    )
    if quorum > 1:
        said = _(
            "%(who)s here, and %(quorum)d must approve: what one of them asks for cannot be approved, for nobody "
            "decides about their own."
        )
    return said % {"who": who, "quorum": quorum}


def _version(request: HttpRequest) -> int:
    text = request.POST.get("version", "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidInput(_("The form is not complete; reload the page."))
    return int(text)
