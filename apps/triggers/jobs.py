"""What triggers bring to the processes."""

from __future__ import annotations

from apps.triggers import scheduling

scheduling.register()
