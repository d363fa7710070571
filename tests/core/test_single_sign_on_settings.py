"""`OIDC_*`: what starts, and what stops the start with a word that helps and no secret in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qinglong.environment import ConfigurationError
from qinglong.single_sign_on import read

pytestmark = pytest.mark.one_engine
BASE = "https://ql.example.org"
PLAIN = {
    "OIDC_ISSUER": "https://id.example.org/realms/x",
    "OIDC_CLIENT_ID": "ql",
    "OIDC_CLIENT_SECRET": "s3cret",
}


def test_nothing_set_is_nothing_switched_on() -> None:
    found = read({"PATH": "/bin"}, "")
    assert (found.providers, found.required, found.session_hours) == ((), False, 12)


def test_one_provider_with_defaults() -> None:
    (one,) = read(PLAIN, BASE).providers
    assert (one.alias, one.key, one.name) == ("main", "oidc:main", "id.example.org")
    assert one.scopes == ("openid", "profile", "email")
    assert (one.username_claim, one.groups_claim, one.provision) == ("preferred_username", "groups", False)
    assert one.client_secret == "s3cret" and "s3cret" not in repr(one)


def test_further_providers_carry_their_names(tmp_path: Path) -> None:
    secret, roles = tmp_path / "secret", tmp_path / "roles"
    secret.write_text("from a file\n")
    roles.write_text(json.dumps({"CN=Ops,OU=x": {"default": "operator"}}))
    found = read(
        {
            **PLAIN,
            "OIDC_PROVIDERS": "big-corp",
            "OIDC_BIG_CORP_ISSUER": "http://127.0.0.1:9000",
            "OIDC_BIG_CORP_CLIENT_ID": "two",
            "OIDC_BIG_CORP_CLIENT_SECRET_FILE": str(secret),
            "OIDC_BIG_CORP_ROLE_MAP_FILE": str(roles),
            "OIDC_BIG_CORP_PROVISION": "yes",
            "OIDC_BIG_CORP_MULTI_FACTOR": "mfa urn:x",
            "OIDC_REQUIRED": "1",
            "OIDC_BREAK_GLASS": "root",
            "OIDC_SESSION_HOURS": "8",
        },
        BASE,
    )
    main, corp = found.providers
    assert (corp.key, corp.client_secret, corp.provision) == ("oidc:big-corp", "from a file", True)
    assert corp.role_map == {"CN=Ops,OU=x": {"default": "operator"}} and main.role_map == {}
    assert corp.multi_factor == {"mfa", "urn:x"}
    assert (found.required, found.break_glass, found.session_hours) == (True, "root", 8)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"OIDC_ISUER": "https://id.example.org"}, "unknown_setting"),
        ({"OIDC_PARTNER_ISSUER": "https://id.example.org"}, "unknown_setting"),
        ({"OIDC_CLIENT_ID": ""}, "oidc_client_id_missing"),
        ({"OIDC_ISSUER": ""}, "oidc_issuer_invalid"),
        ({"OIDC_ISSUER": "http://id.example.org"}, "oidc_issuer_invalid"),
        ({"OIDC_ISSUER": "https://ann:pw@id.example.org"}, "oidc_issuer_invalid"),
        ({"OIDC_ISSUER": "https://id.example.org/?x=1"}, "oidc_issuer_invalid"),
        ({"OIDC_ISSUER": "https://[id"}, "oidc_issuer_invalid"),
        ({"OIDC_ISSUER": "https://id.example.org:x"}, "oidc_issuer_invalid"),
        ({"OIDC_SCOPES": "profile"}, "oidc_scopes_invalid"),
        ({"OIDC_SCOPES": 'openid "x'}, "oidc_scopes_invalid"),
        ({"OIDC_GROUPS_CLAIM": "a b"}, "oidc_claim_invalid"),
        ({"OIDC_ROLE_MAP": "ops=default"}, "oidc_role_map_invalid"),
        ({"OIDC_ROLE_MAP": '["ops"]'}, "oidc_role_map_invalid"),
        ({"OIDC_ROLE_MAP": '{"ops": "viewer"}'}, "oidc_role_map_invalid"),
        ({"OIDC_ROLE_MAP": '{"ops": {"default": "owner"}}'}, "oidc_role_map_invalid"),
        ({"OIDC_ROLE_MAP": '{"ops": {"default": ["viewer"]}}'}, "oidc_role_map_invalid"),
        ({"OIDC_ROLE_MAP": "[" * 50_000}, "oidc_role_map_invalid"),
        ({"OIDC_PROVISION": "maybe"}, "switch_invalid"),
        ({"OIDC_REQUIRED": "1"}, "oidc_break_glass_missing"),
        ({"OIDC_SESSION_HOURS": "0"}, "number_invalid"),
        ({"OIDC_SESSION_HOURS": "337"}, "number_invalid"),
        ({"OIDC_PROVIDERS": "Partner"}, "oidc_providers_invalid"),
        ({"OIDC_PROVIDERS": "main"}, "oidc_providers_invalid"),
        ({"OIDC_PROVIDERS": "a,a"}, "oidc_providers_invalid"),
        ({"OIDC_PROVIDERS": "partner"}, "oidc_client_id_missing"),
        ({"OIDC_CLIENT_SECRET_FILE": "/etc/hostname"}, "setting_twice"),
        ({"OIDC_CLIENT_SECRET": "", "OIDC_CLIENT_SECRET_FILE": "/nothing/here"}, "file_not_readable"),
        ({"OIDC_CLIENT_SECRET": "", "OIDC_CLIENT_SECRET_FILE": "/dev/zero"}, "file_not_readable"),
    ],
)
def test_what_cannot_work_stops_the_start(values: dict[str, str], code: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read({**PLAIN, **values}, BASE)
    assert refused.value.code == code
    assert "s3cret" not in str(refused.value) and refused.value.__cause__ is None


def test_people_must_be_sent_back_to_somewhere() -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(PLAIN, "")
    assert refused.value.code == "oidc_needs_base_url"
