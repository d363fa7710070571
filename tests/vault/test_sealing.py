from __future__ import annotations

import hashlib
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core import ids
from apps.core.errors import InvalidInput
from apps.vault import keyring, sealing
from apps.vault.errors import PayloadExpired, PayloadTooLarge, PayloadUnreadable, SecretUnavailable
from apps.vault.models import SealedPayload
from tests.conftest import Time

pytestmark = pytest.mark.django_db
PURPOSE = "test.value"


def _open(row: SealedPayload, **options: Any) -> Any:
    options = {"project_id": "default", "holder": ("run", "r-1"), **options}
    return sealing.unseal(row.pk, options.pop("purpose", PURPOSE), **options)


@pytest.mark.parametrize(
    "value", [None, "", "hunter2", 0, -1.5, [], {"b": [1, {"a": "ü\n\0"}], "a": "中文"}, "x" * 60_000]
)
def test_round_trip(seal: Any, value: Any) -> None:
    assert _open(seal(value)) == value


def test_text_form(seal: Any) -> None:
    row = seal({"a": 1})
    assert re.fullmatch(r"v1\.sha256:[0-9a-f]{16}(\.[A-Za-z0-9_-]+){3}", row.ciphertext)
    assert row.ciphertext.split(".")[1] == row.key_id
    assert row.size == len('{"a":1}')


def test_the_stored_hash_gives_nothing_away(seal: Any) -> None:
    row = seal("yes")
    assert row.hash != hashlib.sha256(b'"yes"').hexdigest()
    assert row.hash == seal("yes").hash != seal("no").hash


def test_size_limit(seal: Any) -> None:
    assert seal("x" * 65_534).size == 65_536
    with pytest.raises(PayloadTooLarge):
        seal("x" * 65_535)
    with pytest.raises(InvalidInput):
        seal(float("nan"))
    with pytest.raises(InvalidInput):
        seal("\ud800")


@pytest.mark.parametrize(
    "other",
    [{"project_id": "b"}, {"holder": ("run", "r-2")}, {"holder": ("task", "r-1")}, {"purpose": "test.other"}],
)
def test_another_place_cannot_open_it(seal: Any, other: dict[str, Any]) -> None:
    with pytest.raises(PayloadUnreadable):
        _open(seal(), **other)


@pytest.mark.parametrize(
    "column", ["project_id", "holder_id", "id", "ciphertext", "hash", "size", "purpose", "key_id"]
)
def test_an_altered_row_cannot_be_opened(seal: Any, column: str) -> None:
    row = seal()
    other = seal("other value")
    altered: dict[str, Any] = {
        "project_id": "b",
        "holder_id": "r-2",
        "id": ids.uuid7(),
        "ciphertext": other.ciphertext,
        "hash": other.hash,
        "size": 3,
        "purpose": "test.other",
        "key_id": "sha256:" + "0" * 16,
    }
    SealedPayload.objects.filter(pk=row.pk).update(**{column: altered[column]})
    moved = SealedPayload.objects.get(pk=altered["id"] if column == "id" else row.pk)
    with pytest.raises(PayloadUnreadable):
        sealing.unseal(
            moved.pk, moved.purpose, project_id=moved.project_id, holder=(moved.holder_type, moved.holder_id)
        )


def test_every_part_of_the_text_counts(seal: Any) -> None:
    row = seal()
    parts = row.ciphertext.split(".")
    for index in range(5):
        for spelling in ("", parts[index][:-1], parts[index] + "A", "!" + parts[index][1:]):
            broken = ".".join([*parts[:index], spelling, *parts[index + 1 :]])
            SealedPayload.objects.filter(pk=row.pk).update(ciphertext=broken)
            with pytest.raises(PayloadUnreadable):
                _open(row)


def test_missing_and_expired(seal: Any, time: Time) -> None:
    from apps.core import clock

    row = seal(expires_at=clock.now() + timedelta(seconds=1))
    time.advance(999)
    assert _open(row) == "hunter2"
    time.advance(1)
    with pytest.raises(PayloadExpired):
        _open(row)
    with pytest.raises(PayloadUnreadable):
        sealing.unseal(ids.uuid7(), PURPOSE, project_id="default", holder=("run", "r-1"))
    assert sealing.find(row.pk) == row
    assert sealing.find(ids.uuid7()) is None


def test_an_unknown_purpose_is_a_bug(seal: Any) -> None:
    with pytest.raises(ValueError, match="registered"):
        seal(purpose="never.registered")
    with pytest.raises(ValueError, match="purpose"):
        sealing.register_purpose("Not A Purpose")


def test_rotation_and_reseal(seal: Any, key: str, key_path: Path) -> None:
    rows = [seal(index) for index in range(5)] + [seal(9, purpose="test.other")]
    keyring.rotate()
    newest = seal("new")
    assert newest.key_id != rows[0].key_id
    assert [_open(row) for row in rows[:5]] == list(range(5))
    assert sealing.keys_in_use()[key]

    moved, stuck, after = sealing.reseal(limit=4)
    assert (moved, stuck, after) == (4, 0, rows[3].pk)
    assert sealing.reseal(after, limit=4) == (2, 0, None)
    assert sealing.reseal() == (0, 0, None)
    assert not sealing.keys_in_use()[key]

    document = json.loads(key_path.read_text())
    del document["keys"][key]
    key_path.write_text(json.dumps(document))
    assert [_open(row) for row in rows[:5]] == list(range(5))


def test_a_key_that_is_gone(seal: Any, key: str, key_path: Path) -> None:
    row = seal()
    key_path.unlink()
    with pytest.raises(SecretUnavailable):
        _open(row)
    keyring.create()
    with pytest.raises(PayloadUnreadable):
        _open(row)


def test_no_clear_byte_reaches_the_database(seal: Any) -> None:
    row = seal("a-very-secret-word")
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM vault_sealed_payloads")
        assert "a-very-secret-word" not in repr(cursor.fetchall())
    assert "a-very-secret-word" not in repr(row)


def test_one_statement_each(seal: Any) -> None:
    with CaptureQueriesContext(connection) as queries:
        row = seal()
        _open(row)
    statements = [query["sql"] for query in queries if "SAVEPOINT" not in query["sql"]]
    assert [sql.split()[0] for sql in statements] == ["INSERT", "SELECT"]
