"""One running panel per module, shared by its tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.person import House
from tests.e2e.up_kit import database


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("e2e")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """`up` in a home of its own, set up by its first person; scripts find what this shell finds of Node.js."""
    runner = shutil.which("tsx")
    path = "/usr/local/bin:/usr/bin:/bin"
    if runner is not None:
        path = f"{os.path.dirname(runner)}:{path}"
    with database() as extra:
        house = House.build(tmp_path_factory.mktemp("house") / "home", **extra, QINGLONG_PATH=path)
        try:
            yield house
        finally:
            house.up.stop()
