"""One person of this installation: may they come in, how, and what ends when they may not."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from apps.access import queries
from apps.access.factors import factors_of
from apps.access.models import User
from apps.access.services import change_person, end_sessions
from apps.core.errors import InvalidInput, NotFound
from apps.identity.principals import PolicySubject
from apps.panel.form_values import version
from apps.panel.page import ADMINISTRATOR, ORIGIN, Action, Page
from apps.panel.queries import left_behind
from apps.projects.queries import owned_alone, roles_of

_CHANGES: dict[str, dict[str, Any]] = {
    "disable": {"status": "disabled"},
    "enable": {"status": "active"},
    "administrator": {"administrator": True},
    "person": {"administrator": False},
}


def find(subject_id: str) -> User:
    """The person of an address; raises NotFound."""
    user = queries.find_person(subject_id)
    if user is None:
        raise NotFound
    return user


class ShowPerson(Page):
    permissions = {"GET": ADMINISTRATOR}
    template = "panel/person.html"
    section = "people"

    def get(self, request: HttpRequest, subject: str) -> HttpResponse:
        user = find(subject)
        return self.show(
            title=user.username,
            person=user,
            factors=factors_of(user),
            sessions=queries.sessions_of(subject),
            tokens=queries.count_tokens(subject),
            ways=queries.ways_of(subject),
            roles=roles_of(PolicySubject("user", subject)),
            alone=owned_alone(PolicySubject("user", subject)) if user.subject.status == "active" else [],
            left=left_behind(self.visitor.projects, subject),
            own=subject == self.visitor.principal.subject.id,
        )


class ChangePerson(Action):
    """Enables, disables, makes administrator or not any more."""

    permissions = {"POST": ADMINISTRATOR}
    fresh = True

    def act(self, subject: str) -> HttpResponse:
        post = self.request.POST
        change = post.get("change", "")
        wanted = _CHANGES.get(change)
        if wanted is None:
            raise InvalidInput
        user = change_person(
            subject,
            version(self.request),
            **wanted,
            leave_ownerless=post.get("leave_ownerless") == "1",
            actor=self.visitor.principal.subject,
            origin=ORIGIN,
        )
        said = {
            "disable": _("Disabled: %(name)s can do nothing here any more, from now on."),
            "enable": _("Enabled: %(name)s can sign in again."),
            "administrator": _("%(name)s is an instance administrator now."),
            "person": _("%(name)s is no instance administrator any more."),
        }[change]
        self.say(said % {"name": user.username})
        return self.after(subject=subject)

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:person", kwargs["subject"])


class EndSessions(Action):
    permissions = {"POST": ADMINISTRATOR}

    def act(self, subject: str) -> HttpResponse:
        find(subject)
        end_sessions(subject, actor=self.visitor.principal.subject, origin=ORIGIN)
        self.say(_("All sessions of this person have ended."))
        return self.after(subject=subject)

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:person", kwargs["subject"])
