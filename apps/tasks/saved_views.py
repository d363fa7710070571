"""A person's saved views of a project's tasks.

They are settings of one's own eyes, like the theme: they need no more than `task.read` and are not audited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import IntegrityError
from django.utils.translation import gettext_lazy as _

from apps.core import db, ids
from apps.core.db import write_transaction
from apps.core.errors import Conflict, InvalidInput, NotFound
from apps.projects import policy
from apps.projects.policy import Grant
from apps.tasks.models import SavedView

MAX_VIEWS = 30
MAX_NAME = 64
MAX_SEARCH = 200
COLUMNS = ("state", "last", "history", "next")


class ViewNameTaken(Conflict):
    code = "view_name_taken"
    message = _("You have a view of this name already.")


@dataclass(frozen=True, kw_only=True)
class ViewDraft:
    """What a view holds; `hidden` names of COLUMNS, `order` one of SavedView.Order."""

    name: str
    search: str = ""
    order: str = SavedView.Order.USUAL
    compact: bool = False
    hidden: Sequence[str] = ()

    def cleaned(self) -> dict[str, object]:
        """The stored values; raises InvalidInput."""
        name = self.name.strip()
        if not ids.is_text_id(name, MAX_NAME):
            raise InvalidInput.field("name", _("1 to 64 characters."))
        if len(self.search) > MAX_SEARCH or "\0" in self.search or not ids.is_utf8(self.search):
            raise InvalidInput.field("search", _("At most 200 characters."))
        if self.order not in SavedView.Order.values:
            raise InvalidInput.field("order", _("Not an order of this list."))
        return {
            "name": name,
            "search": self.search.strip(),
            "order": self.order,
            "compact": self.compact,
            "hidden": [column for column in COLUMNS if column in self.hidden],
        }


def of_person(project_id: str, subject_id: str) -> list[SavedView]:
    """The views of a person in a project, in their order; one query."""
    rows = SavedView.objects.filter(project_id=project_id, subject_id=subject_id)
    return sorted(rows[:MAX_VIEWS], key=lambda view: (view.position, view.pk))


@write_transaction
def save_view(grant: Grant, draft: ViewDraft, view_id: UUID | None = None) -> SavedView:
    """Keeps a view of the grant's person, a new one at the end; needs `task.read`.

    Raises InvalidInput, NotFound for a view that is not theirs, and ViewNameTaken.
    """
    policy.confirm(grant, "task.read")
    values = draft.cleaned()
    own = SavedView.objects.filter(project_id=grant.project_id, subject_id=grant.actor.id)
    if view_id is None:
        positions = list(own.values_list("position", flat=True))
        if len(positions) >= MAX_VIEWS:
            raise InvalidInput.field("name", _("30 views are the most; remove one first."))
        view = SavedView(
            project_id=grant.project_id,
            subject_id=grant.actor.id,
            position=max(positions, default=0) + 1,
            **values,
        )
    else:
        view = own.filter(pk=view_id).first() or _none()
        for name, value in values.items():
            setattr(view, name, value)
    try:
        with db.savepoint():
            view.save()
    except IntegrityError as error:
        if not db.is_unique_violation(error):
            raise
        raise ViewNameTaken from None
    return view


@write_transaction
def remove_view(grant: Grant, view_id: UUID) -> str:
    """Removes a view of the grant's person and returns its name; raises NotFound."""
    policy.confirm(grant, "task.read")
    rows = SavedView.objects.filter(pk=view_id, project_id=grant.project_id, subject_id=grant.actor.id)
    view = rows.first() or _none()
    rows.delete()
    return view.name


@write_transaction
def move_view(grant: Grant, view_id: UUID, by: int) -> SavedView:
    """Moves a view of the grant's person by so many places, at most to an end; raises NotFound."""
    policy.confirm(grant, "task.read")
    views = of_person(grant.project_id, grant.actor.id)
    view = next((found for found in views if found.pk == view_id), None) or _none()
    place = max(0, min(views.index(view) + by, len(views) - 1))
    views.remove(view)
    views.insert(place, view)
    for position, each in enumerate(views, 1):
        if each.position != position:
            SavedView.objects.filter(pk=each.pk).update(position=position)
    return view


def _none() -> SavedView:
    raise NotFound
