"""The login doctor: what to register, what is wrong, who came; as a page and as a command."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from apps.access.oidc import doctor, metadata
from apps.access.oidc.doctor import Level
from tests.access.provider import SECRET, Hostile, reply
from tests.access.single_sign_on import Browser, provider, switched_on
from tests.panel.kit import browser
from tests.people import account, member

pytestmark = [pytest.mark.django_db, pytest.mark.one_engine]
DOCUMENT = "/.well-known/openid-configuration"


def found(there: Hostile, **options: Any) -> dict[str, Level]:
    return {one.code: one.level for one in doctor.examine(provider(there, **options))}


def test_a_healthy_provider(there: Hostile) -> None:
    there.document = {
        "end_session_endpoint": f"{there.issuer}/end",
        "code_challenge_methods_supported": ["S256"],
    }
    assert found(there) == {"discovery": Level.OK, "clock_skew": Level.OK, "keys": Level.OK}


def test_what_is_wrong_is_named(there: Hostile) -> None:
    there.document = {
        "code_challenge_methods_supported": ["plain"], "id_token_signing_alg_values_supported": ["HS256"],
    }  # fmt: skip
    there.answers["/keys"] = lambda call: reply(call, {"keys": []})
    assert found(there, client_secret="", provision=False, role_map={"ops": {"gone": "viewer"}}) == {
        "discovery": Level.OK,
        "clock_skew": Level.OK,
        "algorithms": Level.FAILURE,
        "pkce": Level.WARNING,
        "end_session": Level.WARNING,
        "keys_unusable": Level.FAILURE,
        "client_secret": Level.WARNING,
        "role_map": Level.WARNING,
        "provision": Level.OK,
    }
    there.document = {"issuer": there.issuer + "/"}
    assert found(there)["issuer_differs"] is Level.FAILURE
    there.answers[DOCUMENT] = lambda call: reply(call, {}, 404)
    assert found(there)["discovery_status_404"] is Level.FAILURE


@pytest.mark.parametrize(("by", "level"), [(0, Level.OK), (20_000, Level.WARNING), (-90_000, Level.FAILURE)])
def test_the_clock_is_measured(
    there: Hostile, monkeypatch: pytest.MonkeyPatch, by: int, level: Level
) -> None:
    now = metadata.clock.now_ms
    monkeypatch.setattr(metadata.clock, "now_ms", lambda: now() - by)
    assert found(there)["clock_skew"] is level


def test_the_page_is_for_instance_administrators(there: Hostile) -> None:
    member("owner", "ann"), account("root", administrator=True)
    from apps.access.models import User

    ann, root = (browser(User.objects.get(username=name)) for name in ("ann", "root"))
    assert ann.get("/panel/sign-in-doctor/").status_code == 403
    assert ann.post("/panel/sign-in-doctor/", {"provider": "main"}).status_code == 403
    assert "/panel/sign-in-doctor/" not in ann.get("/panel/").content.decode()
    assert "/panel/sign-in-doctor/" in root.get("/panel/").content.decode()
    asked = len(there.asked)
    page = root.get("/panel/sign-in-doctor/").content.decode()
    assert len(there.asked) == asked, "showing the page asks nobody"
    for address in ("/oidc/callback/", "/oidc/back-channel-logout/", "/panel/login/"):
        assert f"http://testserver{address}" in page
    assert "Nobody came this way yet." in page


def test_page_and_command_show_who_came_and_no_secret(there: Hostile, settings: Any) -> None:
    settings.SINGLE_SIGN_ON = switched_on(provider(there, role_map={"ops": {"default": "operator"}}))
    there.claims = {
        "preferred_username": "ann", "email": "ann.secret@example.org", "groups": ["ops", "/staff"], "sid": "sid-7",
        "address": {"street": "Hidden Lane"}, "acr": "urn:gold", "<b>": "<script>", "amr": ["\x9b31m", "pwd"],
    }  # fmt: skip
    Browser().sign_in(there)
    there.alter = lambda claims: claims.update(aud="another")
    Browser().sign_in(there)
    root = browser(account("root", administrator=True))
    page = root.post("/panel/sign-in-doctor/", {"provider": "main"}).content.decode()
    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("login_doctor", stdout=out)
    assert ended.value.code == 0
    for text in (page, out.getvalue()):
        for shown in (
            "ann",
            "/staff",
            "urn:gold",
            "audience_wrong",
            "discovery",
            "keys",
            "http://testserver/oidc/callback/",
        ):
            assert shown in text, shown
        for hidden in (
            "\x9b",
            SECRET,
            "ann.secret@example.org",
            "sid-7",
            "Hidden Lane",
            there.person,
            "<script>",
        ):
            assert hidden not in text, hidden
    assert "Operator" in page and "given" in page and "default: - -> operator" in out.getvalue()
    zh = root
    zh.cookies["ql_language"] = "zh-hans"
    assert "登录诊断" in zh.get("/panel/sign-in-doctor/").content.decode()


def test_the_command_fails_with_the_provider_and_says_when_there_is_none(
    there: Hostile, settings: Any
) -> None:
    there.answers[DOCUMENT] = lambda call: reply(call, {}, 500)
    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("login_doctor", stdout=out)
    assert ended.value.code == 1 and "discovery_status_500" in out.getvalue()
    settings.SINGLE_SIGN_ON = switched_on()
    call_command("login_doctor", stdout=out)
    assert "OIDC_ISSUER" in out.getvalue()
    root = browser(account("root", administrator=True))
    assert "OIDC_ISSUER" in root.get("/panel/sign-in-doctor/").content.decode()
