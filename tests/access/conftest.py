"""Providers that sign people in, people who invite, and a door that remembers no stranger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from apps.access.models import User
from apps.access.oidc import metadata
from apps.panel.views import coming_in
from tests.access.provider import Hostile, running
from tests.access.single_sign_on import BASE, provider, switched_on
from tests.people import account, member


@pytest.fixture
def there(settings: Any) -> Iterator[Hostile]:
    """The one provider of the settings; whoever is new there gets an account here."""
    metadata.forget()
    with running() as found:
        settings.BASE_URL = BASE
        settings.SINGLE_SIGN_ON = switched_on(provider(found))
        yield found


@pytest.fixture
def partner(there: Hostile, settings: Any) -> Iterator[Hostile]:
    """A second provider beside `there`, by the name of `partner`."""
    with running() as found:
        settings.SINGLE_SIGN_ON = switched_on(provider(there), provider(found, "partner"))
        yield found


@pytest.fixture
def patience() -> None:
    """Nobody has tried a link yet."""
    coming_in._wrong.clear()
    coming_in._tried.clear()


@pytest.fixture
def root() -> User:
    return account("root", administrator=True)


@pytest.fixture
def boss() -> User:
    return member("owner", "boss")
