"""Two at once: the same way back, and the same new person in two tabs; real threads and connections."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection

from apps.access.models import SignIn, User
from apps.identity.models import IdentityAuthenticationBinding
from apps.projects.models import ProjectRoleBinding
from tests.access.provider import Hostile
from tests.access.single_sign_on import Browser, provider, switched_on

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("seeded")]


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """What each returned; all begin together."""
    start, found = threading.Barrier(len(acts)), [None] * len(acts)

    def run(number: int, act: Callable[[], Any]) -> None:
        try:
            start.wait(10)
            found[number] = act()
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_one_way_back_in_two_requests_at_once(there: Hostile) -> None:
    for _ in range(3):
        browser = Browser()
        sent = there.code(browser.begin())
        twins = [Browser() for _ in range(2)]
        for twin in twins:
            twin.cookies = browser.cookies.copy()
        answers = at_once(*(partial(twin.come_back, sent) for twin in twins))
        assert sorted(answer.status_code for answer in answers) == [302, 400]
    assert SignIn.objects.count() == 3 and there.asked.count("/token") == 3


def test_a_new_person_in_two_tabs_at_once_becomes_one_account(there: Hostile, settings: Any) -> None:
    settings.SINGLE_SIGN_ON = switched_on(provider(there, role_map={"ops": {"default": "operator"}}))
    for number in range(3):
        there.person = f"new-{number}"
        there.claims = {"preferred_username": f"ann{number}", "groups": ["ops"]}
        browsers = [Browser() for _ in range(2)]
        sent = [there.code(browser.begin()) for browser in browsers]
        pairs = zip(browsers, sent, strict=True)
        answers = at_once(*(partial(browser.come_back, query) for browser, query in pairs))
        assert [answer.status_code for answer in answers] == [302, 302], [
            re.findall("<code>[^<]*", answer.content.decode()) for answer in answers
        ]
        assert User.objects.filter(username__startswith=f"ann{number}").count() == 1
    assert IdentityAuthenticationBinding.objects.filter(provider="oidc:main").count() == 3
    assert list(ProjectRoleBinding.objects.values_list("version", "role")) == [(1, "operator")] * 3
