from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _keyring(tmp_path: Any, settings: Any) -> None:
    from apps.vault import keyring

    settings.KEYRING_PATH = tmp_path / "keyring.json"
    keyring.create()
