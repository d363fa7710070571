"""Reading tasks and their revisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import BooleanField, Count, Q, QuerySet
from django.db.models.expressions import RawSQL

from apps.core import db, ids, pages
from apps.core.errors import NotFound
from apps.projects.queries import attach
from apps.tasks import revisions
from apps.tasks.documents import RevisionView, TaskView
from apps.tasks.errors import RevisionCorrupt
from apps.tasks.models import Task, TaskExecutionRevision, TaskSecret
from apps.tasks.revisions import Revision
from apps.vault import recipes

NEWEST = (pages.moment("created_at", descending=True), pages.identifier(descending=True))


@dataclass(frozen=True)
class Filters:
    """What a list of tasks may be limited to. `search` looks into name and short name."""

    search: str | None = None
    label: str | None = None
    enabled: bool | None = None
    archived: bool = False

    def scope(self, project_id: str) -> dict[str, Any]:
        """What a cursor of the list is bound to."""
        return {
            "project": project_id,
            "search": self.search,
            "label": self.label,
            "enabled": self.enabled,
            "archived": self.archived,
        }


def made_by(project_id: str, key: str) -> Task | None:
    """The task that was made with the creation key, archived or not."""
    return Task.objects.filter(project_id=project_id, creation_key=key).first()


def find(project_id: str, reference: str) -> Task:
    """The task with that id, archived or not, or with that short name, not archived; raises NotFound."""
    task_id = ids.parse_uuid(reference)
    wanted = Q(pk=task_id) if task_id else Q(slug=reference, archived_at=None)
    if not ids.is_text_id(reference, 64):
        raise NotFound
    task = Task.objects.select_related("project").filter(wanted, project_id=project_id).first()
    if task is None:
        raise NotFound
    return task


def page(
    project_id: str, filters: Filters, *, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None
) -> pages.Page[Task]:
    """Tasks of a project, newest first; revisions come along."""
    rows = filtered(Task.objects.filter(project_id=project_id), filters).select_related("revision")
    scope = filters.scope(project_id)
    found = pages.paginate(rows, NEWEST, kind="tasks", scope=scope, limit=limit, cursor=cursor)
    attach(project_id, found.items)
    return found


def filtered(rows: QuerySet[Task], filters: Filters) -> QuerySet[Task]:
    """The rows that pass the filters."""
    rows = rows.filter(archived_at__isnull=not filters.archived)
    if filters.enabled is not None:
        rows = rows.filter(enabled=filters.enabled)
    if filters.search:
        rows = rows.filter(Q(name__icontains=filters.search) | Q(slug__icontains=filters.search))
    return with_label(rows, filters.label) if filters.label else rows


def with_label(rows: QuerySet[Task], label: str) -> QuerySet[Task]:
    """The rows that carry a label."""
    if db.is_postgresql():
        return rows.filter(labels__contains=[label])
    # JSON containment is what Django's SQLite backend lacks; the values are parameters.
    sql = "EXISTS (SELECT 1 FROM json_each(tasks.labels) WHERE json_each.value = %s)"
    return rows.filter(RawSQL(sql, [label], output_field=BooleanField()))  # noqa: S611


def view(task: Task) -> TaskView:
    """The task with what it executes; raises RevisionCorrupt or RecipeCorrupt."""
    return views([task])[0]


def views(tasks: Sequence[Task]) -> list[TaskView]:
    """As `view`, for many, with one query for all environments."""
    found = [(task, revisions.read(task.revision)) for task in tasks]
    environments = _environments([revision for _task, revision in found])
    return [TaskView(task, revision, environments[revision.context_ref]) for task, revision in found]


def revision(task: Task, task_revision: str) -> RevisionView:
    """One revision of a task; raises NotFound or RevisionCorrupt."""
    if not ids.is_text_id(task_revision, revisions.MAX_ID):
        raise NotFound
    found = revisions.resolve(task.project_id, str(task.pk), task_revision)
    if found is None:
        raise NotFound
    return RevisionView(task, found, _environments([found])[found.context_ref])


def revision_page(
    task: Task, *, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None
) -> pages.Page[RevisionView]:
    """Revisions of a task, newest first."""
    rows = TaskExecutionRevision.objects.filter(project_id=task.project_id, task_id=str(task.pk))
    scope = {"project": task.project_id, "task": str(task.pk)}
    found = pages.paginate(rows, NEWEST, kind="task_revisions", scope=scope, limit=limit, cursor=cursor)
    verified = [revisions.read(row) for row in found.items]
    environments = _environments(verified)
    return pages.Page(
        [RevisionView(task, item, environments[item.context_ref]) for item in verified], found.next_cursor
    )


def secret_users(project_id: str, names: Collection[str]) -> dict[str, int]:
    """How many tasks that are not archived name each of the secrets; one query."""
    rows = TaskSecret.objects.filter(
        project_id=project_id, secret_name__in=list(names), task__archived_at=None
    ).order_by()
    return dict(rows.values_list("secret_name").annotate(Count("task")))


def users_of_secret(project_id: str, name: str, limit: int = pages.DEFAULT_LIMIT) -> list[Task]:
    """The tasks that are not archived and name a secret, by name, the first of them."""
    using = TaskSecret.objects.filter(project_id=project_id, secret_name=name).values("task_id")
    rows = Task.objects.filter(pk__in=using, archived_at=None)
    return list(rows.select_related("project").order_by("name", "pk")[:limit])


def slugs_like(project_id: str, base: str) -> set[str]:
    """Short names in use that begin with `base`."""
    rows = Task.objects.filter(project_id=project_id, archived_at=None, slug__startswith=base)
    return set(rows.values_list("slug", flat=True))


def _environments(found: Sequence[Revision]) -> Mapping[str, Mapping[str, str]]:
    known = recipes.resolve_many({item.context_ref for item in found})
    if not all(item.context_ref in known for item in found):
        raise RevisionCorrupt(reason="recipe missing")
    return {
        reference: {
            binding.name: binding.value for binding in recipe.bindings if isinstance(binding, recipes.Public)
        }
        for reference, recipe in known.items()
    }
