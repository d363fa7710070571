"""secrets-and-artifacts.md §14, scenarios 7 and 8 (the keyring's part)."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.vault import keyring, sealing
from apps.vault.errors import PayloadUnreadable, SecretUnavailable

KEY = base64.urlsafe_b64encode(bytes(range(32))).rstrip(b"=").decode()


@pytest.fixture
def path(tmp_path: Path, settings: Any) -> Path:
    settings.KEYRING_PATH = tmp_path / "keyring.json"
    return tmp_path / "keyring.json"


def _write(path: Path, document: Any, mode: int = 0o600) -> None:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    path.chmod(mode)


def _valid(**changes: Any) -> dict[str, Any]:
    return {"version": 1, "active_key_id": "k1", "keys": {"k1": KEY}, **changes}


def test_secrets_07_a_valid_file_works(path: Path) -> None:
    _write(path, _valid())
    assert bytes(keyring.load().active().material) == bytes(range(32))
    _write(path, _valid(keys={f"k{index}": KEY for index in range(16)}))
    assert len(keyring.load().keys) == 16
    _write(path, json.dumps(_valid()).ljust(16_384))
    keyring.load()


@pytest.mark.parametrize(
    "document",
    [
        "",
        json.dumps(_valid()).ljust(16_385),
        "{",
        "[]",
        _valid(keys={f"k{index}": KEY for index in range(17)}),
        _valid(keys={"k1": base64.urlsafe_b64encode(bytes(31)).rstrip(b"=").decode()}),
        _valid(keys={"k1": KEY + "="}),
        _valid(keys={"k1": KEY[:-1] + "9"}),  # same bytes, another spelling
        _valid(keys={"k1": KEY.replace("A", "+", 1)}),
        _valid(keys={"k1": KEY, "k 2": KEY}),
        _valid(keys={"k1": KEY, "k2": 7}),
        _valid(keys={}),
        _valid(keys=[KEY]),
        _valid(more=1),
        _valid(version=True),
        _valid(version=2),
        _valid(active_key_id="k2"),
        _valid(active_key_id=None),
        {"version": 1, "keys": {"k1": KEY}},
        '{"version":1,"active_key_id":"k1","keys":{"k1":"KEY","k1":"KEY"}}'.replace("KEY", KEY),
    ],
)
def test_secrets_07_one_wrong_thing_makes_it_unavailable(path: Path, document: Any) -> None:
    _write(path, document)
    with pytest.raises(SecretUnavailable) as caught:
        keyring.load()
    assert caught.value.__cause__ is None
    assert "keyring.json" not in str(caught.value)


def _symlink(path: Path) -> None:
    _write(path.with_name("real"), _valid())
    path.symlink_to(path.with_name("real"))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: None,
        lambda path: _write(path, _valid(), 0o640),
        lambda path: _write(path, _valid(), 0o604),
        _symlink,
        lambda path: path.mkdir(mode=0o700),
        lambda path: os.mkfifo(path, 0o600),
    ],
)
def test_secrets_07_wrong_kind_or_mode(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    with pytest.raises(SecretUnavailable):
        keyring.load()


@pytest.mark.django_db
def test_secrets_08_an_atomic_replacement_counts_at_once(path: Path) -> None:
    sealing.register_purpose("spec.secrets")
    place: dict[str, Any] = {"project_id": "default", "holder": ("secret", "API_TOKEN")}
    other = base64.urlsafe_b64encode(bytes(32)).rstrip(b"=").decode()

    def replace(document: dict[str, Any]) -> None:
        _write(path.with_name("next"), document)
        path.with_name("next").replace(path)

    replace(_valid())
    old = sealing.seal("spec.secrets", value="old", schema_id="s", **place)
    replace(_valid(active_key_id="k2", keys={"k1": KEY, "k2": other}))
    new = sealing.seal("spec.secrets", value="new", schema_id="s", **place)
    assert old.key_id != new.key_id
    assert sealing.unseal(old.pk, "spec.secrets", **place) == "old"
    replace(_valid(active_key_id="k2", keys={"k2": other}))
    assert keyring.load().resolve("k1") is None
    assert sealing.unseal(new.pk, "spec.secrets", **place) == "new"
    with pytest.raises(PayloadUnreadable):
        sealing.unseal(old.pk, "spec.secrets", **place)
