"""What sign-in leaves behind goes by itself, and what is alive stays."""

from __future__ import annotations

from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from apps.access.jobs import tidy
from apps.access.models import ApiToken, SignIn
from apps.access.scopes import Credential
from apps.access.services import create_application, create_token, exchange
from apps.identity.principals import PolicySubject
from tests.conftest import Time
from tests.people import ROOT, member, signed_in

pytestmark = pytest.mark.django_db


def test_what_is_over_is_forgotten(time: Time) -> None:
    user = member("viewer", "ann")
    signed_in(user)
    row = create_application("api_app", "ci", actor=ROOT, origin="tests")
    app = PolicySubject("api_app", row.pk)
    client = create_token(
        app, name="c", scopes=["*"], kind="client", maker=Credential("session"), origin="tests"
    )
    exchange(app.id, client.secret, None, address="127.0.0.1")
    time.advance(14 * 86_400_000 - 1)
    fresh = signed_in(user)
    time.advance(1)
    Client().post("/panel/login/", {"username": "ann", "password": "wrong"})
    AccessAttempt.objects.update(attempt_time=timezone.now() - settings.AXES_COOLOFF_TIME)
    Client().post("/panel/login/", {"username": "bob", "password": "wrong"})
    Session.objects.create(
        session_key="stale", session_data="", expire_date=timezone.now() - timedelta(days=1)
    )
    tidy({})
    assert SignIn.objects.count() == 1 and fresh.get("/api/v3/me").status_code == 200
    assert Session.objects.count() == 1
    assert list(ApiToken.objects.values_list("kind", flat=True)) == ["client"]
    assert AccessAttempt.objects.count() == 1
