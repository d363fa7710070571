"""Secrets whose values lie outside the database; what is stored of them is where they lie, and that sealed.

A provider is read by the worker that starts an attempt, each time anew, and nothing of it is kept. Projects are apart
there too: what a project may name begins with its id, so that nobody reaches the values of another.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from django.conf import settings
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from apps.core import canonical, ids
from apps.core.errors import InvalidInput
from apps.vault.errors import ProviderOff, SecretUnavailable

MAX_BYTES = 65_536
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._-]{0,127}){0,7}")
_VARIABLE = re.compile(r"[A-Z0-9_]{1,128}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Provider(Protocol):
    """Where values lie. `read` raises SecretUnavailable, whatever is wrong; `trouble` says it in a sentence."""

    @property
    def title(self) -> str | Promise:
        """What it is called."""

    @property
    def key_help(self) -> str | Promise:
        """What a key is there."""

    def on(self) -> bool:
        """Whether this node uses it."""

    def accepts(self, key: str) -> bool:
        """Whether a value can lie there."""

    def read(self, project_id: str, key: str) -> bytes:
        """The value's bytes."""

    def trouble(self) -> str | Promise | None:
        """What keeps it from working on this node, None for nothing."""


class Files:
    """Files below `QINGLONG_SECRET_FILES`, a folder of the panel's own user: `<project id>/<key>`, byte for byte."""

    title = pgettext_lazy("secret provider", "File")
    key_help = _("Path of a file below the project's folder in QINGLONG_SECRET_FILES.")

    def on(self) -> bool:
        return settings.SECRET_FILES is not None

    def accepts(self, key: str) -> bool:
        return _PATH.fullmatch(key) is not None

    def read(self, project_id: str, key: str) -> bytes:
        if _PROJECT.fullmatch(project_id) is None:
            raise SecretUnavailable
        *folders, name = key.split("/")
        try:
            with _walk(settings.SECRET_FILES, [project_id, *folders]) as folder:
                descriptor = os.open(name, _FILE, dir_fd=folder)
                try:
                    return _private(descriptor)
                finally:
                    os.close(descriptor)
        except (OSError, ValueError):
            raise SecretUnavailable from None

    def trouble(self) -> str | Promise | None:
        try:
            with _walk(settings.SECRET_FILES, []):
                return None
        except (OSError, ValueError):
            return _("QINGLONG_SECRET_FILES must be a folder of this user with mode 0700, and no link.")


class Variables:
    """Variables of the worker's own environment: `<QINGLONG_SECRET_VARIABLES><PROJECT ID>_<KEY>`."""

    title = pgettext_lazy("secret provider", "Environment of the worker")
    key_help = _("End of a variable's name: capital letters, digits and _.")

    def on(self) -> bool:
        return settings.SECRET_VARIABLES is not None

    def accepts(self, key: str) -> bool:
        return _VARIABLE.fullmatch(key) is not None

    def read(self, project_id: str, key: str) -> bytes:
        project = re.sub(r"[^A-Z0-9]", "_", project_id.upper())
        value = os.environb.get(f"{settings.SECRET_VARIABLES}{project}_{key}".encode())
        if value is None:
            raise SecretUnavailable
        return value

    def trouble(self) -> str | Promise | None:
        return None


PROVIDERS: dict[str, Provider] = {"file": Files(), "environment": Variables()}


def in_use() -> dict[str, Provider]:
    """The providers that this node is set up for."""
    return {name: provider for name, provider in PROVIDERS.items() if provider.on()}


def locator(name: str, key: object) -> str:
    """What is stored for a value at a provider; raises InvalidInput and ProviderOff."""
    provider = PROVIDERS.get(name) if isinstance(name, str) else None
    if provider is None:
        raise InvalidInput.field("provider", _("There is no such provider."))
    if not provider.on():
        raise ProviderOff
    if not isinstance(key, str) or not provider.accepts(key):
        raise InvalidInput.field("key", provider.key_help)
    return canonical.ordered({"provider": name, "key": key})


def read(name: str, project_id: str, stored: str) -> str:
    """The value behind what `locator` made; raises SecretUnavailable for all that is not exactly right."""
    try:
        document = canonical.loads(stored)
    except canonical.NotCanonical:
        raise SecretUnavailable from None
    provider = PROVIDERS.get(name)
    if provider is None or not provider.on() or not isinstance(document, dict):
        raise SecretUnavailable
    key = document.get("key")
    # The row says which provider it is, the sealed text says it too: neither alone sends a look elsewhere.
    if document.get("provider") != name or not isinstance(key, str) or not provider.accepts(key):
        raise SecretUnavailable
    data = provider.read(project_id, key)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise SecretUnavailable from None
    if "\0" in text or len(data) > MAX_BYTES or not ids.is_utf8(text):
        raise SecretUnavailable
    return text


@contextmanager
def _walk(root: Path | None, folders: list[str]) -> Iterator[int]:
    """The innermost of the folders, opened; each a real one that is ours alone."""
    if root is None:
        raise ValueError
    descriptor = os.open(root, _FOLDER)
    try:
        _check(descriptor)
        for name in folders:
            inner = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
            _check(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def _check(descriptor: int) -> None:
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ValueError


def _private(descriptor: int) -> bytes:
    _check(descriptor)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
        raise ValueError
    data = b""
    while len(data) <= MAX_BYTES and (chunk := os.read(descriptor, MAX_BYTES + 1)):
        data += chunk
    return data
