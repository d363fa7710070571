"""Acceptance scenarios 31–33 of projects-and-identity.md, against our own list of live sessions."""

from __future__ import annotations

import pytest
from django.core import signing
from django.db import IntegrityError, transaction
from django.test import Client

from apps.access.errors import SessionListUnavailable
from apps.access.models import SignIn
from apps.access.queries import is_active
from apps.identity.principals import Assurance
from tests.conftest import Time
from tests.people import PASSWORD, Api, member, signed_in

pytestmark = pytest.mark.django_db
PHONE = {"headers": {"User-Agent": "Mozilla/5.0 (iPhone) Mobi"}}


def key_of(client: Client) -> str:
    return str(client.cookies["ql_session"].value)


def test_projects_31_session_list(time: Time) -> None:
    user = member("viewer")
    assert not is_active("x" * 32, "mobile"), "no list yet"
    mobile = key_of(signed_in(user, **PHONE))
    assert is_active(mobile, "mobile") and not is_active(mobile, "desktop")
    for bad in ("", "x" * 4097):
        with pytest.raises(SessionListUnavailable):
            is_active(bad, "mobile")
    with pytest.raises(ValueError, match="platform"):
        is_active(mobile, "watch")
    SignIn.objects.all().delete()
    assert not is_active(mobile, "mobile")
    keys = [key_of(signed_in(user, **PHONE)) for _ in range(64)]
    assert all(is_active(key, "mobile") for key in keys)


def test_projects_31_the_65th_entry_cannot_be_written() -> None:
    """Where the spec reads 65 entries as damage, the database does not hold them."""
    signed_in(member("viewer"))
    columns = {field.attname: getattr(SignIn.objects.get(), field.attname) for field in SignIn._meta.fields}
    columns |= {"id": None, "digest": "0" * 64, "slot": 64}
    with pytest.raises(IntegrityError), transaction.atomic():
        SignIn.objects.create(**{name: value for name, value in columns.items() if name != "id"})


def test_projects_32_a_signature_is_not_enough(time: Time) -> None:
    user = member("viewer")
    client = signed_in(user)
    key = key_of(client)
    assert Api(client=client)("GET", "me").status_code == 200
    client.post("/panel/logout/")
    for cookie in (key, signing.dumps({"user": str(user.pk)}), signing.dumps(key), f"{key}.role=owner"):
        stale = Client()
        stale.cookies["ql_session"] = cookie
        assert Api(client=stale)("GET", "me").status_code == 401
        assert stale.get("/panel/").status_code == 302


def test_projects_33_two_factor_flag() -> None:
    """The present setting of an account proves nothing about how an older session was obtained."""
    from apps.access.factors import codes
    from apps.access.models import CodeApp
    from apps.vault import keyring

    keyring.ensure()
    user = member("viewer", "ann")
    client = Client()
    client.post("/panel/login/", {"username": "ann", "password": PASSWORD})
    codes.begin_code_app(user, "panel.example")
    CodeApp.objects.update(confirmed=True)
    assert codes.has_second_factor(user)
    me = Api(client=client)("GET", "me").json()
    assert me["assurance"] == Assurance.SINGLE_FACTOR
