from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apps.artifacts import facts, services, store
from apps.artifacts.errors import CapacityUnavailable
from apps.core import ids
from qinglong.environment import ConfigurationError


def test_inspect_counts_what_an_ordinary_user_may_take(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = store.inspect(str(root))
    assert 0 < found.available <= found.total
    for broken in ((-1, 1, 10), (5, 4_096, 1), (0, 4_096, 0)):
        values = dict(zip(("f_bavail", "f_frsize", "f_blocks"), broken, strict=True))
        monkeypatch.setattr("os.statvfs", lambda path, values=values: type("S", (), values))
        with pytest.raises(CapacityUnavailable):
            store.inspect(str(root))


def test_a_missing_folder_has_no_room(root: Path) -> None:
    with pytest.raises(CapacityUnavailable):
        store.inspect(str(root / "none"))


def test_capacity_is_that_of_the_place_where_the_folder_will_be_made(root: Path, settings: Any) -> None:
    settings.LOG_ROOT = root / "none" / "logs"
    assert store.capacity().total == store.inspect(str(root)).total
    assert not settings.LOG_ROOT.parent.exists()


def test_prepare_gives_the_id_of_the_log(root: Path) -> None:
    run, attempt = ids.uuid7(), ids.uuid7()
    name = services.prepare(run, attempt, 65_536)
    assert name == services.prepare(run, attempt, 65_536) == facts.artifact_id(str(run), str(attempt))
    assert list(root.iterdir()) == []


def test_bounds(root: Path, settings: Any) -> None:
    for quota in (65_535, 1_073_741_825):
        with pytest.raises(ValueError, match="quota"):
            store.reserve(quota)
    for reserve in (-1, store.MINIMUM_FREE_MAX + 1, True, "1"):
        settings.LOG_MINIMUM_FREE_BYTES = reserve
        with pytest.raises(ConfigurationError):
            store.minimum_free()
    for path in ("relative", "/a\0b"):
        settings.LOG_ROOT = path
        with pytest.raises(ConfigurationError):
            store.root()
