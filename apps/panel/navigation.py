"""The entries of the frame: what a visitor can reach, by what they may read."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Entry:
    key: str
    icon: str
    title: str | Promise
    url: str
    in_tabbar: bool = False


@dataclass(frozen=True)
class Group:
    title: str | Promise
    entries: list[Entry]


def tabbar(project: Project | None) -> list[Entry]:
    """What a thumb reaches first."""
    entries = [_first("dashboard", pgettext_lazy("navigation", "Dashboard"), reverse("panel:index"))]
    if project is not None:
        tasks, runs = (reverse(f"panel:{name}", args=[project.slug]) for name in ("tasks", "runs"))
        entries.append(_first("tasks", pgettext_lazy("navigation", "Tasks"), tasks))
        entries.append(_first("runs", pgettext_lazy("navigation", "Runs"), runs))
    return entries


def _first(key: str, title: Promise, url: str) -> Entry:
    return Entry(key, key, title, url, in_tabbar=True)


def groups(visitor: Visitor, project: Project | None) -> list[Group]:
    """The side bar, top to bottom."""
    found = [Group("", tabbar(project))]
    more: list[Entry] = []
    if project is not None:
        more.append(Entry("skips", "skips", _("Did not run"), reverse("panel:skips", args=[project.slug])))
        if visitor.may(project, "policy.manage"):
            more.append(Entry("audit", "audit", _("Audit log"), reverse("panel:audit", args=[project.slug])))
    found[0].entries.extend(more)
    instance = [Entry("projects", "project", _("Projects and roles"), reverse("panel:projects"))]
    if visitor.account.is_superuser:
        instance.append(Entry("people", "person", _("People"), reverse("panel:people")))
        instance.append(Entry("workers", "workers", _("Workers"), reverse("panel:workers")))
    found.append(Group(_("Instance"), instance))
    return found
