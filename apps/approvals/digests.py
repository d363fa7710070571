"""What is hashed: SHA-256 over compact JSON in the fixed key order of approvals.md §9, keys in camel case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apps.core import canonical

PLAN = (
    "schemaVersion", "actionType", "actionRef", "projectId", "taskId", "taskRevision", "executorType", "priority",
    "taskName", "taskSnapshotRef", "inputRef",
)  # fmt: skip
RECEIPT = (
    "schemaVersion", "dispatchId", "approvalRequestId", "projectId", "actionType", "actionDigest",
    "executionAttempt", "executionVersion", "startedAtMs", "idempotencyKey", "outcome", "resultCode",
    "resourceType", "resourceId", "finishedAtMs", "createdAtMs",
)  # fmt: skip
AUTHORIZATION = (
    "dispatchId", "projectId", "mutationId", "resolvedByType", "resolvedById", "authenticationId", "assurance",
    "authenticatedAtMs", "projectVersion", "bindingVersion", "authorizedAtMs",
)  # fmt: skip


def of(keys: tuple[str, ...], values: Mapping[str, Any]) -> str:
    """The digest of a document with exactly these keys; raises ValueError for other ones. Times are milliseconds."""
    if set(values) != set(keys):
        raise ValueError("not the members of this document")
    return canonical.sha256(canonical.ordered({key: values[key] for key in keys}))
