"""A person marks a task, is led to asking instead of starting, asks on a phone, and takes it back."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import chrome
from tests.e2e.chrome import Person, axe_faults
from tests.e2e.person import Api, House
from tests.e2e.test_approvals import person, runs_of

__all__ = ["person"]
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.one_engine,
    pytest.mark.skipif(chrome.CHROMIUM is None, reason="no browser here"),
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with chrome.browser() as started:
        yield started


@pytest.mark.parametrize("scripts", [True, False])
def test_marked_in_the_form_asked_for_and_taken_back(
    house: House, person: Api, chromium: Any, scripts: bool
) -> None:
    task = person.make(name=f"deploy {secrets.token_hex(3)}", shell="true")
    phone = Person(chromium, house.up, width=390, height=844, scripts=scripts)
    page = phone.page
    phone.go(f"/panel/p/default/task/{task['slug']}/edit/")
    page.locator("details:has(#f-requires_approval) > summary").click()
    page.check("#f-requires_approval")
    page.click("button[value=save-and-run]")
    page.wait_for_url("**/run-with/")
    assert "Saved, not started" in (page.text_content("body") or "")
    assert person.ok("GET", f"/projects/default/tasks/{task['slug']}")["requires_approval"]
    # Without script what was said stays over the foot of the page until the next one.
    phone.go(f"/panel/p/default/task/{task['slug']}/run-with/")
    page.fill("#f-args", "--now")
    page.select_option("#f-risk", "high")
    if scripts:
        assert not axe_faults(page)
    page.click("button[value=ask]")
    page.wait_for_url(re.compile(r"/panel/approvals/[^/]+/$"))
    assert "You asked for this" in (page.text_content("main") or "")
    assert page.locator(".ql-decide").count() == 0
    # The list of tasks leads there too, and to nothing that starts.
    phone.go("/panel/p/default/tasks/")
    row = page.locator("tr", has=page.get_by_role("link", name=task["name"], exact=True))
    row.get_by_role("link", name=f"Ask for approval to run {task['name']}").click()
    page.wait_for_url("**/run-with/")
    phone.go(f"/panel/p/default/task/{task['slug']}/")
    page.get_by_role("link", name="A request to start it waits for a decision").click()
    page.get_by_role("button", name="Take it back").click()
    page.get_by_text("Who asked took it back.").first.wait_for()
    assert not runs_of(person, task)
    assert not phone.faults
    phone.close()
