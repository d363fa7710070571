"""Tables of what runs leave behind; their logs have none, a column of the attempt names them."""

from __future__ import annotations

from apps.artifacts.models.artifact import Artifact

__all__ = ["Artifact"]
