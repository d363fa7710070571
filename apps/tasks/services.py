"""Making, changing and copying tasks; each is one transaction with its audit entry (api.md, "Task").

Enabling, disabling and archiving cancel queued runs and belong to triggers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from django.db import IntegrityError
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.audit import services as audit
from apps.core import cas, clock, db, ids, participants
from apps.core.db import write_transaction
from apps.core.errors import Forbidden, InvalidInput, NotFound, VersionConflict
from apps.projects import policy
from apps.projects.policy import Grant
from apps.tasks import queries, revisions, secrets, slugs, validation
from apps.tasks.documents import TaskView
from apps.tasks.errors import MarkKept, SlugTaken, TaskArchived
from apps.tasks.execution import LOCAL_PROCESS, Execution
from apps.tasks.models import Task, TaskSecret
from apps.tasks.revisions import Revision
from apps.tasks.secrets import SecretUses
from apps.vault import recipes, resolving
from apps.vault.errors import SecretDisabled

# Noted with the task's id after every change, for whoever keeps something that follows from it.
CHANGED = "task.changed"
READ_ONLY = (
    "id", "project", "enabled", "archived_at", "executor", "revision", "version", "created_at", "updated_at",
)  # fmt: skip
_COLUMNS = (
    "name", "description", "pinned", "labels", "priority", "concurrency", "max_parallel", "retry", "requires_approval",
)  # fmt: skip
_EXECUTION = (
    "work_dir", "timeout_ms", "kill_grace_ms", "log_quota_bytes", "before", "after", "requires", "limits",
    "secrets",
)  # fmt: skip
_SLUG_TRIES = 5


@dataclass(frozen=True, kw_only=True)
class TaskDraft:
    """A task that does not exist yet, in the fields of api.md; None is the default of a field."""

    name: str
    slug: str | None = None
    description: str | None = None
    enabled: bool | None = None
    command: Sequence[str] | None = field(default=None, repr=False)
    shell: str | None = field(default=None, repr=False)
    script: Mapping[str, Any] | None = field(default=None, repr=False)
    work_dir: str | None = None
    env: Mapping[str, str] | None = field(default=None, repr=False)
    secrets: Mapping[str, Any] | None = field(default=None, repr=False)
    before: str | None = field(default=None, repr=False)
    after: str | None = field(default=None, repr=False)
    timeout_ms: int | None = None
    kill_grace_ms: int | None = None
    log_quota_bytes: int | None = None
    concurrency: str | None = None
    max_parallel: int | None = None
    priority: int | None = None
    retry: Mapping[str, Any] | None = None
    labels: Sequence[str] | None = None
    requires: Mapping[str, Any] | None = None
    limits: Mapping[str, Any] | None = None
    pinned: bool | None = None
    requires_approval: bool | None = None

    @classmethod
    def from_json(cls, data: Any) -> TaskDraft:
        """The draft of an API call; raises InvalidInput for no object, unknown fields and a missing name."""
        if not isinstance(data, Mapping):
            raise InvalidInput(gettext_lazy("An object is expected."))
        known = {item.name for item in fields(cls)}
        unknown = [validation.printable(name) for name in data if name not in known]
        wrong: dict[str, list[str | Promise]] = {
            name: [gettext_lazy("There is no such field.")] for name in unknown
        }
        if "name" not in data:
            wrong["name"] = [gettext_lazy("This field is required.")]
        if wrong:
            raise InvalidInput(fields=wrong)
        return cls(**data)

    def cleaned(self) -> dict[str, Any]:
        """All fields checked; raises InvalidInput."""
        values = validation.clean({item.name: getattr(self, item.name) for item in fields(self)})
        if validation.body_of(values) is None:
            raise InvalidInput.field(
                "command", gettext_lazy("Give exactly one of command, shell and script.")
            )
        _check_parallel(values["concurrency"], values["max_parallel"])
        return values


@write_transaction
def create_task(
    grant: Grant, draft: TaskDraft, *, example: str | None = None, key: str | None = None
) -> Task:
    """Makes a task with its first revision; needs `task.create`. `example` marks one of the first minute, `key` is
    a digest under which no second one is made (`queries.made_by`).

    A task that names secrets needs `secret.use` too. Raises InvalidInput, SecretDisabled, SlugTaken and what
    `policy.confirm` raises.
    """
    _begin(grant, "task.create")
    values = draft.cleaned()
    body = validation.body_of(values)
    assert body is not None
    execution = Execution(body=body, **{name: values[name] for name in _EXECUTION})
    columns = {name: values[name] for name in (*_COLUMNS, "enabled")}
    columns |= {"example": example, "creation_key": key}
    _check_secrets(grant, values["env"], execution.secrets, ())
    context_ref = recipes.publish(secrets.bindings(grant.project_id, values["env"], execution.secrets))
    task = _insert(grant, columns, execution, context_ref, slug=values["slug"])
    _record(grant, "task.created", task, {"slug": task.slug})
    return task


@write_transaction
def update_task(grant: Grant, task_id: Any, version: int, changes: Mapping[str, Any]) -> Task:
    """Replaces the named fields whole; null is a field's default; needs `task.update`.

    A body field replaces the other two; fields that keep their value change nothing, and where nothing changes
    the version stays. What is executed gets a new revision when it changes. An example that somebody changes in
    more than its pin is an example no longer. `requires_approval` is set here and never taken back (MarkKept;
    `clear_approval_mark`). What is executed of a task that names secrets changes only with
    `secret.use`: whoever writes the script reads the values. Raises NotFound, VersionConflict, TaskArchived,
    InvalidInput, SecretDisabled, SlugTaken and what `policy.confirm` raises.
    """
    _begin(grant, "task.update")
    task = _locked(grant, task_id, version)
    view = queries.view(task)
    values = validation.clean(_without_read_only(changes, view))
    _check_body_kept(view, changes, values)
    if task.requires_approval and not values.get("requires_approval", True):
        raise MarkKept
    columns = _changed_columns(task, values)
    revision, env = _changed_execution(grant, view, values)
    changed = sorted({*columns, *_differences(view, revision, env)})
    if not changed:
        return task
    now = clock.now()
    if revision is not view.revision or env != view.env:
        # The recipe first: a revision must never name one that is not there (secrets-and-artifacts.md §4.2).
        named = revision.execution.secrets
        _check_secrets(grant, env, named, view.revision.execution.secrets)
        context_ref = recipes.publish(secrets.bindings(grant.project_id, env, named))
        columns["revision_id"] = _next_revision(
            view, replace(revision, context_ref=context_ref, created_at=now)
        )
    if task.example and changed != ["pinned"]:
        columns["example"] = None
    rows = Task.objects.filter(pk=task.pk)
    try:
        with db.savepoint():
            cas.update(rows, version=version, updated_at=now, **columns)
    except IntegrityError as error:
        raise _slug_taken(error) from None
    _note_secrets(task, view.revision.execution.secrets, revision.execution.secrets)
    _record(grant, "task.updated", task, {"fields": changed})
    if "requires_approval" in columns:
        _record(grant, "task.approval_required", task, {})
    return Task.objects.select_related("project", "revision").get(pk=task.pk)


@write_transaction
def clear_approval_mark(grant: Grant, task_id: Any, version: int) -> Task:
    """Lets a task be started again without an approval; needs `policy.manage`, and whoever calls asks for a fresh
    sign-in.

    One without the mark stays as it is. Raises NotFound, VersionConflict, TaskArchived and what `policy.confirm`
    raises.
    """
    _begin(grant, "policy.manage")
    task = _locked(grant, task_id, version)
    if not task.requires_approval:
        return task
    rows = Task.objects.filter(pk=task.pk)
    cas.update(rows, version=version, updated_at=clock.now(), requires_approval=False)
    _record(grant, "task.approval_cleared", task, {})
    return _task(grant, task_id)


@write_transaction
def reuse_revision(grant: Grant, task_id: Any, version: int, task_revision: str) -> Task:
    """Makes a new revision that executes what an older one did; needs `task.update`.

    Where the task executes that already nothing changes. Raises NotFound, VersionConflict, TaskArchived,
    SecretDisabled, RevisionCorrupt and what `policy.confirm` raises.
    """
    _begin(grant, "task.update")
    task = _locked(grant, task_id, version)
    view, old = queries.view(task), queries.revision(task, task_revision)
    changed = sorted(_differences(view, old.revision, old.env))
    if not changed:
        return task
    before, after = view.revision.execution.secrets, old.revision.execution.secrets
    _check_secrets(grant, old.env, after, before)
    now = clock.now()
    wanted = replace(old.revision, created_at=now, created_by=grant.actor.pair)
    columns = {"revision_id": _next_revision(view, wanted), "example": None}
    cas.update(Task.objects.filter(pk=task.pk), version=version, updated_at=now, **columns)
    _note_secrets(task, before, after)
    _record(grant, "task.updated", task, {"fields": changed, "from_revision": task_revision})
    return Task.objects.select_related("project", "revision").get(pk=task.pk)


@write_transaction
def copy_task(grant: Grant, task_id: Any) -> Task:
    """Makes a task that executes the same, without the triggers of the first; needs `task.create`.

    Raises NotFound, SecretDisabled, RevisionCorrupt and what `policy.confirm` raises.
    """
    _begin(grant, "task.create")
    source = _task(grant, task_id)
    revision = revisions.read(source.revision)
    _check_secrets(grant, {}, revision.execution.secrets, ())
    columns = {name: getattr(source, name) for name in (*_COLUMNS, "enabled")}
    columns["name"] = _("%(name)s (copy)") % {"name": source.name[:200]}
    columns["pinned"] = False
    task = _insert(grant, columns, revision.execution, revision.context_ref, slug=None, base=source.slug)
    _record(grant, "task.copied", task, {"from": str(source.pk)})
    return task


def _begin(grant: Grant, permission: str) -> None:
    if grant.permission != permission:
        raise Forbidden
    policy.confirm(grant)


def _task(grant: Grant, task_id: Any) -> Task:
    rows = Task.objects.select_related("project", "revision").filter(project_id=grant.project_id)
    task = rows.filter(pk=task_id).first()
    if task is None:
        raise NotFound
    return task


def _locked(grant: Grant, task_id: Any, version: int) -> Task:
    db.lock(Task.objects.filter(pk=task_id, project_id=grant.project_id)).first()
    task = _task(grant, task_id)
    if task.version != version:
        raise VersionConflict(task.version)
    if task.archived_at is not None:
        raise TaskArchived
    return task


def _insert(
    grant: Grant,
    columns: Mapping[str, Any],
    execution: Execution,
    context_ref: str,
    *,
    slug: str | None,
    base: str | None = None,
) -> Task:
    now = clock.now()
    task_id = ids.uuid7()
    revision = Revision(
        project_id=grant.project_id,
        task_id=str(task_id),
        task_revision=revisions.next_number(None),
        executor_type=LOCAL_PROCESS,
        execution=execution,
        context_ref=context_ref,
        created_at=now,
        created_by=grant.actor.pair,
    )
    _status, revision_id = revisions.insert(revision)
    base = base or slugs.from_name(columns["name"])
    for attempt in range(_SLUG_TRIES):
        try:
            with db.savepoint():
                Task.objects.create(
                    id=task_id,
                    project_id=grant.project_id,
                    slug=slug or slugs.free(base, queries.slugs_like(grant.project_id, base)),
                    revision_id=revision_id,
                    created_at=now,
                    updated_at=now,
                    **columns,
                )
            break
        except IntegrityError as error:
            # A made-up name may have been taken this moment by another creator of the same name.
            if slug is not None or attempt == _SLUG_TRIES - 1:
                raise _slug_taken(error) from None
    task = _task(grant, task_id)
    _note_secrets(task, (), execution.secrets)
    return task


def _check_secrets(grant: Grant, env: Mapping[str, str], named: SecretUses, before: SecretUses) -> None:
    """What a revision that names secrets takes: the right to use them, and none anew that is disabled."""
    if not named:
        return
    policy.confirm_secret_use(grant)
    clash = secrets.clash(env, named)
    if clash is not None:
        raise InvalidInput.field("secrets", clash)
    fresh = secrets.names(named) - secrets.names(before)
    if fresh and resolving.disabled(grant.project_id, fresh):
        raise SecretDisabled


def _note_secrets(task: Task, before: SecretUses, after: SecretUses) -> None:
    """Keeps the list of who uses which secret."""
    old, new = secrets.names(before), secrets.names(after)
    if old - new:
        TaskSecret.objects.filter(task=task, secret_name__in=old - new).delete()
    if new - old:
        TaskSecret.objects.bulk_create(
            TaskSecret(task=task, project_id=task.project_id, secret_name=name) for name in sorted(new - old)
        )


def _next_revision(view: TaskView, wanted: Revision) -> Any:
    """Stores what is wanted as the revision after the task's present one; the id of its row."""
    number = revisions.next_number(view.revision.task_revision)
    return revisions.insert(replace(wanted, task_revision=number))[1]


