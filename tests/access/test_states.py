"""The way back belongs to the browser, the provider and the moment it was begun with, and is used once."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core import signing
from django.core.management import CommandError, call_command

from apps.access.models import ProviderSignIn, SignIn, UsedOnce
from apps.access.oidc import doctor
from apps.access.oidc import flow as flows
from apps.audit.models import AuditEntry
from tests.access.provider import Hostile
from tests.access.single_sign_on import Browser, code_of, path_of, provider, switched_on
from tests.conftest import Time

pytestmark = pytest.mark.django_db


def test_a_way_back_is_used_once(there: Hostile) -> None:
    browser = Browser()
    sent = there.code(browser.begin())
    cookie = next(name for name in browser.cookies if name.startswith(flows.COOKIE))
    kept = browser.cookies[cookie].value
    assert path_of(browser.come_back(sent)) == "/panel/"
    asked = there.asked.count("/token")
    assert code_of(browser.come_back(sent)) == "oidc_state_unknown", "the cookie is gone"
    browser.cookies[cookie] = kept
    assert code_of(browser.come_back(sent)) == "oidc_state_unknown", "and would not help"
    assert there.asked.count("/token") == asked, "the code was not sent again"
    assert ProviderSignIn.objects.filter(outcome="refused", reason="state_used").count() == 1


def test_a_code_of_somebody_else_does_not_fit(there: Hostile) -> None:
    """The thief has a code that was made for another browser: its verifier is not theirs."""
    victim, thief = Browser(), Browser()
    stolen = there.code(victim.begin())["code"]
    own = there.code(thief.begin())
    assert code_of(thief.come_back({**own, "code": stolen})) == "oidc_refused"
    assert ProviderSignIn.objects.get().reason == "code_refused_invalid_grant"
    assert thief.me is None


def test_a_state_of_another_browser_is_none(there: Hostile) -> None:
    """Nobody is signed in as somebody else by a link (login CSRF)."""
    attacker, victim = Browser(), Browser()
    sent = there.code(attacker.begin())
    answer = victim.come_back(sent)
    assert (answer.status_code, code_of(answer)) == (400, "oidc_state_unknown")
    assert victim.me is None and not SignIn.objects.exists() and "/token" not in there.asked


@pytest.mark.parametrize(
    "query",
    [{}, {"code": "x"}, {"state": "x"}, {"code": "x", "state": "x" * 100_000}, {"state": "\0", "code": "é"}],
)
def test_a_way_back_out_of_nowhere_is_a_page(there: Hostile, query: dict[str, str]) -> None:
    answer = Browser().come_back(query)
    assert (answer.status_code, code_of(answer)) == (400, "oidc_state_unknown")
    assert not ProviderSignIn.objects.exists() and not UsedOnce.objects.exists(), "strangers leave no trace"


def test_cookies_cannot_be_made_or_swapped(there: Hostile) -> None:
    browser = Browser()
    first, second = (there.code(browser.begin()) for _ in range(2))
    names = [flows.cookie_name(sent["state"]) for sent in (first, second)]
    browser.cookies[names[0]], browser.cookies[names[1]] = (
        browser.cookies[name].value for name in reversed(names)
    )
    assert code_of(browser.come_back(first)) == "oidc_state_unknown"
    forged = signing.dumps(["main", "secret", "/", 0, "", False], key="guessed", salt="qinglong.oidc.flow")
    browser.cookies[names[0]] = forged
    assert code_of(browser.come_back(first)) == "oidc_state_unknown"


def test_a_flow_lasts_ten_minutes(there: Hostile, time: Time) -> None:
    moment = {"iat": time.ms // 1000, "exp": time.ms // 1000 + 3000}
    there.alter = lambda claims: claims.update(moment)
    browser = Browser()
    late, timely = there.code(browser.begin()), there.code(browser.begin())
    time.advance(flows.LIFETIME_S * 1000 - 1)
    assert path_of(browser.come_back(timely)) == "/panel/"
    time.advance(1)
    assert code_of(browser.come_back(late)) == "oidc_state_unknown"
    time.advance(20 * 60_000)
    moment["iat"] = time.ms // 1000
    browser.sign_in(there)
    assert UsedOnce.objects.count() == 1, "what cannot come again is forgotten"


def test_an_error_of_the_provider_is_a_page_and_ends_the_flow(there: Hostile) -> None:
    browser = Browser()
    state = there.code(browser.begin())["state"]
    bad = "<script>alert(1)</script>"
    answer = browser.come_back({"error": "access_denied", "error_description": bad, "state": state})
    assert (answer.status_code, code_of(answer)) == (400, "oidc_cancelled")
    assert bad not in answer.content.decode() and "/oidc/login/" in answer.content.decode()
    assert ProviderSignIn.objects.get().reason == "provider_says_access_denied"
    assert code_of(browser.come_back({"code": "x", "state": state})) == "oidc_state_unknown"
    state = there.code(browser.begin())["state"]
    assert code_of(browser.come_back({"error": bad, "state": state})) == "oidc_cancelled"
    assert not ProviderSignIn.objects.filter(reason__contains="script").exists()
    noted = ProviderSignIn.objects.count()
    assert code_of(Browser().come_back({"error": "access_denied"})) == "oidc_cancelled", (
        "some leave the state out"
    )
    assert ProviderSignIn.objects.count() == noted


def test_answers_of_one_provider_are_never_taken_for_anothers(there: Hostile, partner: Hostile) -> None:
    """Mix-up: the partner sends people on to the other provider and hopes to be given the code it made."""
    browser = Browser()
    begun = browser.begin("partner")
    honest = there.code(begun.replace(partner.issuer, there.issuer))
    assert code_of(browser.come_back(honest)) == "oidc_state_unknown", "each has its own way back"
    assert "/token" not in partner.asked and "/token" not in there.asked
    assert code_of(browser.come_back({**honest, "iss": there.issuer}, "partner")) == "oidc_refused"
    assert "/token" not in partner.asked, "the code of the other was not given away"
    assert ProviderSignIn.objects.get().reason == "iss_wrong"


def test_who_says_to_name_the_issuer_must(there: Hostile) -> None:
    there.document = {"authorization_response_iss_parameter_supported": True}
    assert code_of(Browser().sign_in(there)) == "oidc_refused"
    browser = Browser()
    sent = there.code(browser.begin())
    assert path_of(browser.come_back({**sent, "iss": there.issuer})) == "/panel/"


def test_a_token_of_one_provider_is_none_of_the_other(there: Hostile, partner: Hostile) -> None:
    kept: list[Any] = []
    there.alter = lambda claims: kept.append(dict(claims))
    Browser().sign_in(there)
    partner.sign = lambda claims: there.signed({**kept[0], "nonce": claims["nonce"]})
    assert code_of(Browser().sign_in(partner, "partner")) == "oidc_refused"
    partner.sign = lambda claims: partner.signed({**kept[0], "nonce": claims["nonce"]})
    assert code_of(Browser().sign_in(partner, "partner")) == "oidc_refused"
    partner.sign = partner.signed
    partner.person = there.person
    other = Browser()
    assert path_of(other.sign_in(partner, "partner")) == "/panel/"
    assert SignIn.objects.values("user").distinct().count() == 2, "the same `sub` elsewhere is somebody else"


def test_another_issuer_under_the_same_name_is_not_the_same_people(
    there: Hostile, partner: Hostile, settings: Any
) -> None:
    """Many providers number their people from one on: 7 here is not 7 there."""
    there.person = partner.person = "7"
    ann = Browser()
    ann.sign_in(there)
    before = ann.me["subject"]["id"]
    moved = provider(partner)
    settings.SINGLE_SIGN_ON = switched_on(moved)
    eve = Browser()
    assert code_of(eve.sign_in(partner)) == "oidc_refused" and eve.me is None
    assert ProviderSignIn.objects.order_by("-at")[0].reason == "issuer_changed"
    assert "issuer_changed" in [finding.code for finding in doctor.examine(moved)]
    with pytest.raises(CommandError):
        call_command("login_doctor", "--accept-issuer", "partner")
    call_command("login_doctor", "--accept-issuer", "main", stdout=StringIO())
    eve.sign_in(partner)
    assert eve.me["subject"]["id"] == before
    entry = AuditEntry.objects.get(action="provider.issuer_accepted")
    assert (entry.origin, entry.metadata) == ("command", {"issuer": partner.issuer})


def test_strangers_cannot_fill_the_doctors_book(there: Hostile) -> None:
    from apps.access.services import single_sign_on

    browser = Browser()
    for _ in range(single_sign_on.KEPT + 3):
        state = there.code(browser.begin())["state"]
        browser.come_back({"error": "access_denied", "state": state})
    browser.sign_in(there)
    assert ProviderSignIn.objects.filter(outcome="refused").count() == single_sign_on.KEPT
    assert ProviderSignIn.objects.filter(outcome="signed_in").count() == 1
