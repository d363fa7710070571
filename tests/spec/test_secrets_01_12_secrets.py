"""secrets-and-artifacts.md §14, scenarios 1 to 6 and 8 to 12."""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core import canonical, clock
from apps.core.errors import Forbidden, InvalidInput
from apps.projects.policy import Grant
from apps.vault import envelopes, keyring, references, resolving, services
from apps.vault.envelopes import Envelope
from apps.vault.errors import SecretMutationConflict, SecretUnavailable, SecretVersionConflict
from apps.vault.keyring import MasterKey
from apps.vault.models import SecretEnvelope
from apps.vault.references import Reference
from tests import people

LATEST = Reference("default", "API_TOKEN").text


@pytest.fixture
def grant() -> Grant:
    return Grant.system("default", "secret.manage", "spec")


@pytest.fixture(autouse=True)
def key_path(tmp_path: Path, settings: Any) -> Path:
    settings.KEYRING_PATH = tmp_path / "keyring.json"
    keyring.create()
    return tmp_path / "keyring.json"


def put(grant: Grant, value: object, mutation: str, expected: int, name: str = "API_TOKEN") -> services.Put:
    return services.put(grant, name, value, mutation_id=mutation, expected_version=expected)


def vector(nonce: bytes | None = bytes(range(12)), key: bytes = bytes(range(32))) -> Envelope:
    return envelopes.seal(
        bytearray(b"hunter2"),
        MasterKey("k1", bytearray(key)),
        project_id="default",
        name="API_TOKEN",
        version=3,
        mutation_id="m-3",
        created_at=clock.now(),
        nonce=nonce,
    )


def test_secrets_01_the_vector_and_all_that_is_bound() -> None:
    envelope = vector()
    assert envelope.ciphertext.hex() == "2f77b86fa097f0"
    assert envelope.auth_tag.hex() == "25a4d88fb77b5eefc80153735762f9ca"
    key = MasterKey("k1", bytearray(range(32)))
    assert envelopes.unseal(envelope, key) == b"hunter2"
    for bit in range(128):
        tag = bytearray(envelope.auth_tag)
        tag[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SecretUnavailable):
            envelopes.unseal(dataclasses.replace(envelope, auth_tag=bytes(tag)), key)
    for change in (
        {"project_id": "other"}, {"name": "API_TOKEN2"}, {"version": 4}, {"mutation_id": "m-4"},
        {"nonce": bytes(12)}, {"ciphertext": b"\0" * 7},
    ):  # fmt: skip
        with pytest.raises(SecretUnavailable) as caught:
            envelopes.unseal(dataclasses.replace(envelope, **change), key)
        assert caught.value.__cause__ is None
    with pytest.raises(SecretUnavailable):
        envelopes.unseal(dataclasses.replace(envelope, key_id="k2"), MasterKey("k2", bytearray(range(32))))
    with pytest.raises(SecretUnavailable):
        envelopes.unseal(envelope, MasterKey("k1", bytearray(32)))
    with pytest.raises(InvalidInput):
        dataclasses.replace(envelope, algorithm="aes-256-cbc")
    with pytest.raises(SecretUnavailable):
        vector(nonce=bytes(11))
    with pytest.raises(SecretUnavailable):
        vector(key=bytes(31))
    assert vector(nonce=None).nonce != vector(nonce=None).nonce
    # Another time of creation opens as well: it is not bound.
    later = dataclasses.replace(envelope, created_at=clock.from_ms(1))
    assert envelopes.unseal(later, key) == b"hunter2"


@pytest.mark.django_db
def test_secrets_02_a_call_that_comes_again(grant: Grant, time: Any) -> None:
    first = put(grant, "v1", "m1", 0)
    assert (first.status, first.version) == ("inserted", 1)
    assert first.secret_ref == Reference("default", "API_TOKEN", 1).text
    time.advance(5_000)
    again = put(grant, "v1", "m1", 0)
    assert again == dataclasses.replace(first, status="existing")
    with pytest.raises(SecretMutationConflict):
        put(grant, "other", "m1", 0)
    with pytest.raises(SecretMutationConflict):
        put(grant, "v1", "m1", 1)
    assert SecretEnvelope.objects.count() == 1


