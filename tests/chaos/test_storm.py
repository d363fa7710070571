"""A short storm; `python -m tests.chaos` is the long one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.storm import storm

pytestmark = pytest.mark.e2e


def test_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    postgresql = bool(os.environ.get("DATABASE_URL"))
    with storm(tmp_path, 7, postgresql=postgresql) as made:
        made.rage(60, 0.4)
        made.settle(150)
        report = made.check()
        output = made.house.up.output
    print(report.counts)
    assert not report.broken, "\n".join([*report.broken, str(report.counts), output[-6000:]])
    assert report.counts["rules looked at"] > 600
