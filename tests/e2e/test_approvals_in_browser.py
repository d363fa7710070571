"""An agent asks over the API, a person approves on a phone, the run starts, and the receipt is shown."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import chrome
from tests.e2e.chrome import Person, axe_faults
from tests.e2e.person import Api, House
from tests.e2e.test_approvals import agent, ask, person, runs_of
from tests.e2e.up_kit import eventually

__all__ = ["agent", "person"]
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(chrome.CHROMIUM is None, reason="no browser here"),
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with chrome.browser() as started:
        yield started


@pytest.mark.parametrize("language", ["en", "zh"])
def test_asked_by_an_agent_approved_on_a_phone(
    house: House, person: Api, agent: Api, chromium: Any, language: str
) -> None:
    name = f"deploy {secrets.token_hex(3)}"
    task = person.make(name=name, shell='cat "$QINGLONG_INPUT"')
    id = ask(agent, task, input={"tag": "v2.4"})
    phone = Person(chromium, house.up, language=language, width=390, height=844)
    page = phone.page
    page.locator(".ql-tabbar a", has=page.locator('[data-badge="approvals"]')).click()
    page.get_by_role("link", name=name).click()
    page.wait_for_url(f"**/panel/approvals/{id}/")
    left = page.locator("[data-left]").first
    first = left.text_content()
    eventually(lambda: left.text_content() != first, "the time that is left counts down")
    assert "v2.4" in (page.text_content("main") or "")
    assert not axe_faults(page)
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0
    approve = page.locator(".ql-decide button[value=approved]")
    box, foot = approve.bounding_box(), page.locator(".ql-tabbar").bounding_box()
    assert box and foot and box["y"] + box["height"] <= foot["y"], "one thumb reaches it without scrolling"
    assert box["height"] >= 44
    approve.click()
    run = page.locator('.ql-facts a[data-key="run"]')
    run.wait_for(timeout=40_000)
    [made] = runs_of(person, task)
    execution = agent.ok("GET", f"/approvals/{id}/execution")
    assert execution["receipt"]["resource_id"] == made["id"]
    assert execution["receipt"]["evidence_digest"] in (page.text_content("main") or "")
    assert page.locator(".ql-decide").count() == 0
    run.click()
    page.wait_for_url(f"**/panel/runs/{made['id']}/")
    assert person.until(made["id"])["status"] == "succeeded"
    assert not phone.faults
    phone.close()


def test_another_tab_sees_the_decision_and_loses_its_buttons(
    house: House, person: Api, agent: Api, chromium: Any
) -> None:
    task = person.make(command=["true"])
    id = ask(agent, task)
    window = Person(chromium, house.up)
    window.go(f"/panel/approvals/{id}/")
    assert window.page.locator(".ql-decide").is_visible()
    verdict = {
        "decision": "rejected", "reason_code": "not_now", "expected_version": 1, "decision_id": secrets.token_hex(8),
    }  # fmt: skip
    person.ok("POST", f"/approvals/{id}/decision", verdict)
    window.page.locator(".ql-decide").wait_for(state="detached", timeout=20_000)
    assert "Rejected" in (window.page.text_content("main") or "")
    assert not runs_of(person, task) and not window.faults
    window.close()


def test_without_script_it_is_decided_too(house: House, person: Api, agent: Api, chromium: Any) -> None:
    task = person.make(command=["true"])
    id = ask(agent, task)
    window = Person(chromium, house.up, scripts=False)
    window.go(f"/panel/approvals/{id}/")
    window.page.click(".ql-decide button[value=rejected]")
    window.page.wait_for_url(f"**/panel/approvals/{id}/")
    assert agent.ok("GET", f"/approvals/{id}")["status"] == "rejected"
    window.close()
