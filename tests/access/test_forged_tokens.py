"""Whatever a token gets wrong, nobody comes in: each forgery is sent by a real provider over real HTTP."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from apps.access.models import ProviderSignIn, SignIn, User
from apps.access.oidc import metadata
from tests.access.provider import Claims, Hostile, pem
from tests.access.single_sign_on import Browser, code_of, path_of, provider, switched_on

pytestmark = [pytest.mark.django_db, pytest.mark.one_engine]

Forgery = Callable[[Hostile, Claims], str]


def unsigned(there: Hostile, claims: Claims) -> str:
    return jwt.encode(claims, "", algorithm="none", headers={"kid": "first"})


def with_shared_secret(secret: str | bytes) -> Forgery:
    def forge(_there: Hostile, claims: Claims) -> str:
        return by_hand({"alg": "HS256", "kid": "first"}, claims, secret)

    return forge


def by_hand(header: Claims, claims: Any, secret: str | bytes) -> str:
    parts = [part(json.dumps(header).encode()), part(json.dumps(claims).encode())]
    key = secret.encode() if isinstance(secret, str) else secret
    return ".".join([*parts, part(hmac.digest(key, ".".join(parts).encode(), "sha256"))])


def part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def public_key_as_secret(there: Hostile, claims: Claims) -> str:
    return by_hand({"alg": "HS256", "kid": "first"}, claims, pem(there.keys["first"]))


def another_key(_there: Hostile, claims: Claims) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return jwt.encode(claims, key, algorithm="RS256", headers={"kid": "first"})


def own_key_in_the_header(_there: Hostile, claims: Claims) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    return jwt.encode(
        claims, key, algorithm="RS256", headers={"kid": "first", "jwk": jwk, "jku": "http://x/"}
    )


def other_algorithm(there: Hostile, claims: Claims) -> str:
    return jwt.encode(claims, there.keys["first"], algorithm="RS512", headers={"kid": "first"})


def padding_by_pss(there: Hostile, claims: Claims) -> str:
    return jwt.encode(claims, there.keys["first"], algorithm="PS256", headers={"kid": "first"})


def unknown_key(there: Hostile, claims: Claims) -> str:
    return jwt.encode(claims, there.keys["first"], algorithm="RS256", headers={"kid": "../../etc"})


def changed_afterwards(there: Hostile, claims: Claims) -> str:
    head, _body, signature = there.signed(claims).split(".")
    return ".".join([head, part(json.dumps({**claims, "sub": "somebody-else"}).encode()), signature])


def critical_header(there: Hostile, claims: Claims) -> str:
    return there.signed(claims, crit=["exp"])


def twice_the_same_name(there: Hostile, claims: Claims) -> str:
    body = json.dumps(claims)[:-1] + ', "sub": "somebody-else"}'
    return jwt.PyJWS().encode(body.encode(), there.keys["first"], algorithm="RS256", headers={"kid": "first"})


def no_object(there: Hostile, _claims: Claims) -> str:
    return jwt.PyJWS().encode(b"[1]", there.keys["first"], algorithm="RS256", headers={"kid": "first"})


def deep(there: Hostile, _claims: Claims) -> str:
    body = b'{"a":' * 20_000 + b"1" + b"}" * 20_000
    return jwt.PyJWS().encode(body, there.keys["first"], algorithm="RS256", headers={"kid": "first"})


FORGERIES = [
    (unsigned, "algorithm_refused"),
    (with_shared_secret("s3cret/of+the client%"), "algorithm_refused"),
    (public_key_as_secret, "algorithm_refused"),
    (other_algorithm, "algorithm_refused"),
    (padding_by_pss, "algorithm_refused"),
    (another_key, "signature_wrong"),
    (own_key_in_the_header, "signature_wrong"),
    (changed_afterwards, "signature_wrong"),
    (unknown_key, "key_unknown"),
    (critical_header, "token_invalid"),
    (twice_the_same_name, "token_invalid"),
    (no_object, "token_invalid"),
    (deep, "token_invalid"),
    (lambda there, claims: "", "token_invalid"),
    (lambda there, claims: "a.b", "token_invalid"),
    (lambda there, claims: "é.é.é", "token_invalid"),
    (lambda there, claims: there.signed({**claims, "x": "y" * 70_000}), "token_invalid"),
    (lambda there, claims: 7, "token_invalid"),
    (lambda there, claims: None, "token_invalid"),
]


@pytest.mark.parametrize(("forge", "reason"), FORGERIES)
def test_what_is_not_signed_by_the_provider_lets_nobody_in(
    there: Hostile, forge: Forgery, reason: str
) -> None:
    there.sign = lambda claims: forge(there, claims)
    refused(there, reason)


def moved(**seconds: int) -> Callable[[Claims], object]:
    return lambda claims: claims.update({name: claims["iat"] + by for name, by in seconds.items()})


WRONG_CLAIMS = [
    (lambda claims: claims.update(iss="https://evil.example"), "issuer_wrong", "oidc_refused"),
    (lambda claims: claims.update(iss=claims["iss"] + "/"), "issuer_wrong", "oidc_refused"),
    (lambda claims: claims.pop("iss"), "issuer_wrong", "oidc_refused"),
    (lambda claims: claims.update(aud="another"), "audience_wrong", "oidc_refused"),
    (lambda claims: claims.update(aud=[]), "audience_wrong", "oidc_refused"),
    (lambda claims: claims.update(aud={"qinglong": 1}), "audience_wrong", "oidc_refused"),
    (lambda claims: claims.pop("aud"), "audience_wrong", "oidc_refused"),
    (lambda claims: claims.update(aud=["qinglong", "another"]), "party_wrong", "oidc_refused"),
    (lambda claims: claims.update(aud=["qinglong", "another"], azp="another"), "party_wrong", "oidc_refused"),
    (lambda claims: claims.update(azp="another"), "party_wrong", "oidc_refused"),
    (lambda claims: claims.update(nonce="x" * 43), "nonce_wrong", "oidc_refused"),
    (lambda claims: claims.update(nonce=["x"]), "nonce_wrong", "oidc_refused"),
    (lambda claims: claims.update(nonce="é"), "nonce_wrong", "oidc_refused"),
    (lambda claims: claims.pop("nonce"), "nonce_wrong", "oidc_refused"),
    (lambda claims: claims.pop("sub"), "sub_wrong", "oidc_refused"),
    (lambda claims: claims.update(sub=""), "sub_wrong", "oidc_refused"),
    (lambda claims: claims.update(sub=7), "sub_wrong", "oidc_refused"),
    (lambda claims: claims.update(sub="x" * 256), "sub_wrong", "oidc_refused"),
    (lambda claims: claims.update(sub="\ud800"), "sub_wrong", "oidc_refused"),
    (lambda claims: claims.pop("exp"), "exp_wrong", "oidc_refused"),
    (lambda claims: claims.update(exp="9999999999"), "exp_wrong", "oidc_refused"),
    (lambda claims: claims.update(exp=True), "exp_wrong", "oidc_refused"),
    (lambda claims: claims.update(exp=10**18), "exp_wrong", "oidc_refused"),
    (lambda claims: claims.update(exp=2**37), "exp_wrong", "oidc_refused"),
    (lambda claims: claims.pop("iat"), "iat_wrong", "oidc_refused"),
    (lambda claims: claims.update(iat=-1), "iat_wrong", "oidc_refused"),
    (lambda claims: claims.update(auth_time="now"), "auth_time_wrong", "oidc_refused"),
    (moved(exp=-3600, iat=-3900), "expired", "oidc_clocks_differ"),
    (moved(exp=-61), "expired", "oidc_clocks_differ"),
    (moved(exp=3600, iat=90), "issued_in_future", "oidc_clocks_differ"),
    (moved(nbf=90), "not_yet_valid", "oidc_clocks_differ"),
]


@pytest.mark.parametrize(("alter", "reason", "code"), WRONG_CLAIMS)
def test_no_claim_is_taken_on_trust(
    there: Hostile, alter: Callable[[Claims], object], reason: str, code: str
) -> None:
    there.alter = alter
    refused(there, reason, code)


@pytest.mark.parametrize(
    "alter",
    [
        moved(exp=-50),
        moved(iat=50),
        moved(nbf=50),
        lambda claims: claims.update(aud=["qinglong"]),
        lambda claims: claims.update(aud=["another", "qinglong"], azp="qinglong"),
        lambda claims: claims.update(iat=claims["iat"] + 0.5),
    ],
)
def test_what_is_right_within_a_minute_is_let_in(there: Hostile, alter: Callable[[Claims], object]) -> None:
    there.alter = alter
    assert path_of(Browser().sign_in(there)) == "/panel/"


@pytest.mark.parametrize(("by", "word"), [(-4000, "behind"), (300, "ahead of")])
def test_the_page_names_the_skew(there: Hostile, by: int, word: str) -> None:
    there.alter = moved(iat=by, exp=by + 300)
    answer = Browser().sign_in(there)
    assert code_of(answer) == "oidc_clocks_differ"
    told = re.search(
        rf"clock is (\d+) seconds {word} the panel", answer.content.decode().replace("&#x27;", "'")
    )
    assert told and abs(int(told[1]) - abs(by)) < 5
    skew = ProviderSignIn.objects.get().skew_ms
    assert skew is not None and abs(skew - by * 1000) < 5000


def refused(there: Hostile, reason: str, code: str = "oidc_refused") -> None:
    """Nobody comes in; the page tells the code and a reference, the doctor the reason beside it."""
    browser = Browser()
    answer = browser.sign_in(there)
    assert (answer.status_code, code_of(answer)) == (403, code)
    noted = ProviderSignIn.objects.get()
    assert (noted.outcome, noted.reason) == ("refused", reason)
    page = answer.content.decode()
    assert noted.reference in page and reason not in page and there.person not in page
    assert not User.objects.exists() and not SignIn.objects.exists() and browser.me is None


def test_elliptic_keys_do_as_well(there: Hostile) -> None:
    there.use_ec()
    assert path_of(Browser().sign_in(there)) == "/panel/"


def test_short_keys_foreign_curves_and_keys_for_other_things_do_not(there: Hostile) -> None:
    small = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    curve = ec.generate_private_key(ec.SECP384R1())
    short = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(small.public_key()))
    first = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(there.keys["first"].public_key()))
    other = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(curve.public_key()))
    for jwk, key, algorithm in (
        ({**short, "kid": "first"}, small, "RS256"),
        ({**other, "kid": "first"}, curve, "ES256"),
        ({**first, "kid": "first", "use": "enc"}, there.keys["first"], "RS256"),
        ({**first, "kid": "first", "alg": "RS512"}, there.keys["first"], "RS256"),
        ({"kty": "RSA", "kid": "first", "n": "!", "e": 3}, there.keys["first"], "RS256"),
        ({"kty": "oct", "kid": "first", "k": "c2VjcmV0"}, there.keys["first"], "RS256"),
        ({"kid": "first"}, there.keys["first"], "RS256"),
        ("first", there.keys["first"], "RS256"),
    ):
        metadata.forget()
        ProviderSignIn.objects.all().delete()
        there.answers["/keys"] = answering({"keys": [jwk]})
        there.sign = lambda claims, key=key, algorithm=algorithm: (
            jwt.PyJWS().encode(  # type: ignore[misc]
                json.dumps(claims).encode(), key, algorithm=algorithm, headers={"kid": "first"}
            )
            if algorithm == "RS256"
            else by_hand({"alg": "ES256", "kid": "first"}, claims, "x")
        )
        refused(there, "key_unknown")


def answering(body: Any) -> Callable[[Any], None]:
    from tests.access.provider import reply

    return lambda call: reply(call, body)


def test_a_token_without_a_key_name_needs_a_single_key(there: Hostile) -> None:
    there.sign = lambda claims: there.signed(claims, None)
    assert path_of(Browser().sign_in(there)) == "/panel/"
    there.keys["second"] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    metadata.forget()
    assert code_of(Browser().sign_in(there)) == "oidc_refused"


def test_new_keys_are_fetched_at_once_and_not_for_every_made_up_name(
    there: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(metadata, "monotonic", lambda: now[0])
    Browser().sign_in(there)
    there.rotate()
    assert code_of(Browser().sign_in(there)) == "oidc_refused", "asked a moment ago"
    now[0] += metadata.KEYS_AGAIN_S
    assert path_of(Browser().sign_in(there)) == "/panel/"
    asked = there.asked.count("/keys")
    there.sign = lambda claims: (
        unknown_key(there, claims)
        if "first" in there.keys
        else jwt.encode(claims, there.keys["second"], algorithm="RS256", headers={"kid": "made-up"})
    )
    for _ in range(5):
        assert code_of(Browser().sign_in(there)) == "oidc_refused"
        now[0] += 1
    assert there.asked.count("/keys") == asked
    assert there.asked.count("/.well-known/openid-configuration") == 1
    now[0] += metadata.KEPT_S
    there.sign = lambda claims: there.signed(claims, "second")
    Browser().sign_in(there)
    assert there.asked.count("/.well-known/openid-configuration") == 2


def test_userinfo_is_asked_for_what_is_missing_and_is_about_the_same_person(there: Hostile) -> None:
    there.claims, there.userinfo = (
        {},
        {"preferred_username": "ann", "iss": "https://evil.example", "acr": "mfa"},
    )
    assert path_of(Browser().sign_in(there)) == "/panel/"
    assert User.objects.get().username == "ann"
    there.userinfo = {"sub": "somebody-else", "preferred_username": "eve"}
    answer = Browser().sign_in(there)
    assert code_of(answer) == "oidc_refused"
    assert ProviderSignIn.objects.order_by("-at").first().reason == "userinfo_of_another"  # type: ignore[union-attr]
    there.userinfo = {"preferred_username": "ann"}
    half = base64.urlsafe_b64encode(hashlib.sha256(b"an-access-token").digest()[:16]).rstrip(b"=").decode()
    there.claims = {"at_hash": half}
    assert path_of(Browser().sign_in(there)) == "/panel/"
    there.claims = {"at_hash": "x" + half[1:]}
    assert code_of(Browser().sign_in(there)) == "oidc_refused"


def test_a_replayed_token_is_of_another_sign_in(there: Hostile) -> None:
    kept: list[str] = []
    there.sign = lambda claims: kept.append(there.signed(claims)) or kept[0]  # type: ignore[func-returns-value]
    assert path_of(Browser().sign_in(there)) == "/panel/"
    thief = Browser()
    assert code_of(thief.sign_in(there)) == "oidc_refused" and thief.me is None


def test_provisioning_off_and_a_disabled_person_look_alike(there: Hostile, settings: Any) -> None:
    from apps.identity.services import set_subject_status
    from tests.people import ROOT

    Browser().sign_in(there)
    set_subject_status(User.objects.get().subject_id, 1, "disabled", actor=ROOT, origin="tests")
    settings.SINGLE_SIGN_ON = switched_on(provider(there, provision=False))
    pages = []
    for person in (there.person, "unknown-here"):
        there.person = person
        answer = Browser().sign_in(there)
        assert answer.status_code == 403 and code_of(answer) == "oidc_no_account"
        page = answer.content.decode()
        assert 'href="/oidc/login/?fresh=1"' in page, "as somebody else, perhaps"
        assert "code=" not in page and "state=" not in page, "the language switch leads elsewhere"
        reference = ProviderSignIn.objects.order_by("-at").first().reference  # type: ignore[union-attr]
        pages.append(re.sub(r'csrfmiddlewaretoken" value="[^"]+', "", page.replace(reference, "")))
    assert pages[0] == pages[1]
