"""From a claimed attempt to the specification its shim gets: the script's whole world (architecture.md §2)."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

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


class LaunchRefused(Exception):
    """The attempt cannot be started; `code`, and what stands behind it, goes into the run's error summary."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


@dataclass(frozen=True)
class Plan:
    """A specification with what the session puts on record before it lets the script go."""

    spec: LaunchSpec = field(repr=False)
    token_hash: str
    timeout_ms: int | None


class Planner:
    """Builds specifications; revisions and recipes are immutable, so what was verified once stays so."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, str], tuple[Revision, Recipe]] = OrderedDict()
        self._base = _base_environment()
        self._run_as: run_as.Identity | None = None
        self._refusal: str | None = None
        try:
            self._run_as = run_as.wanted()
        except ConfigurationError as error:
            self._refusal = error.code  # of every run: none may start as the panel's own user instead

    def knows(self, run: Run) -> bool:
        """Whether planning this run asks the database nothing: values of secrets are never remembered."""
        known = self._known.get((run.project_id, str(run.task_id), run.task_revision))
        return known is not None and not known[0].execution.secrets

    def plan(self, run: Run, attempt: RunAttempt, project_slug: str, task_slug: str) -> Plan:
        """The specification of one attempt; raises LaunchRefused. Nothing is made on disk but the log root."""
        if self._refusal is not None:
            raise LaunchRefused(self._refusal)
        revision, recipe = self._resolve(run)
        execution = revision.execution
        home = Path(settings.HOME, run_as.HOMES, run.project_id, str(run.task_id))
        try:
            secrets = given_secrets.secrets_of(run.project_id, recipe, execution.secrets)
            world = {
                **self._environment(run, attempt, home, project_slug, task_slug),
                **given_secrets.environment(recipe, secrets),
            }
            given = payloads.open_input(run)
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
        folder = attempt_folder(attempt)
        spec = LaunchSpec(
            run_id=str(run.pk),
            attempt_id=str(attempt.pk),
            callback_sequence=attempt.callback_sequence + 1,
            token=token,
            body=body,
            env=world,
            cwd=os.path.normpath(home / execution.work_dir) if execution.work_dir else str(home),
            attempt_dir=str(folder),
            log=LogSpec(
                str(settings.LOG_ROOT),
                facts.artifact_id(str(run.pk), str(attempt.pk)),
                execution.log_quota_bytes,
            ),
            receipts_root=str(receipts_root()),
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

    def _resolve(self, run: Run) -> tuple[Revision, Recipe]:
        key = (run.project_id, str(run.task_id), run.task_revision)
        if (known := self._known.get(key)) is not None:
            return known
        try:
            revision = revisions.resolve(*key)
            recipe = recipes.resolve(revision.context_ref) if revision else None
        except DomainError as error:
            raise LaunchRefused(error.code) from error
        if revision is None or recipe is None:
            raise LaunchRefused("plan_unavailable")
        self._known[key] = (revision, recipe)
        if len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return revision, recipe

    def _other_user(self, home: Path) -> RunAs | None:
        user = self._run_as
        return None if user is None else RunAs(user.uid, user.gid, user.groups, str(home))

    def _environment(
        self, run: Run, attempt: RunAttempt, home: Path, project_slug: str, task_slug: str
    ) -> dict[str, str]:
        return {
            **self._base,
            "HOME": str(home),
            "QINGLONG_RUN_ID": str(run.pk),
            "QINGLONG_TASK": task_slug,
            "QINGLONG_PROJECT": project_slug,
            "QINGLONG_ATTEMPT": str(attempt.attempt),
            "QINGLONG_TRIGGER": run.trigger_type,
            "RUN_FENCE": f"{run.pk}:{attempt.attempt}",
        }


def attempt_folder(attempt: RunAttempt) -> Path:
    """The private folder of one attempt on this node; removed once its end is on record."""
    name = str(attempt.pk)
    return Path(f"{settings.NODE_DIR}/{run_as.ATTEMPTS}/{shard_of(name)}/{name}")


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


def _body(execution: Execution, args: tuple[str, ...], path: str) -> CommandBody | ShellBody | ScriptBody:
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
