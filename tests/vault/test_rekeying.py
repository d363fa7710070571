"""Moving everything to another key, ended at any moment, and retiring keys (secrets §3.3, §13.1, upper-floors §2)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time as clocks
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from apps.access.factors import codes
from apps.audit.models import AuditEntry
from apps.projects.policy import Grant
from apps.vault import envelopes, keyring, rekeying, resolving, sealing, services
from apps.vault.errors import KeyInUse, KeyUnknown, SecretUnavailable
from apps.vault.models import SealedPayload, SecretEnvelope
from apps.vault.references import Reference
from tests.conftest import Time
from tests.runs import kit

ROOT = Path(__file__).resolve().parents[2]
MANAGE = Grant.system("default", "secret.manage", "tests")


def put(name: str, value: str, expected: int = 0) -> None:
    services.put(MANAGE, name, value, mutation_id=f"m{expected}", expected_version=expected)


def value(name: str) -> str:
    found = resolving.resolve("default", [Reference("default", name).text])
    assert found is not None
    return found[0]


def move(limit: int = rekeying.BATCH) -> int:
    return sum(batch.moved for _holder, batch in rekeying.move_all(limit))


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("keyring", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_every_registered_holder_is_moved_and_asked(seal: Any, key: str) -> None:
    """Inputs of runs, keys of second factors and signatures, secrets: whatever seals anything."""
    from tests import people

    assert [holder.name for holder in rekeying.holders()] == ["payloads", "secrets"]
    assert {"run.input", "run.output", "second-factor", "trigger.signing-key"} <= set(sealing.purposes())
    ann = people.account()
    codes.begin_code_app(ann, "here")
    run_ = kit.run_of(kit.task(), input={"told": "to nobody"})
    put("one", "v1")
    put("one", "v2", 1)
    put("two", "w1")
    new = keyring.rotate()
    assert rekeying.uses() == {key: rekeying.Use(current=4, replaced=1), new: rekeying.Use()}
    assert move() == 4
    assert rekeying.uses() == {key: rekeying.Use(0, 3), new: rekeying.Use(4, 0)}
    assert move() == 0
    assert (value("one"), value("two")) == ("v2", "w1")
    assert codes.pending_code_app(ann, "here") is not None
    from apps.runs import payloads

    assert payloads.open_input(run_).input == {"told": "to nobody"}
    newest = envelopes.current_version("default", "one")
    moved = SecretEnvelope.objects.get(secret_name="one", version=newest)
    assert (newest, moved.key_id) == (3, new)
    # On record with the project, without a value; and a person's next version goes on from there.
    entry = AuditEntry.objects.filter(action="secret.resealed", subject_id="one").get()
    assert entry.metadata == {"name": "one", "version": 3, "mutation_id": moved.mutation_id}
    put("one", "v4", 3)
    assert value("one") == "v4"


@pytest.mark.django_db
def test_batches_are_bounded_and_go_on(key: str) -> None:
    for number in range(5):
        put(f"s{number}", f"v{number}")
    keyring.rotate()
    found = [batch for holder, batch in rekeying.move_all(2) if holder == "secrets"]
    assert [(batch.moved, batch.after is None) for batch in found] == [(2, False), (2, False), (1, True)]
    assert [value(f"s{number}") for number in range(5)] == [f"v{number}" for number in range(5)]


@pytest.mark.django_db
def test_what_cannot_be_opened_stays_and_is_told(seal: Any, key: str, key_path: Path) -> None:
    row, other = seal("a"), seal("b")
    put("one", "v1")
    put("two", "v2")
    SealedPayload.objects.filter(pk=row.pk).update(ciphertext=other.ciphertext)
    # Before it was sealed the row was damaged: another project's value was copied here.
    good = SecretEnvelope.objects.get(secret_name="one")
    SecretEnvelope.objects.create(
        project_id="default", secret_name="three", version=1, mutation_id="m0", key_id=good.key_id,
        algorithm=good.algorithm, nonce=good.nonce, ciphertext=good.ciphertext, auth_tag=good.auth_tag,
        created_at=good.created_at,
    )  # fmt: skip
    keyring.rotate()
    with pytest.raises(CommandError, match=r"^2 "):
        run("reseal", "--batch", "1")
    assert (value("one"), value("two")) == ("v1", "v2")
    assert rekeying.uses()[key] == rekeying.Use(current=2, replaced=2)


@pytest.mark.django_db
def test_retiring_asks_everybody(seal: Any, key: str) -> None:
    put("one", "v1")
    row = seal("x")
    new = keyring.rotate()
    for code in ("key_in_use", "2; replaced versions of secrets: 0"):
        with pytest.raises(CommandError, match=code):
            run("retire", key)
    SealedPayload.objects.filter(pk=row.pk).update(purpose="gone.purpose")  # nobody registers it any more
    move()
    assert rekeying.uses()[key] == rekeying.Use(current=0, replaced=1)
    with pytest.raises(KeyInUse):
        rekeying.retire_key(key)
    # Nothing is left to re-seal: what is said is why the key stays, and what it costs to retire it.
    with pytest.raises(
        CommandError, match=r"^key_in_use: Values that count: 0; .*: 1\. Versions .*--give-up-replaced"
    ):
        run("retire", key)
    for action in ("status", "reseal"):
        assert "--give-up-replaced" in run(action)
    with keyring.opened() as keys:
        assert keys.resolve(key) is not None
    run("retire", key, "--give-up-replaced")
    assert "--give-up-replaced" not in run("status")
    with keyring.opened() as keys:
        assert set(keys.keys) == {new}
    assert value("one") == "v1"
    with pytest.raises(SecretUnavailable):
        resolving.resolve("default", [Reference("default", "one", 1).text])
    with pytest.raises(KeyUnknown):
        rekeying.retire_key(key)
    entry = AuditEntry.objects.get(action="keyring.key_retired")
    assert (entry.subject_id, entry.metadata) == (key, {"given_up": 1})


@pytest.mark.django_db
def test_a_purpose_nobody_knows_any_more_still_holds_its_key(seal: Any, key: str) -> None:
    seal("x", purpose="test.other")
    keyring.rotate()
    sealing._purposes.discard("test.other")
    assert move() == 0
    with pytest.raises(KeyInUse):
        rekeying.retire_key(key)
    with pytest.raises(KeyInUse):
        rekeying.retire_key(key, give_up_replaced=True)


@pytest.mark.django_db
def test_a_holder_is_registered_once() -> None:
    (first, _second) = rekeying.holders()
    rekeying.register(first)
    with pytest.raises(ValueError, match="twice"):
        rekeying.register(rekeying.Holder(first.name, first.move, dict, "t"))


@pytest.mark.django_db
def test_a_secret_set_in_between_is_left_alone(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sets a secret between the look and the append has used the key of that moment."""
    put("one", "v1")
    keyring.rotate()
    append = envelopes.append
    seen = []

    def meanwhile(expected: int, envelope: envelopes.Envelope) -> Any:
        if not seen:
            seen.append(envelope)
            put("one", "v2", 1)
        return append(expected, envelope)

    monkeypatch.setattr(envelopes, "append", meanwhile)
    assert move() == 0
    assert value("one") == "v2"


