"""An invitation's link and a provider: the new person signs in there and has what was promised."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from apps.access.models import Invitation, User
from apps.access.services import invite
from apps.audit.models import AuditEntry
from apps.identity.queries import bindings_of
from apps.projects.models import ProjectRoleBinding
from apps.projects.queries import roles_of
from tests.access.provider import Hostile
from tests.access.single_sign_on import Browser, code_of, path_of, provider, switched_on
from tests.access.test_invitations import code, roles
from tests.access.test_sign_in_races import at_once
from tests.people import account, give, grant, member, subject

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("patience")]


@pytest.fixture
def closed(there: Hostile, settings: Any) -> Hostile:
    """A provider that brings nobody in by itself."""
    settings.SINGLE_SIGN_ON = switched_on(provider(there, provision=False))
    return there


def to_provider(browser: Browser, secret: str, alias: str = "main") -> str:
    """Where the link's page sends the browser."""
    answer = browser.post(f"/invitation/{alias}/", {"secret": secret})
    assert answer.status_code == 200, answer.content.decode()
    return str(answer.headers["Refresh"]).partition("url=")[2]


def come_in(there: Hostile, secret: str, browser: Browser | None = None) -> Any:
    browser = browser or Browser()
    return browser.come_back(there.code(to_provider(browser, secret)))


def test_a_new_identity_comes_in_although_nobody_new_may(closed: Hostile) -> None:
    boss = member("owner", "boss")
    secret = invite(
        subject(boss), grant=grant(boss, "policy.manage"), role="admin", username="nina", origin="tests"
    ).secret
    assert code_of(Browser().sign_in(closed)) == "oidc_no_account"
    browser = Browser()
    assert path_of(come_in(closed, secret, browser)) == "/panel/"
    nina = User.objects.get(username="nina")
    assert browser.me["subject"]["id"] == nina.subject_id and roles("nina") == {"default": "admin"}
    assert [way.provider for way in bindings_of(nina.subject_id)] == ["oidc:main"]
    assert not nina.has_usable_password()
    entry = AuditEntry.objects.get(scope="", action="invitation.accepted")
    assert (entry.actor_id, entry.metadata["provider"]) == (nina.subject_id, "oidc:main")
    again = Browser()
    assert path_of(again.sign_in(closed)) == "/panel/" and again.me["subject"]["id"] == nina.subject_id


def test_the_link_is_in_no_cookie_and_in_no_address(closed: Hostile) -> None:
    secret = invite(subject(account("root", administrator=True)), origin="tests").secret
    browser = Browser()
    address = to_provider(browser, secret)
    kept = " ".join(morsel.value for morsel in browser.cookies.values())
    assert secret[5:] not in address and secret[5:] not in kept
    browser.come_back(closed.code(address))
    assert Invitation.objects.get().accepted_by_id == browser.me["subject"]["id"]


def test_what_was_promised_stands_beside_the_groups(there: Hostile, settings: Any) -> None:
    role_map = {"ops": {"default": "viewer"}}
    settings.SINGLE_SIGN_ON = switched_on(provider(there, role_map=role_map))
    there.claims = {"preferred_username": "ann", "groups": ["ops"]}
    boss = member("owner", "boss")
    secret = invite(subject(boss), grant=grant(boss, "policy.manage"), role="admin", origin="tests").secret
    assert path_of(come_in(there, secret)) == "/panel/"
    assert roles("ann") == {"default": "admin"}
    there.claims = {"preferred_username": "ann", "groups": []}
    Browser().sign_in(there)
    assert roles("ann") == {"default": "admin"}, "a person promised it, and a person takes it away"


def test_people_who_are_here_get_nothing_by_a_link(there: Hostile) -> None:
    """Neither a better role nor a worse one; the link stays open for whom it was meant."""
    Browser().sign_in(there)
    ann = User.objects.get(username="ann")
    give(ann, "owner")
    root = account("root", administrator=True)
    secret = invite(subject(root), administrator=True, origin="tests").secret
    answer = come_in(there, secret)
    assert (answer.status_code, code(answer)) == (409, "invitation_for_new_people")
    ann.refresh_from_db()
    assert not ann.is_superuser and [one.role for one in roles_of(subject(ann))] == ["owner"]
    refused = AuditEntry.objects.get(scope="", action="invitation.refused")
    assert refused.metadata["reason"] == "account_present"
    there.person = "another"
    assert path_of(come_in(there, secret)) == "/panel/"


