"""Control jobs of the panel."""

from __future__ import annotations

from apps.core import control
from apps.panel import batch_job

control.register("panel.batches", batch_job.carry_on, every_ms=5_000)
