"""The door: what it tells, what it counts, whom it locks out, and how much work it can be made to do."""

from __future__ import annotations

import statistics
import threading
import time as wall
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext, override_settings
from django.utils import timezone

from apps.access import hashing, locks
from apps.access.errors import TooManyAttempts
from apps.access.models import SignIn
from apps.audit.models import AuditEntry
from apps.identity.services import set_subject_status
from qinglong.environment import _networks
from qinglong.proxy import Proxied
from tests.conftest import Time
from tests.people import PASSWORD, ROOT, account, member, signed_in

pytestmark = pytest.mark.django_db
LOGIN = "/panel/login/"


def guess(name: str = "ann", password: str = "wrong", address: str = "203.0.113.7", **headers: str) -> int:
    client = Client(REMOTE_ADDR=address, headers=headers)
    return int(client.post(LOGIN, {"username": name, "password": password}).status_code)


def test_five_failures_lock_the_pair_of_name_and_address() -> None:
    account("ann"), account("bob")
    assert [guess() for _ in range(5)] == [401] * 5
    assert guess(password=PASSWORD) == guess("ANN", PASSWORD) == 429
    assert guess("bob", PASSWORD) == 302, "others behind the address come in"
    assert guess(password=PASSWORD, address="203.0.113.8") == 302, "the person comes in from elsewhere"


def test_a_name_that_does_not_exist_is_locked_alike() -> None:
    assert [guess("nobody") for _ in range(6)] == [401] * 5 + [429]
    assert not AuditEntry.objects.filter(action="sign_in.locked").exists()


def test_the_lock_ends_five_minutes_after_the_failure_and_guesses_do_not_prolong_it(time: Time) -> None:
    account("ann")
    for _ in range(5):
        guess()
    before = AccessAttempt.objects.get().attempt_time
    for _ in range(3):
        assert guess() == 429
    assert AccessAttempt.objects.get().attempt_time == before
    AccessAttempt.objects.update(attempt_time=timezone.now() - settings.AXES_COOLOFF_TIME)
    time.advance(locks.KNOWN_FOR_MS)
    assert guess(password=PASSWORD) == 302
    assert not AccessAttempt.objects.exists(), "coming in forgets the failures"


def test_a_lock_is_in_the_audit_trail_once() -> None:
    user = account("ann")
    for _ in range(8):
        guess()
    entry = AuditEntry.objects.get(action="sign_in.locked")
    assert (entry.subject_id, entry.metadata) == (user.subject_id, {"address": "203.0.113.7"})


def test_the_count_knows_neither_names_nor_passwords_nor_browsers() -> None:
    account("ann")
    guess("ann", "a real secret", **{"User-Agent": "x"})
    guess("my password 42", "w", **{"User-Agent": "y"})
    stored = str(list(AccessAttempt.objects.values()))
    assert "ann" not in stored and "secret" not in stored and "my password" not in stored
    for number in range(4):
        guess(**{"User-Agent": f"browser {number}"})
    assert guess(**{"User-Agent": "another"}) == 429


def test_one_network_of_ipv6_is_one_client() -> None:
    account("ann")
    assert [guess(address=f"2001:db8:1:2::{number}") for number in range(6)] == [401] * 5 + [429]
    assert guess(address="2001:db8:1:3::1", password=PASSWORD) == 302
    for _ in range(5):
        guess(address="::ffff:198.51.100.1")
    assert guess(address="198.51.100.1") == 429


