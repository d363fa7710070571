"""Reading secrets: everything about them but their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import OuterRef, QuerySet, Subquery

from apps.core import pages
from apps.core.errors import NotFound
from apps.vault.models import Secret, SecretEnvelope


def page(project_id: str, *, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None) -> pages.Page[Any]:
    """Secrets of a project by name, each with `current` and `changed_at`; one query."""
    return pages.paginate(
        _rows(project_id),
        [pages.Key("name")],
        kind="secrets",
        scope={"project": project_id},
        limit=limit,
        cursor=cursor,
    )


def find(project_id: str, name: str) -> Any:
    """One secret as in `page`; raises NotFound."""
    found = _rows(project_id).filter(name=name).first()
    if found is None:
        raise NotFound
    return found


def names(project_id: str, limit: int = 1_000) -> list[str]:
    """Names that new references may hold, for choosing from."""
    rows = Secret.objects.filter(project_id=project_id, disabled_at=None).order_by("name")
    return list(rows.values_list("name", flat=True)[:limit])


def unknown(project_id: str, wanted: Iterable[str]) -> list[str]:
    """Those of the names that no secret of the project has."""
    found = set(wanted)
    rows = Secret.objects.filter(project_id=project_id, name__in=found)
    return sorted(found - set(rows.values_list("name", flat=True)))


def _rows(project_id: str) -> QuerySet[Any]:
    newest = SecretEnvelope.objects.filter(
        project_id=OuterRef("project_id"), secret_name=OuterRef("name")
    ).order_by("-version")
    return Secret.objects.filter(project_id=project_id).annotate(
        current=Subquery(newest.values("version")[:1]),
        changed_at=Subquery(newest.values("created_at")[:1]),
    )
