"""A provider that signs people in, and two of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from apps.access.oidc import metadata
from tests.access.provider import Hostile, running
from tests.access.single_sign_on import BASE, provider, switched_on


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
