"""The keyring: master keys in a file apart from the database (secrets-and-artifacts.md §3.3)."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings

from apps.core import canonical
from apps.vault.errors import KeyActive, KeyringExists, KeyringFull, KeyUnknown, SecretUnavailable
from apps.vault.models import SealedPayload, SecretEnvelope
from qinglong.environment import ConfigurationError, private_folder

MAX_BYTES = 16_384
MAX_KEYS = 16
KEY_BYTES = 32
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ENCODED_KEY = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True)
class MasterKey:
    """A key and its id; `material` is the caller's own copy, to be wiped after use."""

    id: str
    material: bytearray = field(repr=False)

    def wipe(self) -> None:
        """Overwrites the material."""
        self.material[:] = bytes(len(self.material))


@dataclass(frozen=True)
class Keyring:
    """What the file held at one moment; wipe it after use."""

    active_key_id: str
    keys: dict[str, MasterKey] = field(repr=False)

    def active(self) -> MasterKey:
        """The key that new values are sealed with."""
        return self.keys[self.active_key_id]

    def resolve(self, key_id: str) -> MasterKey | None:
        """The key of that id, or None; raises SecretUnavailable for what is no key id."""
        if _KEY_ID.fullmatch(key_id) is None:
            raise SecretUnavailable
        return self.keys.get(key_id)

    def wipe(self) -> None:
        for key in self.keys.values():
            key.wipe()


def load() -> Keyring:
    """Reads the file, on every call, so that an atomic replacement takes effect at once (about 10 µs).

    Raises SecretUnavailable for whatever is wrong with it: missing, a symlink, another owner, readable by
    others, 0 or more than 16,384 bytes, one bad entry.
    """
    data = bytearray()
    try:
        _read(settings.KEYRING_PATH, data)
        return _parse(data)
    except (OSError, ValueError, RecursionError):
        raise SecretUnavailable from None
    finally:
        data[:] = bytes(len(data))


@contextmanager
def opened() -> Iterator[Keyring]:
    """The keyring for the length of a block; all its keys are wiped at the end."""
    keyring = load()
    try:
        yield keyring
    finally:
        keyring.wipe()


def require(key_id: str) -> None:
    """That a key is still there, asked by writers after their row is in: whoever took it out in between did not see
    the row, and it must not be stored (`rekeying.retire_key`). Raises SecretUnavailable.
    """
    with opened() as keyring:
        if keyring.resolve(key_id) is None:
            raise SecretUnavailable


def ensure() -> None:
    """Makes the keyring where none is and nothing was ever sealed.

    Raises ConfigurationError: `keyring_missing` where sealed values exist that a new key could not open,
    `keyring_unusable` where the file is there and breaks a rule.
    """
    if not os.path.lexists(settings.KEYRING_PATH):
        if SealedPayload.objects.exists() or SecretEnvelope.objects.exists():
            raise ConfigurationError(
                "keyring_missing",
                "The database holds sealed values and the keyring is gone; put it back from your backup.",
            )
        with suppress(KeyringExists):  # another process of the same start was first
            create()
    try:
        load().wipe()
    except SecretUnavailable:
        raise ConfigurationError(
            "keyring_unusable",
            "The keyring cannot be used: it must be a file of your own with mode 0600 and valid keys.",
        ) from None


def create() -> str:
    """Makes the file with one random key and returns the key's id; raises KeyringExists."""
    key_id = _new_id()
    path = Path(settings.KEYRING_PATH)
    if not path.parent.is_dir():
        private_folder(path.parent)
    temporary = _write_beside(path, _document(key_id, {key_id: secrets.token_bytes(KEY_BYTES)}))
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise KeyringExists from None
    finally:
        temporary.unlink()
    _sync(path.parent)
    return key_id


def remove(key_id: str) -> None:
    """Takes a key out of the file; whether values still need it is for `rekeying.retire_key` to ask.

    Raises KeyActive for the active key, KeyUnknown, and SecretUnavailable.
    """
    with _exclusively(Path(settings.KEYRING_PATH).parent), opened() as keyring:
        if keyring.resolve(key_id) is None:
            raise KeyUnknown
        if key_id == keyring.active_key_id:
            raise KeyActive
        _replace(
            keyring.active_key_id, {name: key for name, key in _copies(keyring).items() if name != key_id}
        )


def rotate() -> str:
    """Adds a random key, makes it the active one and returns its id; old keys stay.

    Raises KeyringFull at 16 keys and SecretUnavailable where the present file cannot be used.
    """
    with _exclusively(Path(settings.KEYRING_PATH).parent), opened() as keyring:
        if len(keyring.keys) >= MAX_KEYS:
            raise KeyringFull
        key_id = _new_id()
        _replace(key_id, {**_copies(keyring), key_id: secrets.token_bytes(KEY_BYTES)})
    return key_id


def _copies(keyring: Keyring) -> dict[str, bytes]:
    return {name: bytes(key.material) for name, key in keyring.keys.items()}


def _replace(active: str, keys: dict[str, bytes]) -> None:
    path = Path(settings.KEYRING_PATH)
    _write_beside(path, _document(active, keys)).replace(path)
    _sync(path.parent)


def _read(path: str | Path, into: bytearray) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        private = stat.S_ISREG(found.st_mode) and found.st_mode & 0o077 == 0 and found.st_uid == os.geteuid()
        if not private or not 1 <= found.st_size <= MAX_BYTES:
            raise ValueError
        into += os.read(descriptor, MAX_BYTES + 1)
        if len(into) != found.st_size:
            raise ValueError
    finally:
        os.close(descriptor)


def _parse(data: bytearray) -> Keyring:
    document = canonical.loads(bytes(data))
    if not isinstance(document, dict) or set(document) != {"version", "active_key_id", "keys"}:
        raise ValueError
    active, keys = document["active_key_id"], document["keys"]
    if type(document["version"]) is not int or document["version"] != 1 or not isinstance(keys, dict):
        raise ValueError
    if not 1 <= len(keys) <= MAX_KEYS or not isinstance(active, str) or active not in keys:
        raise ValueError
    return Keyring(
        active, {key_id: MasterKey(key_id, _decode(key_id, text)) for key_id, text in keys.items()}
    )


def _decode(key_id: str, text: Any) -> bytearray:
    if _KEY_ID.fullmatch(key_id) is None or not isinstance(text, str) or not _ENCODED_KEY.fullmatch(text):
        raise ValueError
    material = bytearray(base64.urlsafe_b64decode(text + "="))
    if len(material) != KEY_BYTES or _encode(material) != text:
        raise ValueError
    return material


def _encode(material: bytes | bytearray) -> str:
    return base64.urlsafe_b64encode(material).rstrip(b"=").decode("ascii")


def _document(active: str, keys: dict[str, bytes]) -> bytes:
    document = {
        "version": 1,
        "active_key_id": active,
        "keys": {name: _encode(key) for name, key in keys.items()},
    }
    return json.dumps(document, indent=2).encode()


def _new_id() -> str:
    return f"k-{secrets.token_hex(8)}"


def _write_beside(path: Path, data: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _exclusively(folder: Path) -> Iterator[None]:
    """One writer at a time: of two rotations at once the second must see, and keep, the key of the first."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
