from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.dispatch.launcher import client
from apps.vault import keyring
from tests.dispatch.sessions import Home
from tests.dispatch.shim_kit import PATIENCE_S


@pytest.fixture
def home(seeded: None, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home folder and node of its own, with real commits; nothing of it is left running."""
    settings.HOME = tmp_path
    settings.NODE_DIR = tmp_path / "node"
    settings.RUN_DIR = tmp_path / "run"
    settings.LOG_ROOT = tmp_path / "logs"
    settings.KEYRING_PATH = tmp_path / "keyring.json"
    settings.SLOTS = 8
    # Where a launcher takes longer, runs go back to the queue: a session that is idle at once ends without them.
    monkeypatch.setattr(client, "START_TIMEOUT_S", PATIENCE_S)
    keyring.create()
    found = Home(tmp_path)
    try:
        yield found
    finally:
        found.finish()
