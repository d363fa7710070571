"""Whether the script of a task can run here at all, said before it fails."""

from __future__ import annotations

from django.conf import settings
from django.utils.translation import gettext as _

from apps.core import clock
from apps.dispatch import interpreters
from apps.dispatch.models import Worker
from apps.panel.task_form import LANGUAGES
from apps.tasks.documents import TaskView


def missing(view: TaskView) -> str:
    """The sentence about a runner that is not on this node; empty where it is, or where other nodes may have it."""
    language = str(getattr(view.revision.execution.body, "language", ""))
    names = interpreters.missing(language, settings.SCRIPT_PATH) if language else []
    if not names:
        return ""
    living = Worker.objects.exclude(status="offline").filter(lease_expires_at__gt=clock.now())
    if len(set(living.values_list("node_id", flat=True)[:64])) > 1:
        return ""
    return _("Runs will fail here: scripts in %(language)s need one of %(names)s on QINGLONG_PATH.") % {
        "language": dict(LANGUAGES).get(language, language),
        "names": ", ".join(names),
    }