def _slug_taken(error: IntegrityError) -> Exception:
    return SlugTaken() if db.is_unique_violation(error) else error


def _without_read_only(changes: Mapping[str, Any], view: TaskView) -> dict[str, Any]:
    document = view.document()
    wrong = [name for name in READ_ONLY if name in changes and changes[name] != document[name]]
    if wrong:
        raise InvalidInput(fields={name: [gettext_lazy("This cannot be changed here.")] for name in wrong})
    return {name: value for name, value in changes.items() if name not in READ_ONLY}


def _changed_columns(task: Task, values: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {name: values[name] for name in _COLUMNS if name in values}
    concurrency = wanted.get("concurrency", task.concurrency)
    if concurrency != Task.Concurrency.PARALLEL and "max_parallel" not in wanted:
        wanted["max_parallel"] = 1
    _check_parallel(concurrency, wanted.get("max_parallel", task.max_parallel))
    if "slug" in values:
        wanted["slug"] = values["slug"] or _fresh_slug(task, wanted.get("name", task.name))
    return {name: value for name, value in wanted.items() if getattr(task, name) != value}


def _check_body_kept(view: TaskView, changes: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """A task cannot be left with nothing to run: null for the present body needs another one."""
    present = type(view.revision.execution.body).__name__.lower()
    if present in changes and changes[present] is None and validation.body_of(values) is None:
        raise InvalidInput.field(present, gettext_lazy("Give exactly one of command, shell and script."))


def _fresh_slug(task: Task, name: str) -> str:
    base = slugs.from_name(name)
    return slugs.free(base, queries.slugs_like(task.project_id, base) - {task.slug})


def _check_parallel(concurrency: str, max_parallel: int) -> None:
    if max_parallel != 1 and concurrency != Task.Concurrency.PARALLEL:
        raise InvalidInput.field(
            "max_parallel", gettext_lazy("More than 1 needs the concurrency to be parallel.")
        )


def _changed_execution(
    grant: Grant, view: TaskView, values: Mapping[str, Any]
) -> tuple[Revision, Mapping[str, str]]:
    """The revision that the values ask for (the same object where they change nothing), and its environment."""
    present = view.revision.execution
    wanted = replace(
        present,
        body=validation.body_of(values) or present.body,
        **{name: values[name] for name in _EXECUTION if name in values},
    )
    env = values.get("env", view.env)
    if wanted == present and env == view.env:
        return view.revision, view.env
    return replace(view.revision, execution=wanted, created_by=grant.actor.pair), env


def _differences(view: TaskView, revision: Revision, env: Mapping[str, str]) -> list[str]:
    """The API names of what is executed differently."""
    before, after = view.revision.execution, revision.execution
    found = [name for name in _EXECUTION if getattr(before, name) != getattr(after, name)]
    if before.body != after.body:
        found.append(type(after.body).__name__.lower())
    return [*found, "env"] if env != view.env else found


def _record(grant: Grant, action: str, task: Task, metadata: Mapping[str, Any]) -> None:
    participants.note(CHANGED, task.pk)
    audit.record(
        grant.project_id,
        actor=grant.actor.pair,
        action=action,
        subject=("task", str(task.pk)),
        metadata=metadata,
        origin=grant.origin,
    )
