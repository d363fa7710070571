"""The first account: through the file that `up` keeps, through the command, all or nothing."""

from __future__ import annotations

import io
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import translation

from apps.access import setup_file
from apps.access.models import ApiToken, User
from apps.access.services import setup_first_account
from apps.audit import queries as audit
from apps.core.errors import DomainError, InvalidInput
from apps.identity.models import IdentitySubject
from apps.identity.queries import resolve_authentication_subject
from apps.projects.errors import BootstrapClaimRejected, BootstrapNotPristine
from apps.projects.models import ProjectOwnerBootstrapChallenge, ProjectRoleBinding
from apps.projects.services import console_issuer, issue_owner_bootstrap
from tests.conftest import Time
from tests.people import PASSWORD, Api, member

FILE = Path(settings.RUN_DIR) / "setup"


@pytest.fixture(autouse=True)
def _no_file() -> Iterator[None]:
    setup_file.remove()
    yield
    setup_file.remove()


def command(*args: str) -> str:
    out = io.StringIO()
    call_command(*args, stdout=out)
    return out.getvalue()


def refused(*args: str) -> tuple[str, int]:
    with pytest.raises(CommandError) as error:
        command(*args)
    return str(error.value).partition(":")[0], error.value.returncode


@pytest.mark.django_db
def test_one_transaction_makes_all_of_it() -> None:
    text = setup_file.ensure()
    assert text is not None
    user = setup_first_account(*setup_file.split(text), "ann", PASSWORD)
    assert user.is_superuser and user.check_password(PASSWORD)
    subject = resolve_authentication_subject("local", str(user.id))
    assert subject is not None and subject.id == user.subject_id
    owner = ProjectRoleBinding.objects.get()
    assert (owner.role, owner.subject_id, owner.version) == ("owner", user.subject_id, 1)
    assert ProjectOwnerBootstrapChallenge.objects.get().claimed_subject_id == user.subject_id
    assert audit.verify("").valid and audit.verify("default").checked_through == 2
    assert setup_file.ensure() is None
    assert not FILE.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("broken", ["token", "name", "password"])
def test_a_refusal_leaves_nothing(broken: str) -> None:
    text = setup_file.ensure()
    assert text is not None
    challenge_id, token = setup_file.split(text)
    before = IdentitySubject.objects.count()
    with pytest.raises((BootstrapClaimRejected, InvalidInput)):
        setup_first_account(
            challenge_id,
            token[::-1] if broken == "token" else token,
            "a b" if broken == "name" else "ann",
            "short" if broken == "password" else PASSWORD,
        )
    assert not User.objects.exists() and not ProjectRoleBinding.objects.exists()
    assert IdentitySubject.objects.count() == before
    assert setup_first_account(challenge_id, token, "ann", PASSWORD).username == "ann"


@pytest.mark.django_db(transaction=True)
def test_two_at_once_make_one_owner(seeded: None) -> None:
    text = setup_file.ensure()
    assert text is not None
    ready = threading.Barrier(2)
    outcomes: list[str] = []

    def take(name: str) -> None:
        try:
            ready.wait()
            setup_first_account(*setup_file.split(text), name, PASSWORD)
            outcomes.append("owner")
        except DomainError as error:
            outcomes.append(error.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=take, args=(name,)) for name in ("ann", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The second is refused inside, or before its hash where the first was through by then.
    assert outcomes.count("owner") == 1
    assert set(outcomes) - {"owner"} <= {
        "project_owner_bootstrap_claim_rejected",
        "project_owner_bootstrap_project_not_pristine",
    }
    assert User.objects.count() == 1


@pytest.mark.django_db
def test_the_file_is_private_and_renewed(time: Time) -> None:
    text = setup_file.ensure()
    assert setup_file.ensure() == text == setup_file.read()
    assert stat.S_IMODE(FILE.stat().st_mode) == 0o600
    assert stat.S_IMODE(FILE.parent.stat().st_mode) == 0o700
    assert [path.name for path in FILE.parent.glob("*setup*")] == ["setup"]
    time.advance(600_000)
    assert setup_file.read() is None
    renewed = setup_file.ensure()
    assert renewed not in (None, text)
    FILE.write_text("nonsense")
    assert setup_file.read() is None
    # Its token is lost, so it is waited out: it is never shown again and never replaced early.
    assert setup_file.ensure() is None
    time.advance(600_000)
    assert setup_file.ensure() is not None


def test_text_of_another_shape_is_rejected() -> None:
    for text in ("", "x", "a" * 22 + "." + "b" * 42, "a" * 22 + "b" * 43, "a" * 22 + "." + "b" * 43 + ".c"):
        with pytest.raises(BootstrapClaimRejected):
            setup_file.split(text)


@pytest.mark.django_db
@pytest.mark.parametrize("kept", [True, False])
def test_the_command(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if kept:
        setup_file.ensure()
    monkeypatch.setenv("PW", PASSWORD)
    assert "ann" in command("setup", "--username", "ann", "--password-env", "PW")
    assert User.objects.get().is_superuser
    assert ProjectOwnerBootstrapChallenge.objects.count() == 1
    assert not FILE.exists()
    again = refused("setup", "--username", "bob", "--password-env", "PW")
    assert again == ("project_owner_bootstrap_project_not_pristine", 3)


@pytest.mark.django_db
def test_the_command_refuses_with_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PW", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert refused("setup", "--username", "ann", "--password-env", "PW") == ("password_missing", 2)
    assert refused("setup", "--username", "ann") == ("password_missing", 2)
    monkeypatch.setenv("PW", "short")
    assert refused("setup", "--username", "ann", "--password-env", "PW") == ("invalid", 2)
    # The challenge of a refused try is not lost: the next one may come at once.
    monkeypatch.setenv("PW", PASSWORD)
    assert refused("setup", "--username", "a b", "--password-env", "PW") == ("invalid", 2)
    assert "ann" in command("setup", "--username", "ann", "--password-env", "PW")


@pytest.mark.django_db
def test_no_challenge_once_somebody_had_a_role() -> None:
    member("viewer")
    assert setup_file.ensure() is None
    with pytest.raises(BootstrapNotPristine):
        issue_owner_bootstrap("default", console_issuer())


@pytest.mark.django_db
def test_create_token() -> None:
    member("owner", "ann")
    out = command("create_token", "--username", "ANN", "--name", "ci")
    secret = out.strip().splitlines()[-1].split()[-1]
    assert Api(secret)("GET", "me").json()["scopes"] == ["*"]
    with translation.override("zh-hans"):
        told = command("create_token", "--username", "ann", "--name", "zh")
    assert (
        "保存" in told and told.splitlines()[-1] == told.split()[-1] and told.split()[-1].startswith("ql3t_")
    )
    command(
        "create_token", "--username", "ann", "--name", "two", "--scopes", "run.read,run.start", "task.read"
    )
    assert ApiToken.objects.latest("created_at").scopes == ["run.read", "run.start", "task.read"]
    assert refused("create_token", "--username", "bob", "--name", "x") == ("account_not_found", 2)
    assert refused("create_token", "--username", "ann", "--name", "x", "--scopes", "all") == ("invalid", 2)


@pytest.mark.django_db
def test_strangers_learn_nothing_and_cost_nothing() -> None:
    text = setup_file.ensure()
    assert text is not None
    setup_first_account(*setup_file.split(text), "ann", PASSWORD)
    for name in ("ann", "bob"):
        with pytest.raises(BootstrapNotPristine):
            setup_first_account("a" * 22, "b" * 43, name, "short")