@pytest.mark.django_db
def test_secrets_03_versions(grant: Grant) -> None:
    put(grant, "v1", "m1", 0)
    with pytest.raises(SecretVersionConflict):
        put(grant, "v2", "m2", 0)
    pinned = Reference("default", "API_TOKEN", 1).text
    assert put(grant, "v2", "m2", 1).version == 2
    assert resolving.resolve("default", [LATEST, pinned]) == ["v2", "v1"]


def test_secrets_04_two_connections_at_once(seeded: None, grant: Grant) -> None:
    put(grant, "v1", "m1", 0)
    barrier = Barrier(4)

    def rotate(index: int) -> str:
        try:
            barrier.wait(10)
            return put(grant, f"new {index}", f"r{index}", 1).status
        except SecretVersionConflict:
            return "conflict"
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        results = sorted(pool.map(rotate, range(4)))
    assert results == ["conflict"] * 3 + ["inserted"]
    assert list(SecretEnvelope.objects.order_by("version").values_list("version", flat=True)) == [1, 2]


def test_secrets_04_twins_of_one_call(seeded: None, grant: Grant) -> None:
    """§11: same mutation and value from several at once: one row, one `inserted`."""
    barrier = Barrier(4)

    def twin(_index: int) -> tuple[str, int]:
        try:
            barrier.wait(10)
            answer = put(grant, "same", "m1", 0)
            return answer.status, answer.version
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        results = sorted(pool.map(twin, range(4)))
    assert results == [("existing", 1)] * 3 + [("inserted", 1)]
    assert SecretEnvelope.objects.count() == 1


