"""projects-and-identity.md §14, scenarios 34–38, through a provider over real HTTP."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from apps.access.models import User
from apps.access.oidc import metadata
from apps.identity.models import IdentityAuthenticationBinding, IdentitySubject
from apps.identity.services import set_subject_status
from apps.projects.models import ProjectOwnerBootstrapChallenge, ProjectRoleBinding
from tests.access.provider import Hostile, running
from tests.access.single_sign_on import BASE, Browser, code_of, path_of, provider, switched_on
from tests.people import ROOT, give, subject

pytestmark = pytest.mark.django_db


@pytest.fixture
def there(settings: Any) -> Iterator[Hostile]:
    metadata.forget()
    with running() as found:
        settings.BASE_URL = BASE
        settings.SINGLE_SIGN_ON = switched_on(provider(found))
        yield found


def who(there: Hostile, person: str, **claims: str) -> str:
    """The subject that a person of the provider signs in as."""
    there.person, there.claims = person, claims
    browser = Browser()
    assert path_of(browser.sign_in(there)) == "/panel/"
    return str(browser.me["subject"]["id"])


def test_projects_34_oidc_match(there: Hostile, settings: Any) -> None:
    ann = who(there, "1001", email="team@example.org", preferred_username="ann")
    bob = who(there, "1002", email="team@example.org", preferred_username="bob")
    assert ann != bob
    assert who(there, "1001", email="ann@elsewhere.example", preferred_username="renamed") == ann
    assert IdentitySubject.objects.exclude(pk="usr_legacy_primary").count() == 2
    assert IdentityAuthenticationBinding.objects.filter(provider="oidc:main").count() == 2
    assert not ProjectRoleBinding.objects.exists()
    settings.SINGLE_SIGN_ON = switched_on(provider(there, provision=False))
    there.person = "1003"
    assert code_of(Browser().sign_in(there)) == "oidc_no_account"
    assert User.objects.count() == 2 and IdentitySubject.objects.count() == 3


def test_projects_35_oidc_subject_encoding(there: Hostile) -> None:
    sub = "auth0|5f7c"
    first = who(there, sub)
    stored = IdentityAuthenticationBinding.objects.get(provider="oidc:main").provider_subject
    assert stored == "sha256:" + hashlib.sha256(f"{there.issuer}\0{sub}".encode()).hexdigest()
    assert who(there, sub) == first
    pretended = who(there, stored)
    assert pretended != first, "a `sub` that looks like a digest is digested too"


def test_projects_36_immediate_disable(there: Hostile) -> None:
    browser = Browser()
    browser.sign_in(there)
    user = User.objects.get()
    give(user, "viewer")
    assert browser.get("/api/v3/projects/default").status_code == 200
    set_subject_status(user.subject_id, 1, "disabled", actor=ROOT, origin="tests")
    assert browser.get("/api/v3/projects/default").status_code == 401
    assert code_of(Browser().sign_in(there)) == "oidc_no_account"
    set_subject_status(user.subject_id, 2, "active", actor=ROOT, origin="tests")
    again = Browser()
    again.sign_in(there)
    assert again.get("/api/v3/projects/default").status_code == 200
    assert ProjectRoleBinding.objects.filter(subject_id=subject(user).id).count() == 1


def test_projects_37_strong_assurance_comes_from_the_list(there: Hostile, settings: Any) -> None:
    settings.SINGLE_SIGN_ON = switched_on(provider(there, multi_factor=frozenset({"urn:mfa"})))
    for acr, assurance in (("urn:pwd", "single_factor"), ("urn:mfa", "multi_factor")):
        there.claims = {"acr": acr}
        browser = Browser()
        browser.sign_in(there)
        assert browser.me["assurance"] == assurance


def test_projects_38_no_sign_in_issues_a_challenge(there: Hostile) -> None:
    browser = Browser()
    for query in ({}, {"code": "x"}, {"issue": "1"}):
        browser.get("/oidc/callback/", query)
        browser.post("/oidc/back-channel-logout/", query)
    browser.sign_in(there)
    browser.post("/oidc/link/main/")
    assert not ProjectOwnerBootstrapChallenge.objects.exists() and not ProjectRoleBinding.objects.exists()
