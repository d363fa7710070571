"""Addresses of the pages about tasks: the list, a task and its tabs, its triggers, what did not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.urls import URLPattern, URLResolver, path

from apps.panel.views import (
    examples,
    retention,
    run_with,
    task,
    task_bulk,
    task_edit,
    task_triggers,
    tasks,
    why,
)


def _list(route: str, view: Callable[..., Any], name: str) -> URLPattern:
    return path(f"p/<str:p>/{route}", view, name=name)


def _task(route: str, view: Callable[..., Any], name: str) -> URLPattern:
    return path(f"p/<str:p>/task/<str:t>/{route}", view, name=name)


pages: list[URLPattern | URLResolver] = [
    _list("tasks/", tasks.TaskList.as_view(), "tasks"),
    _list("tasks/new/", task_edit.NewTask.as_view(), "task-new"),
    _list("tasks/bulk/", task_bulk.Bulk.as_view(), "tasks-bulk"),
    _list("tasks/batch/<uuid:batch>/", task_bulk.ShowBatch.as_view(), "batch"),
    _list("tasks/views/", task_bulk.SaveView.as_view(), "view-save"),
    _list("tasks/views/<uuid:view>/move/<slug:way>/", task_bulk.MoveView.as_view(), "view-move"),
    _list("tasks/views/<uuid:view>/remove/", task_bulk.RemoveView.as_view(), "view-remove"),
    _list("tasks/examples/", examples.AddExamples.as_view(), "examples"),
    _list("tasks/examples/remove/", examples.RemoveExamples.as_view(), "examples-remove"),
    _list("schedule/", task_triggers.SchedulePreview.as_view(), "schedule-preview"),
    _list("skips/", why.WhyOfProject.as_view(), "skips"),
    _task("", task.TaskRuns.as_view(), "task"),
    _task("script/", task.TaskScript.as_view(), "task-script"),
    _task("settings/", task.TaskSettings.as_view(), "task-settings"),
    _task("retention/", retention.Retention.as_view(), "task-retention"),
    _task("why/", why.WhyOfTask.as_view(), "task-why"),
    _task("revisions/", task.TaskRevisions.as_view(), "task-revisions"),
    _task("revisions/compare/", task.CompareRevisions.as_view(), "task-compare"),
    _task("revisions/<str:revision>/", task.TaskRevision.as_view(), "task-revision"),
    _task("revisions/<str:revision>/use/", task.UseRevision.as_view(), "task-revision-use"),
    _task("triggers/", task_triggers.TriggerList.as_view(), "task-triggers"),
    _task("triggers/new/", task_triggers.NewTrigger.as_view(), "trigger-new"),
    _task("triggers/<str:trigger>/", task_triggers.EditTrigger.as_view(), "trigger"),
    _task(
        "triggers/<str:trigger>/enable/", task_triggers.SwitchTrigger.as_view(enabled=True), "trigger-enable"
    ),
    _task(
        "triggers/<str:trigger>/disable/",
        task_triggers.SwitchTrigger.as_view(enabled=False),
        "trigger-disable",
    ),
    _task("triggers/<str:trigger>/delete/", task_triggers.DeleteTrigger.as_view(), "trigger-delete"),
    _task("triggers/<str:trigger>/secret/", task_triggers.RenewSecret.as_view(), "trigger-secret"),
    _task("edit/", task_edit.EditTask.as_view(), "task-edit"),
    _task("run/", tasks.RunTask.as_view(), "task-run"),
    _task("run-with/", run_with.RunWith.as_view(), "task-run-with"),
    _task("enable/", tasks.SetEnabled.as_view(enabled=True), "task-enable"),
    _task("disable/", tasks.SetEnabled.as_view(enabled=False), "task-disable"),
    _task("approval/require/", tasks.MarkTask.as_view(), "task-approval-mark"),
    _task("approval/clear/", tasks.ClearMark.as_view(), "task-approval-clear"),
    _task("pin/", tasks.SetPinned.as_view(pinned=True), "task-pin"),
    _task("unpin/", tasks.SetPinned.as_view(pinned=False), "task-unpin"),
    _task("empty-queue/", tasks.EmptyQueue.as_view(), "task-empty-queue"),
    _task("copy/", tasks.CopyTask.as_view(), "task-copy"),
    _task("archive/", tasks.ArchiveTask.as_view(), "task-archive"),
]
