"""The provider ends sessions here, and nobody else does in its name (OpenID Connect Back-Channel Logout 1.0)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import jwt
import pytest

from apps.access.models import SignIn, UsedOnce, User
from apps.audit.models import AuditEntry
from tests.access.provider import Claims, Hostile
from tests.access.single_sign_on import Browser

pytestmark = pytest.mark.django_db
EVENT = "http://schemas.openid.net/event/backchannel-logout"


def post(token: object, alias: str = "main") -> Any:
    path = "/oidc/back-channel-logout/" if alias == "main" else f"/oidc/back-channel-logout/{alias}/"
    return Browser(enforce_csrf_checks=True).post(path, {"logout_token": token})


def signed_in(there: Hostile, sid: str | None = None, alias: str = "main") -> Browser:
    there.claims = {"preferred_username": "ann"} | ({"sid": sid} if sid else {})
    browser = Browser()
    browser.sign_in(there, alias)
    assert browser.me is not None
    return browser


def test_a_person_is_signed_out_everywhere(there: Hostile) -> None:
    browsers = [signed_in(there), signed_in(there, "s1")]
    answer = post(there.signed(there.logout_token(sub=there.person)))
    assert (answer.status_code, answer.content, answer["Cache-Control"]) == (200, b"", "no-store")
    assert [browser.me for browser in browsers] == [None, None]
    assert browsers[0].get("/panel/").status_code == 302
    entry = AuditEntry.objects.filter(action="session.ended", origin="oidc").get()
    assert entry.subject_id == User.objects.get().subject_id


def test_one_session_ends_and_the_others_go_on(there: Hostile) -> None:
    first, second, third = signed_in(there, "s1"), signed_in(there, "s2"), signed_in(there)
    assert post(there.signed(there.logout_token(sid="s1"))).status_code == 200
    assert first.me is None and second.me is not None and third.me is not None
    assert post(there.signed(there.logout_token(sid="s2", sub="somebody-else"))).status_code == 200
    assert second.me is not None, "both must fit where both are named"
    assert post(there.signed(there.logout_token(sid="s2", sub=there.person))).status_code == 200
    assert second.me is None and third.me is not None


def test_who_is_not_here_is_no_error(there: Hostile) -> None:
    assert post(there.signed(there.logout_token(sub="nobody|here"))).status_code == 200


def test_a_token_works_once(there: Hostile) -> None:
    token = there.signed(there.logout_token(sub=there.person))
    signed_in(there)
    assert post(token).status_code == 200
    again = signed_in(there)
    assert (post(token).status_code, post(token).json()) == (400, {"error": "invalid_request"})
    assert again.me is not None and UsedOnce.objects.count() == 3


def without(name: str) -> Callable[[Claims], object]:
    return lambda claims: claims.pop(name)


def having(**values: Any) -> Callable[[Claims], object]:
    return lambda claims: claims.update(values)


@pytest.mark.parametrize(
    "alter",
    [
        having(iss="https://evil.example"),
        having(aud="another"),
        having(aud=["qinglong", "another"]),
        having(nonce="x"),
        having(events={}),
        having(events={EVENT: "yes"}),
        having(events=[EVENT]),
        having(jti=""),
        having(jti=7),
        having(sub=7),
        having(sid=["s1"]),
        having(exp=1_500_000_000, iat=1_500_000_000),
        having(iat=9_999_999_999),
        having(exp=2**38),
        *(without(name) for name in ("iss", "aud", "events", "jti", "iat", "exp")),
        lambda claims: claims.pop("sub") and claims.pop("sid"),
    ],
)
def test_forged_claims_end_nothing(there: Hostile, alter: Callable[[Claims], object]) -> None:
    browser = signed_in(there, "s1")
    claims = there.logout_token(sub=there.person, sid="s1")
    alter(claims)
    answer = post(there.signed(claims))
    assert (answer.status_code, answer.json()) == (400, {"error": "invalid_request"})
    assert browser.me is not None


def test_forged_signatures_end_nothing(there: Hostile, partner: Hostile) -> None:
    browser = signed_in(there)
    claims = there.logout_token(sub=there.person)
    kept: list[str] = []
    there.sign = lambda made: kept.append(there.signed(made)) or kept[0]  # type: ignore[func-returns-value]
    Browser().sign_in(there)
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    for token in (
        jwt.encode(claims, "", algorithm="none"),
        jwt.encode(claims, "x" * 64, algorithm="HS256", headers={"kid": "first"}),
        partner.signed(claims, kid="first") if partner.keys["first"] is not there.keys["first"] else "x.y.z",
        ".".join([kept[0].split(".")[0], body, kept[0].split(".")[2]]),
        kept[0],
        "",
        "x" * 100_000,
    ):
        assert post(token).status_code == 400
    assert browser.me is not None and SignIn.objects.count() == 2


def test_one_provider_cannot_sign_out_the_people_of_another(there: Hostile, partner: Hostile) -> None:
    browser = signed_in(there)
    partner.person = there.person
    assert post(partner.signed(partner.logout_token(sub=there.person)), "partner").status_code == 200
    assert (
        post(partner.signed(partner.logout_token(sub=there.person, iss=there.issuer)), "partner").status_code
        == 400
    )
    assert post(there.signed(there.logout_token(sub=there.person)), "partner").status_code == 400
    assert browser.me is not None


def test_far_ends_of_time_and_busy_databases_are_answers(
    there: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apps.access.services import single_sign_on
    from apps.core.errors import Busy

    assert post(there.signed(there.logout_token(sub="x", exp=2**37 - 1))).status_code == 200

    def busy(*_arguments: object, **_options: object) -> int:
        raise Busy

    monkeypatch.setattr(single_sign_on, "end_provider_sessions", busy)
    assert post(there.signed(there.logout_token(sub="x"))).status_code == 503


def test_only_posts_of_a_form_are_heard(there: Hostile) -> None:
    assert Browser().get("/oidc/back-channel-logout/").status_code == 405
    answer = Browser().post(
        "/oidc/back-channel-logout/", b'{"logout_token": "x"}', content_type="application/json"
    )
    assert answer.status_code == 400
