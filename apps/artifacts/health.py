"""What is looked at in artifacts."""

from __future__ import annotations

from apps.artifacts import room

room.register()