def test_secrets_05_no_byte_of_the_value_anywhere(
    seeded: None, grant: Grant, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    value = "correct-horse-battery-staple-7431"
    with caplog.at_level(logging.DEBUG):
        answer = put(grant, value, "m1", 0)
        owner = people.member("owner")
        page = people.signed_in(owner).get("/panel/p/default/secrets/")
    assert page.status_code == 200
    seen = [repr(answer), caplog.text, page.content.decode(), repr(SecretEnvelope.objects.get().__dict__)]
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT * FROM "{table}"')
            seen.append(
                repr([tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in cursor])
            )
    assert not [text for text in seen if value in text or base64.b64encode(value.encode()).decode() in text]
    if connection.vendor == "sqlite":
        name = Path(connection.settings_dict["NAME"])
        for path in (name, name.with_name(name.name + "-wal")):
            assert value.encode() not in path.read_bytes()


@pytest.mark.django_db
def test_secrets_06_sizes(grant: Grant) -> None:
    put(grant, "x" * 65_536, "m1", 0, "LARGE")
    put(grant, "", "m1", 0, "EMPTY")
    put(grant, "é\n\r\n\t\ufeff' \"$`", "m1", 0, "ODD")
    for value in ("x" * 65_537, "é" * 32_769, "a\0b", "\ud800", None, 7, b"x"):
        with pytest.raises(InvalidInput):
            put(grant, value, "m1", 0, "REFUSED")
    texts = [Reference("default", name).text for name in ("LARGE", "EMPTY", "ODD")]
    assert resolving.resolve("default", texts) == ["x" * 65_536, "", "é\n\r\n\t\ufeff' \"$`"]
    assert SecretEnvelope.objects.count() == 3


@pytest.mark.django_db
def test_secrets_08_the_keyring_is_replaced(grant: Grant, key_path: Path) -> None:
    (old,) = json.loads(key_path.read_text())["keys"]
    put(grant, "v1", "m1", 0)
    new = keyring.rotate()
    put(grant, "v2", "m2", 1)
    assert list(SecretEnvelope.objects.order_by("version").values_list("key_id", flat=True)) == [old, new]
    pinned = Reference("default", "API_TOKEN", 1).text
    assert resolving.resolve("default", [pinned, LATEST]) == ["v1", "v2"]
    document = json.loads(key_path.read_text())
    del document["keys"][old]
    key_path.write_text(json.dumps(document))
    with keyring.opened() as keys:
        assert keys.resolve(old) is None
    assert resolving.resolve("default", [LATEST]) == ["v2"]
    with pytest.raises(SecretUnavailable):
        resolving.resolve("default", [pinned])
    with pytest.raises(SecretUnavailable):  # the replay of a call needs the key of its time
        put(grant, "v1", "m1", 0)


@pytest.mark.django_db
def test_secrets_09_another_project_is_never_asked(grant: Grant, monkeypatch: pytest.MonkeyPatch) -> None:
    put(grant, "v1", "m1", 0)

    def read() -> Any:
        raise AssertionError("a key was read")

    monkeypatch.setattr(keyring, "load", read)
    with CaptureQueriesContext(connection) as queries, pytest.raises(SecretUnavailable):
        resolving.resolve("other", [Reference("other", "MINE").text, LATEST])
    assert len(queries) == 0


@pytest.mark.django_db
def test_secrets_10_batches(grant: Grant) -> None:
    put(grant, "v1", "m1", 0)
    put(grant, "v2", "m2", 1)
    one, missing = Reference("default", "API_TOKEN", 1).text, Reference("default", "MISSING").text
    pattern = ([LATEST, missing, one] * 22)[:64]
    with CaptureQueriesContext(connection) as queries:
        found = envelopes.resolve_many(pattern)
    assert len(queries) == 1
    assert [None if item is None else item.envelope.version for item in found] == ([2, None, 1] * 22)[:64]
    assert envelopes.resolve_many([Reference("default", "API_TOKEN", 9).text]) == [None]
    assert resolving.resolve("default", pattern) is None
    assert resolving.resolve("default", ([LATEST, one] * 32)) == ["v2", "v1"] * 32
    with CaptureQueriesContext(connection) as queries:
        with pytest.raises(InvalidInput):
            envelopes.resolve_many([LATEST] * 65)
        with pytest.raises(SecretUnavailable):
            resolving.resolve("default", [LATEST] * 65)
        assert envelopes.resolve_many([]) == []
    assert len(queries) == 0


def _reference(document: Any) -> str:
    text = document if isinstance(document, str) else canonical.ordered(document)
    return references.PREFIX + base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def test_secrets_11_vectors_of_references() -> None:
    assert LATEST == "qlsecret:v1:eyJwcm9qZWN0X2lkIjoiZGVmYXVsdCIsIm5hbWUiOiJBUElfVE9LRU4ifQ"
    assert Reference("default", "API_TOKEN", 3).text == (
        "qlsecret:v1:eyJwcm9qZWN0X2lkIjoiZGVmYXVsdCIsIm5hbWUiOiJBUElfVE9LRU4iLCJ2ZXJzaW9uIjozfQ"
    )
    for made in (
        Reference("default", "API_TOKEN", 3),
        Reference("p", "中文"),
        Reference("p", "a", 2**31 - 1),
    ):
        assert references.parse(made.text) == made


@pytest.mark.parametrize(
    "text",
    [
        _reference({"project_id": "default", "name": "A", "more": 1}),
        LATEST + "=",
        LATEST + "A",
        _reference({"name": "API_TOKEN", "project_id": "default"}),
        _reference({"project_id": "default", "version": 3, "name": "A"}),
        _reference('{"project_id": "default","name":"A"}'),
        _reference({"project_id": "default", "name": "A", "version": None}),
        _reference({"project_id": "default", "name": "A", "version": 0}),
        _reference({"project_id": "default", "name": "A", "version": True}),
        _reference({"project_id": "default", "name": "A", "version": 3.0}),
        _reference({"project_id": "default", "name": ""}),
        _reference({"project_id": "default", "name": "a\nb"}),
        _reference({"project_id": "default", "name": 7}),
        _reference({"project_id": "default"}),
        _reference(["default", "A"]),
        _reference("not json"),
        LATEST.replace("v1", "v2"),
        LATEST.replace("qlsecret", "QLSECRET"),
        references.PREFIX,
        references.PREFIX + "*",
        (_reference({"project_id": "default", "name": "A" * 128}) + "x" * 512)[:513],
    ],
)
def test_secrets_11_refused_references(text: str) -> None:
    with pytest.raises(InvalidInput):
        references.parse(text)


@pytest.mark.django_db
def test_secrets_11_a_name_too_long_for_its_reference(grant: Grant) -> None:
    with pytest.raises(InvalidInput):
        Reference("p" * 128, '"' * 128)
    with pytest.raises(InvalidInput):
        Reference("default", "中" * 128)


@pytest.mark.django_db
def test_secrets_12_who_may() -> None:
    body = {"value": "v1", "expected_version": 0, "mutation_id": "m1"}
    for role in ("viewer", "operator"):
        api = people.api(people.member(role))
        assert api("GET", "projects/default/secrets").status_code == 403
        assert api("PUT", "projects/default/secrets/API_TOKEN", body).status_code == 403
        assert (
            api("POST", "projects/default/secrets/API_TOKEN/disable", {"mutation_id": "d"}).status_code == 403
        )
    api = people.api(people.member("admin"))
    assert api("PUT", "projects/default/secrets/API_TOKEN", body).status_code == 201
    for answer in (
        api("PUT", "projects/default/secrets/API_TOKEN", body),
        api("GET", "projects/default/secrets"),
        api("GET", "projects/default/audit"),
        api("PUT", "projects/default/secrets/API_TOKEN", {**body, "value": "other"}),
    ):
        assert "v1" not in answer.content.decode().replace("qlsecret:v1", "").replace("/v1", "")
    assert api("GET", "projects/default/secrets/API_TOKEN").status_code in (404, 405)
    with pytest.raises(Forbidden):
        services.put(
            Grant.system("default", "secret.use", "spec"), "A", "x", mutation_id="m", expected_version=0
        )


def _crash(name: str) -> Callable[..., Any]:
    def fail(*_args: Any, **_options: Any) -> Any:
        raise RuntimeError(name)

    return fail


@pytest.mark.parametrize("point", ["require", "record"])
def test_secrets_crash_before_the_commit_leaves_nothing(
    seeded: None, grant: Grant, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """§11: what did not commit is not there, and the same call does it then."""
    with monkeypatch.context() as patch:
        patch.setattr(keyring if point == "require" else services.audit, point, _crash(point))
        with pytest.raises(RuntimeError):
            put(grant, "v1", "m1", 0)
    assert not SecretEnvelope.objects.exists()
    assert put(grant, "v1", "m1", 0).status == "inserted"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("column", "value"),
    [("nonce", b"x" * 11), ("auth_tag", b"x" * 17), ("ciphertext", b"x" * 65_537), ("algorithm", "none"),
     ("version", 0), ("key_id", ""), ("secret_name", ""), ("created_at", datetime(1969, 12, 31, tzinfo=UTC))],
)  # fmt: skip
def test_secrets_no_rule_can_be_broken_in_the_database(grant: Grant, column: str, value: Any) -> None:
    """§3.1: constraints, and a trigger against every change, on both engines."""
    from django.db import DatabaseError, transaction

    put(grant, "v1", "m1", 0)
    row = SecretEnvelope.objects.get()
    for statement in (
        lambda: SecretEnvelope.objects.filter(pk=row.pk).update(**{column: value}),
        lambda: SecretEnvelope.objects.filter(pk=row.pk).update(mutation_id="other"),
        lambda: SecretEnvelope.objects.filter(pk=row.pk)._raw_delete("default"),
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            statement()
    fresh = {
        field.attname: getattr(row, field.attname)
        for field in SecretEnvelope._meta.concrete_fields
        if field.attname != "id"
    }
    fresh |= {"secret_name": "OTHER", column: value}
    with pytest.raises(DatabaseError), transaction.atomic():
        SecretEnvelope.objects.create(**fresh)
