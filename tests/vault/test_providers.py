"""Secrets whose values lie with a provider: files of a private folder, variables of the worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from apps.core.errors import InvalidInput
from apps.projects.policy import Grant
from apps.vault import providers, resolving, services
from apps.vault.errors import (
    ProviderFixed,
    ProviderOff,
    SecretMutationConflict,
    SecretUnavailable,
    SecretVersionConflict,
)
from apps.vault.references import Reference
from tests import people

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("key")]
MANAGE = Grant.system("default", "secret.manage", "tests")


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    settings.SECRET_FILES = tmp_path / "secrets"
    for path in (settings.SECRET_FILES, settings.SECRET_FILES / "default", settings.SECRET_FILES / "other"):
        path.mkdir(mode=0o700)
    return tmp_path / "secrets"


def lay(folder: Path, name: str, content: bytes = b"from a file", mode: int = 0o600) -> Path:
    path = folder / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return path


def bind(name: str, provider: str, key: Any, *, expected: int = 0, mutation: str = "") -> services.Put:
    return services.put_external(
        MANAGE, name, provider, key, mutation_id=mutation or f"m{expected}", expected_version=expected
    )


def value(name: str, project: str = "default") -> str:
    found = resolving.resolve(project, [Reference(project, name).text])
    assert found is not None
    return found[0]


def test_a_file_is_read_at_each_start_and_never_stored(folder: Path) -> None:
    content = "first line\r\n  'x' $HOME\n"
    lay(folder, "default/db/password", content.encode())
    bind("pg", "file", "db/password")
    assert value("pg") == content
    lay(folder, "default/db/password", b"rotated elsewhere")
    assert value("pg") == "rotated elsewhere"
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT * FROM "{table}"')
            assert "rotated elsewhere" not in repr(cursor.fetchall()) and "first line" not in repr(table)


def test_versions_and_calls_that_come_again(folder: Path) -> None:
    lay(folder, "default/a", b"A")
    lay(folder, "default/b", b"B")
    first = bind("pg", "file", "a")
    assert bind("pg", "file", "a").status == "existing"
    with pytest.raises(SecretMutationConflict):
        bind("pg", "file", "b")
    with pytest.raises(SecretVersionConflict):
        bind("pg", "file", "b", mutation="other")
    bind("pg", "file", "b", expected=1)
    assert value("pg") == "B"
    assert resolving.resolve("default", [first.secret_ref]) == ["A"]


def test_where_a_secret_lies_is_decided_once(folder: Path) -> None:
    lay(folder, "default/a")
    bind("pg", "file", "a")
    with pytest.raises(ProviderFixed):
        services.put(MANAGE, "pg", "x", mutation_id="m1", expected_version=1)
    services.put(MANAGE, "own", "x", mutation_id="m0", expected_version=0)
    with pytest.raises(ProviderFixed):
        bind("own", "file", "a", expected=1)
    assert value("own") == "x"


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/etc/passwd",
        "../other/a",
        "a/../b",
        "a//b",
        "a/",
        ".hidden",
        "a\0",
        "a b",
        "x" * 129,
        None,
        7,
        "a/" * 8 + "a",
    ],
)
def test_keys_that_are_no_place(folder: Path, key: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        bind("pg", "file", key)
    assert list(caught.value.fields) == ["key"]


def _link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.chmod(0o640),
        lambda path: path.unlink(),
        _link,
        lambda path: path.write_bytes(b"x" * 65_537),
        lambda path: path.write_bytes(b"a\0b"),
        lambda path: path.write_bytes(b"\xff"),
        lambda path: (path.unlink(), path.mkdir(0o700)),
        lambda path: (path.unlink(), os.mkfifo(path, 0o600)),
        lambda path: path.parent.chmod(0o755),
        lambda path: path.parent.parent.parent.chmod(0o750),
    ],
)
def test_what_is_not_exactly_right_is_unavailable(folder: Path, spoil: Any) -> None:
    path = lay(folder, "default/db/password")
    bind("pg", "file", "db/password")
    assert value("pg") == "from a file"
    spoil(path)
    with pytest.raises(SecretUnavailable) as caught:
        value("pg")
    assert caught.value.__cause__ is None and "password" not in str(caught.value)
    folder.chmod(0o700)


def test_folders_are_followed_by_no_link(folder: Path) -> None:
    lay(folder, "other/db/password", b"of another project")
    (folder / "default/db").symlink_to(folder / "other/db")
    bind("pg", "file", "db/password")
    with pytest.raises(SecretUnavailable):
        value("pg")


def test_projects_are_apart(folder: Path) -> None:
    owner = people.member("owner")
    second = people.project(owner)
    (folder / second).mkdir(mode=0o700)
    lay(folder, f"{second}/a", b"theirs")
    bind("pg", "file", "a")
    with pytest.raises(SecretUnavailable):
        value("pg")
    lay(folder, "default/a", b"ours")
    assert value("pg") == "ours"


def test_variables_of_the_worker(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SECRET_VARIABLES = "PANEL_SECRET_"
    monkeypatch.setenv("PANEL_SECRET_DEFAULT_PG", "by variable")
    bind("pg", "environment", "PG")
    assert value("pg") == "by variable"
    monkeypatch.setenv("PANEL_SECRET_DEFAULT_PG", "")
    assert value("pg") == ""
    monkeypatch.delenv("PANEL_SECRET_DEFAULT_PG")
    monkeypatch.setenv("PG", "no prefix")
    with pytest.raises(SecretUnavailable):
        value("pg")
    for key in ("", "pg", "A=B", "A B", "x" * 129):
        with pytest.raises(InvalidInput):
            bind("other", "environment", key)


def test_what_is_not_set_up_is_refused(settings: Any, folder: Path) -> None:
    lay(folder, "default/a")
    bind("pg", "file", "a")
    settings.SECRET_FILES = settings.SECRET_VARIABLES = None
    assert providers.in_use() == {}
    for name, key in (("file", "a"), ("environment", "A")):
        with pytest.raises(ProviderOff):
            bind("new", name, key)
    with pytest.raises(InvalidInput):
        bind("new", "vault", "a")
    with pytest.raises(SecretUnavailable):
        value("pg")


def test_the_row_and_the_sealed_text_must_agree(folder: Path, settings: Any) -> None:
    """Whoever can write to the database does not turn a value into the name of a place, nor the other way."""
    from apps.vault.models import Secret

    settings.SECRET_VARIABLES = "PANEL_SECRET_"
    lay(folder, "default/a")
    bind("pg", "file", "a")
    services.put(MANAGE, "own", '{"provider":"file","key":"a"}', mutation_id="m0", expected_version=0)
    Secret.objects.filter(name="pg").update(provider="environment")
    with pytest.raises(SecretUnavailable):
        value("pg")


def test_over_the_api(folder: Path) -> None:
    lay(folder, "default/a")
    api = people.api(people.member("admin"))
    body = {"provider": "file", "key": "a", "expected_version": 0, "mutation_id": "m1"}
    answer = api("PUT", "projects/default/secrets/pg", body)
    assert (answer.status_code, answer.json()["status"]) == (201, "inserted")
    (item,) = api("GET", "projects/default/secrets").json()["items"]
    assert (item["provider"], item["version"]) == ("file", 1)
    for wrong in ({"value": "x"}, {"key": None}, {"provider": "vault"}):
        assert api("PUT", "projects/default/secrets/pg2", {**body, **wrong}).status_code == 400
    for missing in ("provider", "key"):
        short = {name: value for name, value in body.items() if name != missing}
        assert api("PUT", "projects/default/secrets/pg2", short).status_code == 400
