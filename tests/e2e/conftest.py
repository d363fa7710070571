"""One running panel per module, shared by its tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.furnished import furnish
from tests.e2e.person import House
from tests.e2e.up_kit import Up, database
from tests.e2e.window import ARGUMENTS, CHROMIUM, Window


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("e2e")
            # Tests of a module share a panel: on two processes it would be started twice.
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


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


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A running panel without an account."""
    with database() as extra:
        home = tmp_path_factory.mktemp("panel") / "home"
        furnish(home, **extra)
        tree = Up(home, **extra)
        try:
            yield tree.wait_ready()
        finally:
            tree.stop()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip("no Chromium here")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def settled(up: Up, chromium: Any) -> Up:
    """The panel with its first account, made through the printed link."""
    ann = Window(chromium, up, language="en", width=1280)
    ann.set_up(up)
    assert ann.page.locator("ol.ql-steps li").count() == 3
    ann.go("/panel/p/default/tasks/")
    ann.close()
    return up
