"""Refusals about tasks and their revisions."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from apps.core.errors import Conflict, Corrupt, Forbidden


class SlugTaken(Conflict):
    code = "slug_taken"
    message = _("Another task of this project has this short name.")


class TaskArchived(Conflict):
    code = "task_archived"
    message = _("The task is archived and can only be read.")


class MarkKept(Forbidden):
    code = "requires_approval_kept"
    message = _("Only who may manage rights lets a task be started without an approval again.")


class RevisionConflict(Conflict):
    """A revision is immutable; `project_id`, `task_id` and `task_revision` name the one that would change."""

    code = "revision_immutable_conflict"


class RevisionCorrupt(Corrupt):
    """The stored revision breaks its own rules and must never be executed; `reason` is a short word."""

    code = "revision_corrupt"
    message = _("What this task executes is damaged in the database.")
