"""Behind the start barrier the process that carries an approved action out is killed; evidence closes it."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import chrome
from tests.e2e.chrome import Person, axe_faults
from tests.e2e.person import Api, House
from tests.e2e.test_approvals import agent, ask, person, runs_of
from tests.e2e.up_kit import database, eventually

__all__ = ["agent", "person"]
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(chrome.CHROMIUM is None, reason="no browser here"),
]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A panel that can be held behind the barrier."""
    with database() as extra:
        home = tmp_path_factory.mktemp("killed") / "home"
        house = House.build(home, **extra, DJANGO_SETTINGS_MODULE="tests.e2e.held_settings")
        try:
            yield house
        finally:
            house.up.stop()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with chrome.browser() as started:
        yield started


def test_killed_behind_the_barrier_evidence_closes_it_without_a_second_run(
    house: House, person: Api, agent: Api, chromium: Any
) -> None:
    ran = house.up.home.parent / "ran"
    task = person.make(name=f"deploy {secrets.token_hex(3)}", shell=f'echo "$QINGLONG_RUN_ID" >> {ran}')
    id = ask(agent, task, input={"tag": "v2.4"})
    phone = Person(chromium, house.up, width=390, height=844)
    page = phone.page
    hold, held = house.up.home / "hold", house.up.home / "held"
    hold.touch()
    phone.go(f"/panel/approvals/{id}/")
    page.locator(".ql-decide button[value=approved]").click()
    eventually(held.exists, "the action is behind its barrier", 60)
    killed = int(held.read_text())
    assert killed in house.up.parts().values(), "a process of this panel's own"
    page.get_by_text("It is being carried out.").first.wait_for(timeout=20_000)
    os.kill(killed, signal.SIGKILL)
    hold.unlink()

    # Its lease runs out, and the job of the dead is taken up only later: until then the page tells how it stands.
    page.get_by_text("evidence of what happened is looked for").first.wait_for(timeout=60_000)
    assert agent.ok("GET", f"/approvals/{id}/execution")["status"] == "recovery_required"
    assert not axe_faults(page)

    eventually(
        lambda: agent.ok("GET", f"/approvals/{id}/execution")["status"] == "succeeded",
        "evidence closes it",
        150,
    )
    page.get_by_text("Carried out: the run is queued.").first.wait_for(timeout=20_000)
    facts = page.locator(".ql-facts", has=page.locator('a[data-key="run"]'))
    shown = facts.text_content() or ""
    [made] = runs_of(person, task)
    execution = agent.ok("GET", f"/approvals/{id}/execution")
    assert execution["result_code"] == "approved_run_receipt_verified"
    assert execution["receipt"]["resource_id"] == made["id"]
    assert execution["receipt"]["evidence_digest"] in shown
    assert "evidence" in shown and "confirm_succeeded" in shown, "the page says who closed it"
    assert killed not in house.up.parts().values()
    facts.locator('a[data-key="run"]').click()
    page.wait_for_url(f"**/panel/runs/{made['id']}/")
    assert person.until(made["id"])["status"] == "succeeded"
    assert ran.read_text().split() == [made["id"]], "it ran once"
    assert not phone.faults
    phone.close()