def test_two_at_once_move_each_value_once(seeded: None, key: str) -> None:
    for number in range(30):
        put(f"s{number:02}", f"v{number}")
    keyring.rotate()
    barrier = threading.Barrier(3)
    moved: list[int] = []

    def work() -> None:
        try:
            barrier.wait(10)
            moved.append(move(4))
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(moved) == 30
    assert SecretEnvelope.objects.count() == 60
    assert [value(f"s{number:02}") for number in range(30)] == [f"v{number}" for number in range(30)]


def test_retiring_waits_for_writers_and_stops_those_that_come_late(seeded: None, key: str) -> None:
    """Neither a value that is on its way in nor one that comes after is left without its key."""
    keyring.rotate()
    with keyring.opened() as keys:
        old = keys.resolve(key)
        assert old is not None
        loser = envelopes.seal(
            bytearray(b"v"),
            old,
            project_id="default",
            name="late",
            version=1,
            mutation_id="m",
            created_at=_now(),
        )
        failures: list[BaseException] = []

        def retire() -> None:
            try:
                rekeying.retire_key(key)
            except BaseException as error:
                failures.append(error)
            finally:
                connection.close()

        thread = threading.Thread(target=retire)
        if connection.vendor == "postgresql":
            with transaction.atomic():
                envelopes.append(0, loser)
                thread.start()
                thread.join(0.5)
                assert thread.is_alive(), "it waits until the writer has ended"
            thread.join(30)
            assert isinstance(failures[0], KeyInUse)
        else:
            thread.start()
            thread.join(30)
            assert not failures
            with pytest.raises(SecretUnavailable):
                services._append(MANAGE, "", 0, loser)
            assert not SecretEnvelope.objects.exists()