class Through:
    """The product's own WSGI entry: what proxies say counts only from trusted ones."""

    def __init__(self, trusted: str) -> None:
        self.seen: dict[str, Any] = {}
        self.application = Proxied(self._inner, "", _networks(trusted))

    def _inner(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        self.seen = environ
        return []

    def address(self, peer: str, told: str) -> str:
        self.application({"REMOTE_ADDR": peer, "HTTP_X_FORWARDED_FOR": told}, None)
        assert "HTTP_X_FORWARDED_FOR" not in self.seen
        return str(self.seen["REMOTE_ADDR"])


def test_a_forged_header_neither_escapes_the_lock_nor_locks_others() -> None:
    account("ann")
    direct = Through("10.0.0.1")
    told = [direct.address("203.0.113.7", f"198.51.100.{number}") for number in range(6)]
    assert [guess(address=address) for address in told] == [401] * 5 + [429]
    behind = Through("10.0.0.1")
    victim = behind.address("10.0.0.1", "198.51.100.1, 192.0.2.44")
    assert victim == "192.0.2.44", "of a list only what the proxy itself added counts"
    assert guess(address=victim, password=PASSWORD) == 302
    header = {"X-Forwarded-For": "192.0.2.99"}
    for _ in range(5):
        guess("bob", address="203.0.113.9", **header)
    assert guess("bob", address="203.0.113.9") == 429, "a header that nobody vouches for is not looked at"


def test_behind_one_proxy_nobody_locks_out_everybody() -> None:
    people = [account(name) for name in ("ann", "bob", "cid")]
    proxy = "10.0.0.1"
    for name in ("ann", "root", "admin", *(f"x{number}" for number in range(5))):
        for _ in range(6):
            guess(name, address=proxy)
    assert [guess(user.username, PASSWORD, proxy) for user in people] == [429, 302, 302]


def test_every_process_knows_the_failures() -> None:
    """They are rows: nothing of them is in this process, which clears whatever it could have kept."""
    from django.core.cache import cache

    account("ann")
    for _ in range(5):
        guess()
    cache.clear()
    assert guess(password=PASSWORD) == 429


@override_settings(PASSWORD_HASHERS=["apps.access.hashing.Argon2"])
def test_unknown_wrong_and_disabled_cost_the_same() -> None:
    """The work is counted, not the clock: one Argon2 hash with the same cost each."""
    from apps.access.services.accounts import provision_person

    made = [account("ann"), account("bob")]
    provision_person("cid", "oidc:corp", "s1", origin="tests")
    set_subject_status(made[1].subject_id, 1, "disabled", actor=ROOT, origin="tests")
    from django.contrib.auth.hashers import make_password

    for user in made:
        type(user).objects.filter(pk=user.pk).update(password=make_password(PASSWORD))
    costs: dict[str, float] = {}
    bodies = set()
    for name, password in (("ann", "wrong"), ("nobody", "wrong"), ("bob", PASSWORD), ("cid", "wrong")):
        spent = []
        for number in range(3):
            client = Client(REMOTE_ADDR=f"203.0.113.{number}")
            began = wall.process_time()
            answer = client.post(LOGIN, {"username": name, "password": password})
            spent.append(wall.process_time() - began)
            assert answer.status_code == 401
        html = answer.content.decode().replace(f'value="{name}"', "")
        bodies.add(html[html.index('role="alert"') : html.index("<form")])
        costs[name] = statistics.median(spent)
    assert len(bodies) == 1
    assert max(costs.values()) < 1.6 * min(costs.values()), costs


def test_passwords_wait_in_a_short_queue_that_one_client_cannot_fill() -> None:
    account("ann")
    with hashing.queue("a"), hashing.queue("a"):
        with pytest.raises(TooManyAttempts) as refused, hashing.queue("a"):
            pass
        assert refused.value.extra["retry_after"] == 1
        assert guess(password=PASSWORD) == 302, "there is room for somebody else"
        with hashing.queue("b"), CaptureQueriesContext(connection) as queries:
            assert guess(password=PASSWORD) == 429
        assert not queries.captured_queries, "turning away costs no query"
    assert guess(password=PASSWORD) == 302


@override_settings(PASSWORD_HASHERS=["apps.access.hashing.Argon2"])
def test_one_hash_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once: list[int] = []
    running = 0
    real = hashing.Argon2PasswordHasher.encode

    def encode(self: Any, password: str, salt: str) -> str:
        nonlocal running
        running += 1
        at_once.append(running)
        try:
            return str(real(self, password, salt))
        finally:
            running -= 1

    monkeypatch.setattr(hashing.Argon2PasswordHasher, "encode", encode)
    monkeypatch.setattr(hashing, "WAIT_S", 120.0)
    threads = [
        threading.Thread(target=lambda: hashing.Argon2().encode("password", "saltsaltsalt")) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert at_once == [1, 1, 1, 1]


def test_a_new_password_ends_the_other_sessions(time: Time) -> None:
    user = member("viewer", "ann")
    here, other = signed_in(user), signed_in(user)
    page = "/panel/security/password/"
    answer = here.post(page, {"current": "wrong", "password": "another long phrase 9"})
    assert answer.status_code == 401 and SignIn.objects.count() == 2
    answer = here.post(page, {"current": PASSWORD, "password": "short"})
    assert answer.status_code == 400 and SignIn.objects.count() == 2
    answer = here.post(page, {"current": PASSWORD, "password": "another long phrase 9"})
    assert answer.status_code == 302
    assert here.get("/api/v3/me").status_code == 200 and other.get("/api/v3/me").status_code == 401
    assert guess("ann", PASSWORD) == 401 and guess("ann", "another long phrase 9") == 302
    assert AuditEntry.objects.filter(action="password.changed").count() == 1


def test_the_console_gives_a_new_password_and_ends_every_session(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.core.management import CommandError, call_command

    from apps.access.factors import codes
    from apps.access.models import CodeApp
    from apps.vault import keyring

    keyring.ensure()
    user = member("viewer", "ann")
    session = signed_in(user)
    codes.begin_code_app(user, "panel.example")
    CodeApp.objects.update(confirmed=True)
    monkeypatch.setenv("NEW", "another long phrase 9")
    call_command("changepassword", "ann", password_env="NEW")
    assert session.get("/api/v3/me").status_code == 401 and codes.has_second_factor(user)
    call_command("changepassword", "ann", "--forget-second-factor", password_env="NEW")
    assert not codes.has_second_factor(user)
    assert guess("ann", PASSWORD) == 401 and guess("ann", "another long phrase 9") == 302
    entries = AuditEntry.objects.filter(action="password.reset").order_by("sequence")
    assert [entry.metadata["factors_forgotten"] for entry in entries] == [False, True]
    monkeypatch.setenv("NEW", "short")
    for arguments in (["ann"], ["nobody"]):
        with pytest.raises(CommandError):
            call_command("changepassword", *arguments, password_env="NEW")


def test_a_person_of_a_provider_gets_a_password_from_the_console() -> None:
    from apps.access.services.accounts import provision_person
    from apps.access.services.recovery import reset_password

    user = provision_person("cid", "oidc:corp", "s1", origin="tests")
    assert guess("cid", PASSWORD) == 401
    reset_password(user, PASSWORD)
    assert guess("cid", PASSWORD) == 302
