"""The plan and the preview behind a request to create a run (approvals.md §6.1, architecture.md §9).

The server builds both when the request is filed. `input_ref` binds input and arguments, `task_snapshot_ref` the
context with its resolved secret versions; `standing` looks later whether both would still be what they were.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any
from uuid import UUID

from apps.approvals import digests, values
from apps.approvals.errors import InvalidApprovedRunAction
from apps.approvals.models import ApprovedActionPlan
from apps.core import canonical, ids
from apps.runs.services.start import PRIORITY_BOUND
from apps.tasks.revisions import Revision
from apps.vault import envelopes, recipes, references, sealing
from apps.vault.errors import PayloadExpired, PayloadUnreadable

INPUT = sealing.register_purpose("approval.input")
SCHEMA = "approval.v1"
EXECUTORS = ("local_process", "docker", "kubernetes", "remote_worker")
HOLDER = "approval"
_INT32 = 2_147_483_648


@dataclass(frozen=True)
class Plan:
    """What one run would be created of; raises InvalidApprovedRunAction for what breaks §6.1."""

    action_ref: str
    project_id: str
    task_id: str
    task_revision: str
    executor_type: str
    priority: int
    task_name: str | None = None
    task_snapshot_ref: str | None = None
    input_ref: str | None = None
    schema_version: int = 1
    action_type: str = "run.create"

    def __post_init__(self) -> None:
        refusal = InvalidApprovedRunAction
        values.whole("schema_version", self.schema_version, 1, 1, refusal)
        values.one_of("action_type", self.action_type, ("run.create",), refusal)
        values.identifier("action_ref", self.action_ref, 255, refusal)
        values.one_of("executor_type", self.executor_type, EXECUTORS, refusal)
        values.whole("priority", self.priority, -_INT32, _INT32 - 1, refusal)
        for name, longest in (("project_id", 128), ("task_id", 255), ("task_revision", 128)):
            _text(name, getattr(self, name), longest)
        for name, longest in (("task_name", 255), ("task_snapshot_ref", 512), ("input_ref", 512)):
            if getattr(self, name) is not None:
                _text(name, getattr(self, name), longest)

    @property
    def digest(self) -> str:
        """The `action_digest`."""
        return digests.of(
            digests.PLAN,
            {
                "schemaVersion": self.schema_version,
                "actionType": self.action_type,
                "actionRef": self.action_ref,
                "projectId": self.project_id,
                "taskId": self.task_id,
                "taskRevision": self.task_revision,
                "executorType": self.executor_type,
                "priority": self.priority,
                "taskName": self.task_name,
                "taskSnapshotRef": self.task_snapshot_ref,
                "inputRef": self.input_ref,
            },
        )


@dataclass(frozen=True)
class Given:
    """What a run would be given; `salt` keeps the digests from telling what somebody guesses."""

    input: Mapping[str, Any] | None = field(repr=False)
    args: tuple[str, ...] = field(repr=False)
    salt: str = field(repr=False)

    @classmethod
    def salted(cls, input: Mapping[str, Any] | None, args: Sequence[str]) -> Given:
        """With a salt of its own. One so large that no salt fits beside it is no word to guess."""
        found = cls(input, tuple(args), secrets.token_hex(16))
        size = len(canonical.dumps(found.document()).encode())
        return found if size <= sealing.MAX_CLEAR_BYTES else cls(input, tuple(args), "")

    def document(self) -> dict[str, Any]:
        """What is sealed."""
        given = {"input": self.input, "args": list(self.args)}
        return {**given, "salt": self.salt} if self.salt else given

    def digest(self) -> str:
        """Over input, arguments and salt."""
        return canonical.digest(self.document())

    def wish_digest(self, **asked: Any) -> str:
        """Over all that was asked with it: what a repeated request must have in common with the first."""
        return canonical.digest({"given": self.digest(), **asked})


@dataclass(frozen=True)
class SecretVersion:
    """Which version of which secret a variable would hold; `version` None where there is none to use."""

    variable: str
    name: str
    version: int | None

    def document(self) -> dict[str, Any]:
        return {"variable": self.variable, "name": self.name, "version": self.version}


def secret_versions(revision: Revision) -> list[SecretVersion]:
    """What the secrets of a revision resolve to now, without their values, by variable; two statements.

    A secret that is missing or disabled has no version. Raises what the vault raises for damaged rows.
    """
    recipe = recipes.resolve(revision.context_ref)
    bound = [] if recipe is None else [one for one in recipe.bindings if isinstance(one, recipes.Secret)]
    found = envelopes.resolve_many([binding.secret_ref for binding in bound])
    return [
        SecretVersion(
            binding.name,
            references.parse(binding.secret_ref).name,
            None if one is None or one.disabled else one.envelope.version,
        )
        for binding, one in zip(bound, found, strict=True)
    ]


def snapshot(revision: Revision, found: Sequence[SecretVersion]) -> str:
    """The canonical text of the context as it resolves now."""
    return canonical.dumps(
        {
            "context_ref": revision.context_ref,
            "revision_digest": revision.digest,
            "secrets": [secret.document() for secret in found],
        }
    )


def snapshot_ref(text: str) -> str:
    """How a plan names a snapshot."""
    return f"snapshot:sha256:{canonical.sha256(text)}"


def input_ref(payload_id: UUID, given: Given) -> str:
    """How a plan names what a run would be given."""
    return f"input:{payload_id}:sha256:{given.digest()}"


def seal(project_id: str, request_id: str, payload_id: UUID, given: Given) -> None:
    """Stores what a run would be given, under the request it belongs to."""
    sealing.seal(
        INPUT,
        project_id=project_id,
        holder=(HOLDER, request_id),
        value=given.document(),
        schema_id=SCHEMA,
        payload_id=payload_id,
    )


def given_of(row: ApprovedActionPlan) -> Given | None:
    """What was sealed for a plan; None where it is gone or no longer what `input_ref` binds.

    Raises SecretUnavailable where there are no keys to look with.
    """
    try:
        value = sealing.unseal(
            row.input_payload_id, INPUT, project_id=row.project_id, holder=(HOLDER, row.request_id)
        )
    except (PayloadUnreadable, PayloadExpired):
        return None
    found = Given(value["input"], tuple(value["args"]), value.get("salt", ""))
    bound = (row.input_ref or "").encode()
    return found if hmac.compare_digest(input_ref(row.input_payload_id, found).encode(), bound) else None


def resolve(action_ref: str) -> ApprovedActionPlan | None:
    """The stored plan of that name, or None."""
    return ApprovedActionPlan.objects.filter(pk=action_ref).first()


def plan_of(row: ApprovedActionPlan) -> Plan:
    """The plan of a row, checked; raises InvalidApprovedRunAction."""
    return Plan(**{item.name: getattr(row, item.name) for item in fields(Plan)})


def preview_of(row: ApprovedActionPlan) -> dict[str, Any] | None:
    """What people were shown; None where it no longer has its digest."""
    if not hmac.compare_digest(canonical.sha256(row.preview), row.preview_digest):
        return None
    found: dict[str, Any] = canonical.loads(row.preview)
    return found


def check_priority(priority: int | None) -> None:
    """Raises InvalidApprovedRunAction for a priority that no start could have."""
    if priority is not None:
        values.whole("priority", priority, -PRIORITY_BOUND, PRIORITY_BOUND, InvalidApprovedRunAction)


def _text(name: str, value: object, longest: int) -> None:
    if not ids.is_text_id(value, longest):
        raise InvalidApprovedRunAction.field(name, "Not a possible text.")
