"""Signing in through a provider over real HTTP: tabs, ways back, accounts, and ways to sign in that are added."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from apps.access.models import ProviderSignIn, SignIn, User
from apps.access.oidc import flow as flows
from apps.audit.models import AuditEntry
from apps.identity.models import IdentityAuthenticationBinding, IdentitySubject
from apps.identity.queries import bindings_of
from tests.access.provider import SECRET, Hostile
from tests.access.single_sign_on import BASE, Browser, code_of, path_of, provider, switched_on
from tests.conftest import Time
from tests.people import PASSWORD, account, member

pytestmark = pytest.mark.django_db


def test_a_person_comes_in_and_lands_where_they_wanted_to_go(there: Hostile) -> None:
    browser = Browser()
    page = browser.get("/panel/login/", {"next": "/panel/p/default/tasks/?show=all"}).content.decode()
    assert "/oidc/login/?next=%2Fpanel%2Fp%2Fdefault%2Ftasks%2F%3Fshow%3Dall" in page
    answer = browser.sign_in(there, next="/panel/p/default/tasks/?show=all")
    assert answer.headers["Location"] == "/panel/p/default/tasks/?show=all"
    user = User.objects.get()
    assert (user.username, user.has_usable_password(), user.is_superuser) == ("ann", False, False)
    assert browser.me["assurance"] == "single_factor" and browser.me["roles"] == []
    assert not [
        name for name in browser.cookies if name.startswith(flows.COOKIE) and browser.cookies[name].value
    ]
    noted = ProviderSignIn.objects.get()
    assert (noted.outcome, noted.username) == ("signed_in", "ann") and abs(noted.skew_ms or 0) < 5000


def test_the_request_that_leaves_has_all_that_protects_it(there: Hostile) -> None:
    address = urlsplit(Browser().begin())
    asked = {name: values[0] for name, values in parse_qs(address.query).items()}
    assert asked["redirect_uri"] == f"{BASE}/oidc/callback/"
    assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
    assert all(len(asked[name]) == 43 for name in ("state", "nonce", "code_challenge"))
    assert len({asked["state"], asked["nonce"], asked["code_challenge"]}) == 3
    assert asked["scope"] == "openid profile" and "prompt" not in asked


def test_the_secret_goes_to_the_token_endpoint_only_as_it_likes_it(there: Hostile) -> None:
    Browser().sign_in(there)
    assert there.secrets == [SECRET] and "client_secret" not in there.forms[0]
    there.document = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    from apps.access.oidc import metadata

    metadata.forget()
    Browser().sign_in(there)
    assert there.forms[1]["client_secret"] == SECRET and len(there.secrets) == 1


def test_two_tabs_each_come_back_to_their_own_page(there: Hostile) -> None:
    browser = Browser()
    first, second = browser.begin(next="/panel/projects/"), browser.begin(next="/panel/tokens/")
    sent = there.code(first), there.code(second)
    assert path_of(browser.come_back(sent[1])) == "/panel/tokens/"
    assert path_of(browser.come_back(sent[0])) == "/panel/projects/"
    assert SignIn.objects.count() == 1, "the second sign-in took the place of the first"


def test_many_tabs_keep_a_handful_of_cookies(there: Hostile) -> None:
    browser = Browser()
    addresses = [browser.begin() for _ in range(12)]
    kept = [name for name, one in browser.cookies.items() if name.startswith(flows.COOKIE) and one.value]
    assert len(kept) == flows.MOST
    assert code_of(browser.come_back(there.code(addresses[0]))) == "oidc_state_unknown"
    assert path_of(browser.come_back(there.code(addresses[-1]))) == "/panel/"


@pytest.mark.parametrize(
    "wanted",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "javascript:alert(1)",
        "/" + "a" * 1001,
        "panel/",
    ],
)
def test_next_leads_nowhere_else(there: Hostile, wanted: str) -> None:
    assert Browser().sign_in(there, next=wanted).headers["Location"] == "/panel/"


def test_the_callback_is_there_with_and_without_the_last_slash(there: Hostile, partner: Hostile) -> None:
    for path, alias, asked in (
        ("/oidc/callback", "main", there),
        ("/oidc/callback/partner", "partner", partner),
    ):
        browser = Browser()
        assert path_of(browser.get(path, asked.code(browser.begin(alias)))) == "/panel/"


def test_another_address_of_the_panel_leads_to_the_public_one_and_never_in_a_ring(
    there: Hostile, settings: Any
) -> None:
    settings.BASE_URL = "https://ql.example.org"
    answer = Browser().get("/oidc/login/", {"next": "/panel/tokens/"})
    assert answer.headers["Location"] == "https://ql.example.org/oidc/login/?next=%2Fpanel%2Ftokens%2F&here=1"
    again = Browser().get("/oidc/login/", {"next": "/panel/tokens/", "here": "1"})
    assert again.headers["Location"].startswith(f"{there.issuer}/authorize?")
    assert "https%3A%2F%2Fql.example.org%2Foidc%2Fcallback%2F" in again.headers["Location"]


def test_strength_comes_from_this_very_token_and_a_list(there: Hostile, settings: Any) -> None:
    settings.SINGLE_SIGN_ON = switched_on(
        provider(there, multi_factor=frozenset({"mfa"}), hardware=frozenset({"urn:corp:gold"}))
    )
    for claims, assurance in (
        ({"amr": ["pwd"]}, "single_factor"),
        ({"amr": ["pwd", "mfa"]}, "multi_factor"),
        ({"acr": "urn:corp:gold", "amr": ["mfa"]}, "hardware"),
        ({"acr": {"mfa": 1}, "amr": "mfa"}, "single_factor"),
        ({"amr": [["mfa"]]}, "single_factor"),
        ({"acr": None, "mfa": True}, "single_factor"),
    ):
        there.claims = claims
        browser = Browser()
        browser.sign_in(there)
        assert browser.me["assurance"] == assurance, claims


def test_the_time_of_the_sign_in_is_the_providers_and_never_later_than_now(there: Hostile) -> None:
    from apps.core import clock

    now = clock.now_ms() // 1000
    for claims, age in (({"auth_time": now - 3600}, 3600), ({}, 0), ({"auth_time": now + 50}, 0)):
        there.claims = claims
        Browser().sign_in(there)
        row = SignIn.objects.order_by("-created_at").first()
        assert row is not None
        assert abs((row.created_at - row.authenticated_at).total_seconds() - age) < 5
        assert abs((row.expires_at - row.created_at).total_seconds() - 12 * 3600) < 5


def test_a_fresh_sign_in_is_asked_for_and_an_old_one_is_not_taken(there: Hostile) -> None:
    from apps.core import clock

    now = clock.now_ms() // 1000
    browser = Browser()
    address = browser.begin(fresh="1")
    assert "prompt=login" in address and "max_age=0" in address
    there.claims = {"auth_time": now - 7200}
    assert code_of(browser.come_back(there.code(address))) == "oidc_not_recent"
    there.claims = {"auth_time": now}
    assert path_of(browser.sign_in(there, fresh="1")) == "/panel/"


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("ann", "ann-"),
        ("", "user-"),
        ("a b", "user-"),
        ("x" * 500, "x" * 48),
        ("Ａnn2", "Ann2"),
        (7, "user-"),
    ],
)
def test_names_are_made_to_fit_and_never_take_anothers_account(there: Hostile, told: Any, name: str) -> None:
    before = account("ann")
    there.claims = {"preferred_username": told}
    browser = Browser()
    browser.sign_in(there)
    assert browser.me["subject"]["id"] != before.subject_id
    assert User.objects.exclude(pk=before.pk).get().username.startswith(name)


def link(browser: Browser, alias: str = "main") -> str:
    """Asks to add a provider; the address that the page goes on to."""
    answer = browser.post(f"/oidc/link/{alias}/", {"next": "/panel/"})
    assert answer.status_code == 200, answer.headers
    address = answer.headers["Refresh"].removeprefix("0;url=")
    assert address.replace("&", "&amp;") in answer.content.decode()
    return address


def with_password(name: str) -> Browser:
    browser = Browser()
    assert browser.post("/panel/login/", {"username": name, "password": PASSWORD}).status_code == 302
    return browser


def test_an_account_gets_a_second_way_in_from_its_own_person(there: Hostile, settings: Any) -> None:
    settings.SINGLE_SIGN_ON = switched_on(provider(there, provision=False))
    ann = member("viewer", "ann")
    assert code_of(Browser().sign_in(there)) == "oidc_no_account", "a name is no proof"
    browser = with_password("ann")
    assert path_of(browser.come_back(there.code(link(browser)))) == "/panel/"
    assert [bound.provider for bound in bindings_of(ann.subject_id)] == ["local", "oidc:main"]
    other = Browser()
    other.sign_in(there)
    assert other.me["subject"]["id"] == ann.subject_id
    assert path_of(browser.come_back(there.code(link(browser)))) == "/panel/", "again changes nothing"
    assert len(bindings_of(ann.subject_id)) == 2


def test_an_identity_is_never_moved_to_another_account(there: Hostile) -> None:
    Browser().sign_in(there)
    bob = account("bob")
    browser = with_password("bob")
    assert code_of(browser.come_back(there.code(link(browser)))) == "oidc_cannot_link"
    assert [bound.provider for bound in bindings_of(bob.subject_id)] == ["local"]


def test_linking_needs_a_fresh_session_its_own_and_a_form(there: Hostile, time: Time) -> None:
    account("ann"), account("bob")
    browser = with_password("ann")
    assert browser.get("/oidc/link/main/").status_code == 404
    address = link(browser)
    # The other person of the same browser is not asked to take the identity.
    browser.post("/panel/login/", {"username": "bob", "password": PASSWORD})
    browser.post("/panel/logout/")
    browser.post("/panel/login/", {"username": "bob", "password": PASSWORD})
    there.alter = lambda claims: claims.update(iat=time.ms // 1000, exp=time.ms // 1000 + 300)
    assert code_of(browser.come_back(there.code(address))) == "oidc_cannot_link"
    time.advance(16 * 60_000)
    refused = browser.post("/oidc/link/main/", {"next": "/panel/"})
    assert (refused.status_code, "Refresh" in refused.headers) == (403, False)
    confirmed = browser.post(
        "/oidc/link/main/", {"next": "/panel/", "confirm": "1", "confirm_password": PASSWORD}
    )
    assert confirmed.status_code == 200 and "Refresh" in confirmed.headers, "goes on once it is shown"
    strict = Browser(enforce_csrf_checks=True)
    strict.cookies = browser.cookies
    assert strict.post("/oidc/link/main/").status_code == 403
    assert not IdentityAuthenticationBinding.objects.filter(provider="oidc:main").exists()


def test_what_was_added_can_be_taken_away_but_not_the_last(there: Hostile) -> None:
    member("viewer", "ann")
    browser = with_password("ann")
    browser.come_back(there.code(link(browser)))
    other = Browser()
    other.sign_in(there)
    page = browser.get("/panel/sign-in-methods/").content.decode()
    assert "Password of this panel" in page and "Take Main away" in page
    remove = "/panel/sign-in-methods/remove/"
    for asked in ({"provider": "oidc:main", "subject": "x"}, {"provider": "local", "subject": "x"}, {}):
        assert browser.post(remove, asked).status_code == 302
    assert other.me is not None
    browser.post(remove, {"provider": "oidc:main", "subject": there.person})
    assert other.me is None and browser.me is not None
    alone = Browser()
    there.person = "alone"
    alone.sign_in(there)
    assert "Take Main away" not in alone.get("/panel/sign-in-methods/").content.decode()
    alone.post(remove, {"provider": "oidc:main", "subject": "alone"})
    assert alone.me is not None


def test_signing_in_again_leads_through_the_provider(there: Hostile) -> None:
    from apps.core import clock

    there.claims = {"auth_time": clock.now_ms() // 1000 - 3600}
    browser = Browser()
    browser.sign_in(there)
    page = browser.post("/panel/tokens/").content.decode()
    assert 'href="/oidc/login/?next=%2Fpanel%2Ftokens%2F&amp;fresh=1"' in page
    assert browser.post("/panel/sign-in-methods/remove/").status_code == 403


def test_a_form_never_leads_to_the_provider_by_a_redirect(there: Hostile) -> None:
    there.document = {"end_session_endpoint": f"{there.issuer}/end?x=1"}
    browser = Browser()
    browser.sign_in(there)
    answer = browser.post("/panel/logout/")
    assert answer.status_code == 200 and browser.me is None and not SignIn.objects.exists()
    address = answer.headers["Refresh"].removeprefix("0;url=")
    assert address == (
        f"{there.issuer}/end?x=1&client_id=qinglong&post_logout_redirect_uri=http%3A%2F%2Ftestserver%2Fpanel%2Flogin%2F"
    )
    again = Browser()
    again.sign_in(there)
    back = again.post("/panel/logout/", {"next": "/panel/tokens/"})
    assert back.headers["Location"] == "/panel/login/?next=%2Fpanel%2Ftokens%2F", (
        "who comes again is not sent away"
    )


def test_without_a_provider_there_is_nothing_to_see(settings: Any) -> None:
    settings.SINGLE_SIGN_ON = switched_on()
    browser = Browser()
    assert "/oidc/" not in browser.get("/panel/login/").content.decode()
    for path in ("/oidc/login/", "/oidc/login/main/", "/oidc/callback/?code=x&state=y", "/oidc/callback/x/"):
        answer = browser.get(path)
        assert (answer.status_code, code_of(answer)) == (404, "oidc_provider_unknown")
    assert browser.post("/oidc/back-channel-logout/", {"logout_token": "x"}).status_code == 400


def test_only_the_emergency_account_has_a_password_where_providers_are_required(
    there: Hostile, settings: Any
) -> None:
    account("ann"), account("Root")
    before = with_password("ann")
    assert before.me is not None
    settings.SINGLE_SIGN_ON = switched_on(provider(there), required=True, break_glass="root")
    assert before.me is None, "sessions from before do not outlive the rule"
    refused = Browser().post("/panel/login/", {"username": "ann", "password": PASSWORD})
    wrong = Browser().post("/panel/login/", {"username": "ann", "password": "wrong"})
    assert refused.status_code == wrong.status_code == 401
    assert refused.content.count(b"sign_in_refused") == wrong.content.count(b"sign_in_refused") == 1
    counted = [
        Browser().post("/panel/login/", {"username": "ann", "password": PASSWORD}).status_code
        for _ in range(6)
    ]
    assert 429 in counted, "a right password is counted like a wrong one"
    emergency = with_password("root")
    assert emergency.me is not None
    entry = AuditEntry.objects.filter(action="session.started").order_by("-sequence").first()
    assert entry is not None and entry.metadata["break_glass"] is True
    browser = Browser()
    browser.sign_in(there)
    assert browser.me is not None
    page = Browser().get("/panel/login/").content.decode()
    assert page.index("/oidc/login/") < page.index("<details") < page.index('name="password"')


def test_the_api_never_sends_anybody_anywhere(there: Hostile, settings: Any) -> None:
    settings.SINGLE_SIGN_ON = switched_on(provider(there), required=True, break_glass="root")
    for path in ("/api/v3/me", "/api/v3/projects", "/api/v3/nothing"):
        answer = Browser().get(path)
        assert answer.status_code in (401, 404) and answer["Content-Type"] == "application/problem+json"


def test_no_secret_is_kept_or_told(there: Hostile, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    browser = Browser()
    there.claims = {"preferred_username": "ann", "email": "ann@example.org", "sid": "session-at-the-provider"}
    address = browser.begin()
    sent = there.code(address)
    browser.come_back(sent)
    form = there.forms[0]
    told = [
        SECRET,
        sent["code"],
        sent["state"],
        form["code_verifier"],
        "an-access-token",
        "session-at-the-provider",
    ]
    told += [parse_qs(urlsplit(address).query)["nonce"][0], there.signed({"a": 1}).split(".")[0]]
    kept = caplog.text + repr(provider(there))
    for model in (ProviderSignIn, SignIn, User, AuditEntry, IdentitySubject, IdentityAuthenticationBinding):
        kept += json.dumps(list(model.objects.values()), default=str)
    kept += "".join(str(session) for session in browser.session.items())
    assert not [one for one in told if one in kept]
    assert "ann@example.org" not in json.dumps(list(ProviderSignIn.objects.values()), default=str)
