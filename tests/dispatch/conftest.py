from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.vault import keyring
from tests.dispatch.sessions import Home


@pytest.fixture
def home(seeded: None, tmp_path: Path, settings: Any) -> Iterator[Home]:
    """A home folder and node of its own, with real commits; nothing of it is left running."""
    settings.HOME = tmp_path
    settings.NODE_DIR = tmp_path / "node"
    settings.RUN_DIR = tmp_path / "run"
    settings.LOG_ROOT = tmp_path / "logs"
    settings.KEYRING_PATH = tmp_path / "keyring.json"
    settings.SLOTS = 8
    keyring.create()
    found = Home(tmp_path)
    try:
        yield found
    finally:
        found.finish()
