"""From a claimed attempt to the specification its shim gets: the script's whole world (architecture.md §2)."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from django.conf import settings

from apps.artifacts import facts, store
from apps.core import canonical, clock, ids
from apps.core.errors import DomainError
from apps.dispatch import given as given_secrets
from apps.dispatch import interpreters, run_as
from apps.dispatch.errors import EnvironmentTooLarge
from apps.dispatch.journal import shard_of
from apps.dispatch.launcher.spec import (
    CommandBody,
    LaunchSpec,
    Limits,
    LogSpec,
    RunAs,
    ScriptBody,
    ShellBody,
)
from apps.runs import payloads
from apps.runs.models import Run, RunAttempt
from apps.tasks import limits, revisions
from apps.tasks.execution import Command, Execution, Script, Shell
from apps.tasks.revisions import Revision
from apps.vault import recipes
from apps.vault.recipes import Recipe
from qinglong.environment import ConfigurationError

_CACHED = 256

Body = CommandBody | ShellBody | ScriptBody


class LaunchRefused(Exception):
    """The attempt cannot be started; `code`, and what stands behind it, goes into the run's error summary."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


@dataclass(frozen=True)
class _Known:
    """What was verified once and is the same for every attempt of a revision.

    `values` are its variables where it has no secrets. `body` is what it starts where a run brings no arguments, None
    where that depends on what is installed, or may be more than the kernel takes: then each attempt is measured.
    """

    revision: Revision
    recipe: Recipe
    values: Mapping[str, str] | None = field(default=None, repr=False)
    body: Body | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Plan:
    """A specification with what the session puts on record before it lets the script go."""

    spec: LaunchSpec = field(repr=False)
    token_hash: str
    timeout_ms: int | None


