"""Acceptance scenarios 18–27 of projects-and-identity.md: how the first owner comes in."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection
from pytest_django import DjangoAssertNumQueries

from apps.audit.models import AuditEntry
from apps.core import clock
from apps.core.errors import InvalidInput
from apps.identity.principals import Assurance, PolicySubject, PrincipalExpired
from apps.projects import errors
from apps.projects.models import Project, ProjectOwnerBootstrapChallenge, ProjectRoleBinding
from apps.projects.services import bootstrap, claim_owner_bootstrap, console_issuer, issue_owner_bootstrap
from tests.conftest import Time
from tests.people import give, principal

U1 = PolicySubject("user", "u1")
U2 = PolicySubject("user", "u2")
TOKEN = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
CHALLENGE = "AAECAwQFBgcICQoLDA0ODw"


def issue(**options: Any) -> bootstrap.Issued:
    return issue_owner_bootstrap("default", console_issuer(), **options)


def claim(issued: bootstrap.Issued, who: PolicySubject = U1) -> bootstrap.Claim:
    return claim_owner_bootstrap("default", issued.challenge_id, issued.token, principal(who))


@pytest.mark.django_db
@pytest.mark.parametrize("ttl_ms", [59_999, 1_800_001, 0, True, 600_000.5])
def test_projects_18_issue_limits_refused(ttl_ms: Any) -> None:
    with pytest.raises(InvalidInput):
        issue(ttl_ms=ttl_ms)


@pytest.mark.django_db
def test_projects_18_issue_limits(time: Time) -> None:
    for options, life in (({"ttl_ms": 60_000}, 60_000), ({"ttl_ms": 1_800_000}, 1_800_000), ({}, 600_000)):
        issued = issue(**options)
        assert clock.to_ms(issued.expires_at) == time.ms + life
        time.advance(life)


@pytest.mark.django_db
def test_projects_18_issuers_refused(time: Time, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    right = console_issuer()
    others = [
        replace(right, assurance=Assurance.MULTI_FACTOR),
        replace(right, subject=PolicySubject("system", "other")),
        replace(right, subject=PolicySubject("user", "owner-bootstrap")),
    ]
    with django_assert_num_queries(0):
        for issuer in others:
            with pytest.raises(errors.BootstrapUnauthorized):
                issue_owner_bootstrap("default", issuer)
        time.advance(60_000)
        with pytest.raises(PrincipalExpired):
            issue_owner_bootstrap("default", right)


@pytest.mark.django_db
def test_projects_19_token_never_stored(caplog: pytest.LogCaptureFixture) -> None:
    assert bootstrap.token_digest("default", CHALLENGE, TOKEN) == (
        "7474fccc6d98709062a43a4fe619813206b587650f49f737b06733498ec32cb7"
    )
    issued = issue()
    assert (len(issued.challenge_id), len(issued.token)) == (22, 43)
    row = ProjectOwnerBootstrapChallenge.objects.values().get()
    entries = list(AuditEntry.objects.values())
    assert entries
    assert issued.token not in f"{row}{entries}{caplog.text}{issued!r}"
    assert row["token_digest"] == bootstrap.token_digest("default", issued.challenge_id, issued.token)


@pytest.mark.django_db
def test_projects_20_second_issue(time: Time) -> None:
    first = issue()
    with pytest.raises(errors.BootstrapChallengeActive):
        issue()
    time.ms = clock.to_ms(first.expires_at) - 1
    with pytest.raises(errors.BootstrapChallengeActive):
        issue()
    time.advance(1)
    issue()
    assert list(
        ProjectOwnerBootstrapChallenge.objects.order_by("version").values_list("version", flat=True)
    ) == [
        1,
        2,
    ]
    with pytest.raises(errors.BootstrapClaimRejected):
        claim(first)


@pytest.mark.django_db
def test_projects_21_claim(time: Time) -> None:
    issued = issue()
    time.ms = clock.to_ms(issued.expires_at) - 1
    claimed = claim(issued)
    assert claimed.outcome == "claimed"
    owner = claimed.binding
    assert (owner.version, owner.role, owner.subject) == (1, "owner", U1)
    assert owner.mutation_id == f"owner-bootstrap:{issued.challenge_id}"
    assert owner.changed_by == PolicySubject("system", "owner-bootstrap")
    assert clock.to_ms(owner.created_at) == time.ms


@pytest.mark.django_db
def test_projects_21_claim_at_expiry(time: Time) -> None:
    issued = issue()
    time.ms = clock.to_ms(issued.expires_at)
    with pytest.raises(errors.BootstrapClaimRejected):
        claim(issued)
    assert not ProjectRoleBinding.objects.exists()


@pytest.mark.django_db
def test_projects_22_claim_replay(time: Time) -> None:
    issued = issue()
    first = claim(issued)
    time.advance(3_600_000)
    assert claim(issued) == bootstrap.Claim("existing", first.binding)
    with pytest.raises(errors.BootstrapClaimRejected):
        claim(issued, U2)


@pytest.mark.django_db(transaction=True)
def test_projects_23_claim_race(seeded: None) -> None:
    issued = issue()
    ready = threading.Barrier(2)
    outcomes: list[str] = []

    def take(who: PolicySubject) -> None:
        try:
            ready.wait()
            outcomes.append(claim(issued, who).outcome)
        except errors.BootstrapClaimRejected:
            outcomes.append("rejected")
        finally:
            connection.close()

    threads = [threading.Thread(target=take, args=(who,)) for who in (U1, U2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["claimed", "rejected"]
    assert ProjectRoleBinding.objects.filter(role="owner").count() == 1


@pytest.mark.django_db
def test_projects_24_not_pristine(time: Time) -> None:
    issued = issue()
    give(U2, "viewer")
    give(U2, None, version=2)
    with pytest.raises(errors.BootstrapNotPristine):
        claim(issued)
    time.advance(600_000)
    with pytest.raises(errors.BootstrapNotPristine):
        issue()


@pytest.mark.django_db
def test_projects_25_atomicity(monkeypatch: pytest.MonkeyPatch) -> None:
    issued = issue()

    def fail(*args: Any) -> None:
        raise DatabaseError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "append_role_binding", fail)
        with pytest.raises(errors.BootstrapUnavailable):
            claim(issued)
    row = ProjectOwnerBootstrapChallenge.objects.get()
    assert (row.consumed_at, row.claimed_subject_type, row.claimed_subject_id) == (None, None, None)
    assert claim(issued).outcome == "claimed"


@pytest.mark.django_db
def test_projects_26_archived_or_missing_project() -> None:
    issued = issue()
    Project.objects.update(status="archived")
    with pytest.raises(errors.BootstrapProjectInactive):
        issue()
    with pytest.raises(errors.BootstrapProjectInactive):
        claim(issued)
    with pytest.raises(errors.BootstrapProjectNotFound):
        issue_owner_bootstrap("nope", console_issuer())
    with pytest.raises(errors.BootstrapProjectNotFound):
        claim_owner_bootstrap("nope", issued.challenge_id, issued.token, principal(U1))


@pytest.mark.django_db
def test_projects_27_non_user_claim(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    who = principal(PolicySubject("api_app", "a1"))
    with django_assert_num_queries(0), pytest.raises(errors.BootstrapUnauthorized):
        claim_owner_bootstrap("default", CHALLENGE, TOKEN, who)
    late = replace(who, subject=U1, expires_at=who.authenticated_at + timedelta(milliseconds=1))
    later = clock.now_ms() + 60_000
    with clock.fixed(lambda: later), pytest.raises(PrincipalExpired):
        claim_owner_bootstrap("default", CHALLENGE, TOKEN, late)
    for challenge_id, token in ((CHALLENGE + "\n", TOKEN), (CHALLENGE, TOKEN[1:]), (CHALLENGE, TOKEN + "=")):
        with pytest.raises(InvalidInput):
            claim_owner_bootstrap("default", challenge_id, token, principal(U1))
