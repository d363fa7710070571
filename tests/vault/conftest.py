from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.vault import keyring, sealing

PURPOSE = "test.value"


@pytest.fixture
def key_path(tmp_path: Path, settings: Any) -> Path:
    """Where the keyring of one test lies; nothing is there yet."""
    path = tmp_path / "keyring.json"
    settings.KEYRING_PATH = path
    return path


@pytest.fixture
def key(key_path: Path) -> str:
    """A keyring with one key; its id."""
    return keyring.create()


@pytest.fixture(autouse=True)
def _purpose() -> Iterator[None]:
    sealing.register_purpose(PURPOSE)
    sealing.register_purpose("test.other")
    yield
    sealing._purposes -= {PURPOSE, "test.other"}


Seal = Callable[..., Any]


@pytest.fixture
def seal(key: str) -> Seal:
    def make(value: Any = "hunter2", **options: Any) -> Any:
        options = {
            "project_id": "default",
            "holder": ("run", "r-1"),
            "schema_id": "s",
            **options,
        }
        return sealing.seal(options.pop("purpose", PURPOSE), value=value, **options)

    return make
