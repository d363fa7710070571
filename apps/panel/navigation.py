"""The entries of the frame: what a visitor can reach, by what they may read."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from apps.panel.visitors import Visitor
from apps.projects.models import Project

THEMES: tuple[tuple[str, Promise], ...] = (
    ("auto", pgettext_lazy("theme", "Like the system")),
    ("light", pgettext_lazy("theme", "Light")),
    ("dark", pgettext_lazy("theme", "Dark")),
)


LETTERS = {"dashboard": "d", "tasks": "t", "runs": "r", "approvals": "a", "secrets": "s"}


@dataclass(frozen=True)
class Entry:
    """One place to go; `badge` is the text of its number, `counts` says what the number means."""

    key: str
    icon: str
    title: str | Promise
    url: str
    in_tabbar: bool = False
    badge: str = ""
    counts: str | Promise = ""

    @property
    def letter(self) -> str:
        """What follows `g` to go there."""
        return LETTERS.get(self.key, "")


@dataclass(frozen=True)
class Group:
    title: str | Promise
    entries: list[Entry]


def number(count: int) -> str:
    """A badge: nothing for none, `9+` from ten on."""
    return "" if count == 0 else str(count) if count < 10 else "9+"


def tabbar(project: Project | None, running: int, waiting: int | None = None) -> list[Entry]:
    """What a thumb reaches first; `waiting` requests for approval, None where nobody can ask for any."""
    entries = [_first("dashboard", pgettext_lazy("navigation", "Dashboard"), reverse("panel:index"))]
    if project is not None:
        tasks, runs = (reverse(f"panel:{name}", args=[project.slug]) for name in ("tasks", "runs"))
        entries.append(_first("tasks", pgettext_lazy("navigation", "Tasks"), tasks))
        title = pgettext_lazy("navigation", "Runs")
        entries.append(
            Entry("runs", "runs", title, runs, True, number(running), pgettext_lazy("badge", "running now:"))
        )
        if waiting is not None:
            inbox = reverse("panel:approvals", args=[project.slug])
            title, counts = (
                pgettext_lazy("navigation", "Approvals"),
                pgettext_lazy("badge", "waiting for you:"),
            )
            entries.append(Entry("approvals", "approve", title, inbox, True, number(waiting), counts))
    return entries


def _first(key: str, title: Promise, url: str) -> Entry:
    return Entry(key, key, title, url, in_tabbar=True)


def groups(
    visitor: Visitor, project: Project | None, running: int, waiting: int | None = None, *, team: bool
) -> list[Group]:
    """The side bar, top to bottom; `team` = more than one person or project is here."""
    first = tabbar(project, running, waiting)
    shared: list[Entry] = []
    if project is not None:
        p = [project.slug]
        first.append(Entry("skips", "skips", _("Why not run?"), reverse("panel:skips", args=p)))
        if team:
            shared.append(Entry("roles", "team", _("People and roles"), reverse("panel:project", args=p)))
        if visitor.may(project, "secret.manage"):
            first.append(
                Entry(
                    "secrets",
                    "secret",
                    pgettext_lazy("navigation", "Secrets"),
                    reverse("panel:secrets", args=p),
                )
            )
        if visitor.may(project, "project.manage"):
            first.append(Entry("retention", "archive", _("Retention"), reverse("panel:retention", args=p)))
        if visitor.may(project, "policy.manage"):
            shared.append(Entry("audit", "audit", _("Audit log"), reverse("panel:audit", args=p)))
    instance: list[Entry] = []
    if team or visitor.account.is_superuser:
        instance.append(Entry("projects", "project", _("Projects"), reverse("panel:projects")))
    if visitor.account.is_superuser:
        instance.append(Entry("people", "person", _("People"), reverse("panel:people")))
        applications = reverse("panel:applications")
        instance.append(Entry("applications", "bolt", _("Applications"), applications))
        instance.append(Entry("workers", "workers", _("Workers"), reverse("panel:workers")))
        log = reverse("panel:instance-audit")
        instance.append(Entry("instance-audit", "audit", pgettext_lazy("instance", "Audit log"), log))
        if settings.SINGLE_SIGN_ON.providers:
            doctor = Entry("login-doctor", "info", _("Sign-in doctor"), reverse("panel:login-doctor"))
            instance.append(doctor)
    return [Group("", first), Group(_("Team"), shared), Group(_("Instance"), instance)]
