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
from apps.artifacts.models.tally import ArtifactTally

__all__ = [
    "SCOPE", "Artifact", "ArtifactMaintenanceCursor", "ArtifactRetention", "ArtifactTally", "Orphan", "Removal",
    "RetentionReceipt", "RetentionRule", "StoredLog", "StoredTotal", "UnlistedRun",
]  # fmt: skip
