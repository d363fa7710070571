from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from apps.vault import keyring, sealing
from apps.vault.errors import KeyringExists, KeyringFull, SecretUnavailable
from apps.vault.models import SealedPayload
from qinglong.environment import ConfigurationError


def test_create_is_private_and_never_overwrites(key_path: Path) -> None:
    key_id = keyring.create()
    before = key_path.read_bytes()
    assert stat.S_IMODE(key_path.stat().st_mode) == 0o600
    assert keyring.load().active().id == key_id
    with pytest.raises(KeyringExists):
        keyring.create()
    assert key_path.read_bytes() == before
    assert [path.name for path in key_path.parent.iterdir()] == ["keyring.json"]


def test_two_creators_make_one_keyring(key_path: Path) -> None:
    def create(_index: int) -> str | None:
        try:
            return keyring.create()
        except KeyringExists:
            return None

    with ThreadPoolExecutor(8) as pool:
        made = [key for key in pool.map(create, range(8)) if key]
    assert made == [keyring.load().active_key_id]


def test_rotations_at_once_lose_no_key(key: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(lambda _index: keyring.rotate(), range(8)))
    assert set(keyring.load().keys) == {key, *added}


def test_rotate_keeps_old_keys_up_to_sixteen(key: str) -> None:
    for _index in range(15):
        newest = keyring.rotate()
    loaded = keyring.load()
    assert loaded.active_key_id == newest
    assert len(loaded.keys) == 16
    assert loaded.resolve(key) is not None
    with pytest.raises(KeyringFull):
        keyring.rotate()


def test_resolve_refuses_what_is_no_key_id(key: str) -> None:
    for text in ("", "a b", "x" * 129, "k\n"):
        with pytest.raises(SecretUnavailable):
            keyring.load().resolve(text)


def test_a_foreign_owner_is_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(SecretUnavailable):
        keyring.load()


def test_material_is_wiped_and_never_shown(key: str) -> None:
    with keyring.opened() as keys:
        material = keys.active().material
        assert any(material)
        assert material.hex() not in repr(keys) + repr(keys.active())
    assert material == bytes(32)


@pytest.mark.django_db
def test_ensure_makes_the_first_keyring_once(key_path: Path) -> None:
    keyring.ensure()
    made = key_path.read_bytes()
    keyring.ensure()
    assert key_path.read_bytes() == made


@pytest.mark.django_db
def test_ensure_makes_no_key_where_sealed_values_wait_for_another(key_path: Path, seal: Any) -> None:
    seal()
    key_path.unlink()
    with pytest.raises(ConfigurationError) as caught:
        keyring.ensure()
    assert caught.value.code == "keyring_missing"
    assert not key_path.exists()


@pytest.mark.django_db
def test_ensure_names_an_unusable_file(key_path: Path, key: str) -> None:
    key_path.chmod(0o644)
    with pytest.raises(ConfigurationError) as caught:
        keyring.ensure()
    assert caught.value.code == "keyring_unusable"


@pytest.mark.django_db
def test_command(key_path: Path) -> None:
    def run(*arguments: str) -> str:
        out = StringIO()
        call_command("keyring", *arguments, stdout=out)
        return out.getvalue()

    run("create")
    first = keyring.load().active_key_id
    with pytest.raises(CommandError, match="keyring_exists"):
        run("create")
    sealing.seal("test.value", project_id="p", holder=("run", "1"), value=1, schema_id="s")
    run("rotate")
    second = keyring.load().active_key_id
    assert run("status").splitlines() == [f"{first} needed by 1 values", f"{second} active"]
    for key, code in ((first, "key_in_use"), (second, "key_active"), ("k9", "key_unknown")):
        with pytest.raises(CommandError, match=code):
            run("retire", key)
    assert run("reseal").startswith("1 ")
    run("retire", first)
    assert run("status").splitlines() == [f"{second} active needed by 1 values"]
    row = SealedPayload.objects.get()
    assert sealing.unseal(row.pk, "test.value", project_id="p", holder=("run", "1")) == 1