class Planner:
    """Builds specifications; revisions and recipes are immutable, so what was verified once stays so."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, UUID, str], _Known] = OrderedDict()
        self._base = _base_environment()
        self._receipts = str(receipts_root())
        self._run_as: run_as.Identity | None = None
        self._refusal: str | None = None
        try:
            self._run_as = run_as.wanted()
        except ConfigurationError as error:
            self._refusal = error.code  # of every run: none may start as the panel's own user instead

    def knows(self, run: Run) -> bool:
        """Whether planning this run asks the database nothing: values of secrets are never remembered."""
        known = self._known.get((run.project_id, run.task_id, run.task_revision))
        return known is not None and known.values is not None

    def plan(self, run: Run, attempt: RunAttempt, project_slug: str, task_slug: str) -> Plan:
        """The specification of one attempt; raises LaunchRefused. Nothing is made on disk but the log root."""
        if self._refusal is not None:
            raise LaunchRefused(self._refusal)
        known = self._resolve(run)
        execution = known.revision.execution
        run_id, attempt_id = ids.text(run.id), ids.text(attempt.id)
        home = f"{settings.HOME}/{run_as.HOMES}/{run.project_id}/{ids.text(run.task_id)}"
        world = {
            **self._base,
            "HOME": home,
            "QINGLONG_TASK": task_slug,
            "QINGLONG_PROJECT": project_slug,
            "QINGLONG_RUN_ID": run_id,
            "QINGLONG_ATTEMPT": str(attempt.attempt),
            "QINGLONG_TRIGGER": run.trigger_type,
            "RUN_FENCE": f"{run_id}:{attempt.attempt}",
        }
        secrets = given_secrets.NOTHING
        try:
            if known.values is None:
                secrets = given_secrets.secrets_of(run.project_id, known.recipe, execution.secrets)
                world |= given_secrets.environment(known.recipe, secrets)
            else:
                world |= known.values
            given = payloads.open_input(run)
            if known.body is not None and not given.args:
                body = known.body
            else:
                body = _body(execution, given.args, world["PATH"])
                given_secrets.check_size(world, body, execution.before, execution.after)
            store.reserve(execution.log_quota_bytes)
        except EnvironmentTooLarge as error:
            raise LaunchRefused(f"{error.code}: {error.extra['names']}") from error
        except DomainError as error:
            raise LaunchRefused(error.code) from error
        except facts.UnsafeTarget as error:
            raise LaunchRefused("log_root_unsafe") from error
        token = ids.token()
        spec = LaunchSpec(
            run_id=run_id,
            attempt_id=attempt_id,
            callback_sequence=attempt.callback_sequence + 1,
            token=token,
            body=body,
            env=world,
            cwd=os.path.normpath(Path(home, execution.work_dir)) if execution.work_dir else home,
            attempt_dir=attempt_folder(attempt),
            log=LogSpec(
                str(settings.LOG_ROOT), facts.artifact_id(run_id, attempt_id), execution.log_quota_bytes
            ),
            receipts_root=self._receipts,
            before=execution.before,
            after=execution.after,
            timeout_ms=execution.timeout_ms,
            deadline_at_ms=clock.now_ms() + execution.timeout_ms if execution.timeout_ms else None,
            grace_ms=execution.kill_grace_ms,
            input=canonical.dumps(given.input) if given.input is not None else None,
            mask=secrets.mask,
            secret_files=tuple(secrets.files.items()),
            run_as=self._other_user(home),
            limits=_limits(execution),
        )
        return Plan(spec, canonical.sha256(token), execution.timeout_ms)

    def _resolve(self, run: Run) -> _Known:
        key = (run.project_id, run.task_id, run.task_revision)
        if (known := self._known.get(key)) is not None:
            return known
        try:
            revision = revisions.resolve(run.project_id, ids.text(run.task_id), run.task_revision)
            recipe = recipes.resolve(revision.context_ref) if revision else None
            if revision is None or recipe is None:
                raise LaunchRefused("plan_unavailable")
            known = self._learn(revision, recipe)
        except EnvironmentTooLarge as error:
            raise LaunchRefused(f"{error.code}: {error.extra['names']}") from error
        except DomainError as error:
            raise LaunchRefused(error.code) from error
        self._known[key] = known
        if len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return known

    def _learn(self, revision: Revision, recipe: Recipe) -> _Known:
        execution = revision.execution
        if execution.secrets:
            return _Known(revision, recipe)
        nothing = given_secrets.secrets_of(revision.project_id, recipe, execution.secrets)
        values = given_secrets.environment(recipe, nothing)
        world = {**self._base, **values}
        body = _body(execution, (), world["PATH"])
        stays = not isinstance(execution.body, Script) or interpreters.is_fixed(execution.body.language)
        fits = given_secrets.surely_fits(world, body, execution.before, execution.after)
        return _Known(revision, recipe, values, body if stays and fits else None)

    def _other_user(self, home: str) -> RunAs | None:
        user = self._run_as
        return None if user is None else RunAs(user.uid, user.gid, user.groups, home)


def attempt_folder(attempt: RunAttempt) -> str:
    """The private folder of one attempt on this node; removed once its end is on record."""
    name = ids.text(attempt.id)
    return f"{settings.NODE_DIR}/{run_as.ATTEMPTS}/{shard_of(name)}/{name}"


def attempts_root() -> Path:
    """Where the folders of this node's attempts lie."""
    return Path(settings.NODE_DIR, run_as.ATTEMPTS)


def receipts_root() -> Path:
    """Where this node's completion receipts lie."""
    return Path(settings.NODE_DIR, "receipts")


def _base_environment() -> dict[str, str]:
    return {
        "PATH": settings.SCRIPT_PATH,
        "LANG": "C.UTF-8",
        "TZ": settings.TIME_ZONE,
        "PYTHONUNBUFFERED": "1",
    }


def _limits(execution: Execution) -> Limits | None:
    return None if execution.limits == limits.NONE else Limits(**execution.limits.document())


def _body(execution: Execution, args: tuple[str, ...], path: str) -> Body:
    body = execution.body
    if isinstance(body, Command):
        return CommandBody((*body.argv, *args))
    if isinstance(body, Shell):
        return ShellBody(body.text, args)
    assert isinstance(body, Script)
    name = interpreters.FILE_NAMES[body.language]
    if body.language == "node" and _is_module(body.source):
        name = "main.mjs"
    found = interpreters.candidates(body.language, path)
    return ScriptBody(found, name, body.source, (*body.args, *args))


def _is_module(source: str) -> bool:
    """Whether JavaScript is an ES module: Node.js tells by the file name, a form in the panel has none."""
    lines = (line.strip() for line in source.splitlines())
    return "require(" not in source and any(
        line.startswith(("import ", "import{", "export ", "await ")) for line in lines
    )
