from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def root(tmp_path: Path, settings: Any) -> Path:
    """The folder of all logs, empty."""
    path = tmp_path / "logs"
    path.mkdir(mode=0o700)
    settings.LOG_ROOT = path
    return path
