"""Tables of what runs leave behind: files of scripts, which logs lie on the disk, and what retention removed."""

from __future__ import annotations

from apps.artifacts.models.artifact import Artifact
from apps.artifacts.models.retention import (
    SCOPE,
    ArtifactMaintenanceCursor,
    ArtifactRetention,
    Orphan,
    Removal,
    RetentionReceipt,
    RetentionRule,
    StoredLog,
    StoredTotal,
    UnlistedRun,
)

__all__ = [
    "SCOPE", "Artifact", "ArtifactMaintenanceCursor", "ArtifactRetention", "Orphan", "Removal", "RetentionReceipt",
    "RetentionRule", "StoredLog", "StoredTotal", "UnlistedRun",
]  # fmt: skip
