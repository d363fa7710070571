"""What tests of approvals share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.approvals.services.deciding import decisions
from apps.vault import keyring


@pytest.fixture(autouse=True)
def _keys_and_no_decisions(tmp_path: Path, settings: Any) -> Iterator[None]:
    """A keyring of the test's own; nobody decided anything in the last minute."""
    settings.KEYRING_PATH = tmp_path / "keyring.json"
    keyring.create()
    decisions.clear()
    yield
    decisions.clear()