def test_refusals_after_the_provider_have_their_page(closed: Hostile) -> None:
    boss = member("owner", "boss")
    made = [
        invite(subject(boss), grant=grant(boss, "policy.manage"), role="viewer", origin="tests")
        for _ in range(2)
    ]
    browsers = [Browser(), Browser()]
    sent = [
        closed.code(to_provider(browser, one.secret)) for browser, one in zip(browsers, made, strict=True)
    ]
    Invitation.objects.filter(pk=made[0].invitation.pk).update(revoked_at=made[0].invitation.created_at)
    give(boss, "viewer", version=2)
    answers = [browser.come_back(one) for browser, one in zip(browsers, sent, strict=True)]
    assert [code(answer) for answer in answers] == ["invitation_invalid", "invitation_not_backed"]
    assert [answer.status_code for answer in answers] == [404, 409]
    assert not User.objects.filter(username="ann").exists() and browsers[0].me is None


def test_a_bad_link_leads_to_no_provider(closed: Hostile) -> None:
    before = len(closed.asked)
    answer = Browser().post("/invitation/main/", {"secret": "ql3i_" + "x" * 43})
    assert (answer.status_code, code(answer)) == (404, "invitation_invalid")
    assert len(closed.asked) == before
    secret = invite(subject(account("root", administrator=True)), origin="tests").secret
    assert code_of(Browser().post("/invitation/none/", {"secret": secret})) == "oidc_provider_unknown"


def test_under_single_sign_on_only_the_provider_is_the_way(closed: Hostile, settings: Any) -> None:
    secret = invite(subject(account("root", administrator=True)), origin="tests").secret
    settings.SINGLE_SIGN_ON = switched_on(
        provider(closed, provision=False), required=True, break_glass="root"
    )
    page = Browser().post("/invitation/", {"secret": secret}).content.decode()
    assert 'name="password"' not in page and "/invitation/main/" in page
    browser = Browser()
    assert path_of(come_in(closed, secret, browser)) == "/panel/" and browser.me is not None


@pytest.mark.django_db(transaction=True)
def test_two_identities_with_one_link_at_once(seeded: None, closed: Hostile) -> None:
    root = account("root", administrator=True)
    for number in range(3):
        secret = invite(subject(root), administrator=True, origin="tests").secret
        browsers = [Browser(), Browser()]
        sent = [closed.code(to_provider(browser, secret)) for browser in browsers]
        # Each code stands for a person of its own.
        people = iter([f"p{number}-1", f"p{number}-2"])
        closed.alter = lambda claims, people=people: claims.update(sub=next(people))  # type: ignore[misc]
        answers = at_once(*(partial(tab.come_back, one) for tab, one in zip(browsers, sent, strict=True)))
        assert sorted(answer.status_code for answer in answers) == [302, 404]
        assert User.objects.filter(is_superuser=True).count() == 2 + number
    assert Invitation.objects.exclude(accepted_by=None).count() == 3


@pytest.mark.django_db(transaction=True)
def test_one_new_person_in_two_tabs_with_one_link(seeded: None, closed: Hostile) -> None:
    boss = member("owner", "boss")
    for number in range(3):
        closed.person, closed.claims = f"new-{number}", {"preferred_username": f"ann{number}"}
        secret = invite(
            subject(boss), grant=grant(boss, "policy.manage"), role="viewer", origin="tests"
        ).secret
        tabs = [Browser(), Browser()]
        sent = [closed.code(to_provider(tab, secret)) for tab in tabs]
        answers = at_once(*(partial(tab.come_back, one) for tab, one in zip(tabs, sent, strict=True)))
        assert [path_of(answer) for answer in answers] == ["/panel/"] * 2
        assert len({tab.me["subject"]["id"] for tab in tabs}) == 1
    assert ProjectRoleBinding.objects.filter(mutation_id__startswith="invitation:").count() == 3