def _now() -> Any:
    from apps.core import clock

    return clock.now()


@pytest.mark.django_db
def test_a_writer_whose_key_was_retired_stores_nothing(key: str, key_path: Path) -> None:
    stale = key_path.read_bytes()
    with keyring.opened() as keys:
        active = keys.active()
        late = envelopes.seal(
            bytearray(b"v"),
            active,
            project_id="default",
            name="late",
            version=1,
            mutation_id="m",
            created_at=_now(),
        )
    keyring.rotate()
    rekeying.retire_key(key)
    with pytest.raises(SecretUnavailable):
        services._append(MANAGE, "", 0, late)
    assert key_path.read_bytes() != stale


def test_killed_in_the_middle_and_begun_again(seeded: None, tmp_path: Path, settings: Any) -> None:
    """`keyring reseal` is killed with -9 while it works, twice; a third run moves what is left, and nothing is lost."""
    settings.HOME, settings.KEYRING_PATH = tmp_path, tmp_path / "keyring.json"
    (old,) = [keyring.create()]
    for number in range(60):
        put(f"s{number:02}", f"v{number}")
    rows = [
        sealing.seal(
            "run.input", project_id="default", holder=("run", str(number)), value=number, schema_id="s"
        )
        for number in range(300)
    ]
    new = keyring.rotate()
    counts = []
    for killed in (True, True, False):
        process = _reseal(tmp_path)
        before = _moved(new)
        while killed and process.poll() is None and _moved(new) < before + 5:
            clocks.sleep(0.005)
        if killed:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(120)
        counts.append(_moved(new))
    assert process.returncode == 0, process.stderr
    assert 5 <= counts[0] < 360, "it was killed on the way"
    assert counts[-1] == 360
    assert rekeying.uses()[old] == rekeying.Use(current=0, replaced=60)
    assert [value(f"s{number:02}") for number in range(60)] == [f"v{number}" for number in range(60)]
    for number, row in enumerate(rows):
        opened = sealing.unseal(row.pk, "run.input", project_id="default", holder=("run", str(number)))
        assert opened == number
    assert SecretEnvelope.objects.count() == 120


def _moved(key_id: str) -> int:
    with keyring.opened() as keys:
        key = keys.resolve(key_id)
        assert key is not None
        subkey = sealing._derive(key, "run.input").id
    return (
        SealedPayload.objects.filter(key_id=subkey).count()
        + SecretEnvelope.objects.filter(key_id=key_id).count()
    )


def _reseal(home: Path) -> subprocess.Popen[bytes]:
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("QINGLONG_")},
        "DJANGO_SETTINGS_MODULE": "tests.session_settings",
        "TEST_DATABASE": str(connection.settings_dict["NAME"]),
        "QINGLONG_HOME": str(home),
    }
    return subprocess.Popen(
        [sys.executable, "manage.py", "keyring", "reseal", "--batch", "5"], cwd=ROOT, env=env,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.django_db
def test_time_of_the_first_setting_stays(key: str, time: Time) -> None:
    put("one", "v1")
    keyring.rotate()
    time.advance(1_000)
    move()
    first, second = SecretEnvelope.objects.order_by("version")
    assert (second.created_at - first.created_at).total_seconds() == 1
    assert services.put(MANAGE, "one", "v1", mutation_id="m0", expected_version=0).status == "existing"
