"""Every write of triggers, and of what stops tasks from starting; one function per use case."""

from apps.triggers.services.boots import arm_boot
from apps.triggers.services.changes import Made, change_trigger, create_trigger, delete_trigger, renew_secret
from apps.triggers.services.firing import fire_due
from apps.triggers.services.hooks import receive
from apps.triggers.services.switches import (
    archive_project,
    archive_task,
    change_task,
    empty_queue,
    restore_project,
    set_task_enabled,
)

__all__ = [
    "Made", "archive_project", "archive_task", "arm_boot", "change_task", "change_trigger", "create_trigger",
    "delete_trigger", "empty_queue", "fire_due", "receive", "renew_secret", "restore_project", "set_task_enabled",
]  # fmt: skip
