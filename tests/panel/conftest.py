"""An owner of the default project, and their browser."""

from __future__ import annotations

import pytest
from django.test import Client

from apps.access.models import User
from tests.panel.kit import browser
from tests.people import member


@pytest.fixture
def owner() -> User:
    return member("owner", "ann")


@pytest.fixture
def client(owner: User) -> Client:
    return browser(owner)
