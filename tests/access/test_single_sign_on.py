"""Signing in through a provider, over real HTTP: what is believed, and what is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from apps.access.models import ProviderSignIn, User
from apps.access.oidc import metadata
from tests.access.provider import Hostile, running
from tests.access.single_sign_on import BASE, Browser, provider, switched_on

pytestmark = pytest.mark.django_db


@pytest.fixture
def there(settings: Any) -> Iterator[Hostile]:
    metadata.forget()
    with running() as found:
        settings.BASE_URL = BASE
        settings.SINGLE_SIGN_ON = switched_on(provider(found))
        yield found


def test_a_person_comes_in(there: Hostile) -> None:
    browser = Browser()
    answer = browser.sign_in(there, next="/panel/p/default/tasks/?show=all")
    assert answer.headers.get("Location") == "/panel/p/default/tasks/?show=all", answer.content.decode()
    assert User.objects.get().username == "ann"
    assert browser.me["assurance"] == "single_factor"
    assert ProviderSignIn.objects.get().outcome == "signed_in"
