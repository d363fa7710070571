"""Every page in Chromium: nothing the strict policy refuses, nothing serious for axe, nothing wider than a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests import furnishing
from tests.e2e import chrome
from tests.e2e.chrome import Person, axe_faults
from tests.e2e.up_kit import Up, database

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.one_engine,
    pytest.mark.skipif(chrome.CHROMIUM is None, reason="no browser here"),
]

FIRST_VISIT_KB = 250
LIST_HTML_KB = 150
SEEN_MS = 1000


@dataclass
class Furnished:
    """A panel with things of every kind in it, and the browser that looks at it."""

    up: Up
    pages: dict[str, str]
    chrome: Any


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Furnished]:
    with database() as extra:
        up = Up(tmp_path_factory.mktemp("pages") / "home", **extra)
        try:
            up.wait_ready()
            pages = furnishing.furnish(up, **extra)
            with chrome.browser() as started:
                yield Furnished(up, pages, started)
        finally:
            furnishing.end(up)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_page_has_a_serious_fault(panel: Furnished, language: str) -> None:
    person = Person(panel.chrome, panel.up, language=language, color_scheme="light", reduced_motion="reduce")
    found = {}
    for name, address in panel.pages.items():
        person.go(address)
        if faults := axe_faults(person.page):
            found[name] = faults
        # The same page in the dark: nothing but its colours is another.
        person.page.emulate_media(color_scheme="dark", reduced_motion="reduce")
        if faults := axe_faults(person.page, "color-contrast", "link-in-text-block"):
            found[f"{name} in the dark"] = faults
        person.page.emulate_media(color_scheme="light", reduced_motion="reduce")
    assert not found and not person.faults, (found, person.faults)
    person.close()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_phone_scrolls_no_page_sideways_and_has_room_for_a_thumb(panel: Furnished, language: str) -> None:
    person = Person(
        panel.chrome,
        panel.up,
        language=language,
        width=390,
        height=844,
    )
    for name, address in panel.pages.items():
        person.go(address)
        wide = person.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= 0, (name, wide)
        small = person.page.evaluate(
            """[...document.querySelectorAll(".ql-button:not(.ql-small), .ql-tabbar a, .ql-tabbar summary")]
            .filter((one) => one.offsetParent && one.getBoundingClientRect().height < 44)
            .map((one) => one.outerHTML.slice(0, 120))"""
        )
        assert not small, (name, small)
    person.go(panel.pages["tasks"])
    foot = person.page.locator(".ql-tabbar").bounding_box()["y"]
    rows = person.page.locator("tbody tr").all()
    seen = [row for row in rows if (box := row.bounding_box()) and box["y"] + box["height"] <= foot]
    assert len(seen) >= 7, len(seen)
    assert not person.faults
    person.close()


def test_zoomed_to_four_hundred_percent_nothing_is_lost(panel: Furnished) -> None:
    person = Person(panel.chrome, panel.up, width=320, height=256)
    for name in ("dashboard", "runs", "run-failed", "audit", "workers", "tokens"):
        person.go(panel.pages[name])
        wide = person.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= 0, (name, wide)
    person.close()


def test_everything_is_reached_by_tab_and_seen(panel: Furnished) -> None:
    person = Person(panel.chrome, panel.up)
    for name in ("dashboard", "runs", "run-failed", "audit", "project", "tokens", "workers"):
        person.go(panel.pages[name])
        # What can be used: on screen, not hidden in a closed menu, not a tab that arrows reach.
        usable = person.page.evaluate(
            """[...document.querySelectorAll("a[href], button, input, select, textarea, summary")]
            .filter((one) => one.checkVisibility({visibilityProperty: true}) && !one.disabled && one.tabIndex >= 0
              && one.type !== "hidden" && !(one.type === "radio")).length"""
        )
        reached: set[str] = set()
        unseen, last = [], ""
        for _ in range(usable + 40):
            person.page.keyboard.press("Tab")
            told = person.page.evaluate(
                """() => { const one = document.activeElement; if (!one || one === document.body) return null;
                one.dataset.tab ??= String(Math.random());
                const look = getComputedStyle(one);
                const ground = one.matches(".ql-chart a, .ql-strip a");
                return [one.dataset.tab, look.outlineStyle !== "none" || ground, one.outerHTML.slice(0, 120),
                  one.matches("a[href], button, input, select, textarea, summary")]; }"""
            )
            if told is None or (told[0] in reached and told[0] != last):
                break
            last = told[0]  # a date is several stops
            reached.add(last)
            if not told[1]:
                unseen.append(told[2])
        assert not unseen, (name, unseen)
        assert len(reached) >= usable, (name, len(reached), usable)
    person.close()


def test_without_script_lists_runs_stops_and_reads_the_log(panel: Furnished) -> None:
    person = Person(panel.chrome, panel.up, scripts=False)
    for name, address in panel.pages.items():
        if name == "sign-in":
            continue
        answer = person.go(address)
        # What differs behind the # only is the page that is there already.
        assert answer is None or answer.status in (200, 404), name
    person.go(panel.pages["run-failed"])
    page = person.page
    assert "Connection refused" in page.locator(".ql-log-view").inner_text()
    for part in ("panel-timeline", "panel-attempts", "panel-io", "panel-facts"):
        assert page.locator(f"#{part}").is_visible(), part
    page.get_by_role("button", name="Retry").click()
    page.wait_for_url(re.compile(r"/panel/runs/[0-9a-f-]{36}/$"))
    person.go(panel.pages["run-live"])
    page.get_by_role("link", name="Stop").click()
    page.fill("#note", "no script")
    page.get_by_role("button", name="Stop").click()
    page.wait_for_url(re.compile(r"/panel/runs/[0-9a-f-]{36}/$"))
    assert "Stop requested" in page.content() or "being stopped" in page.content()
    person.close()


def test_first_visits_are_light_and_quick(panel: Furnished) -> None:
    weights = {}
    for name in ("dashboard", "tasks", "runs", "run-failed"):
        best = SEEN_MS * 10.0
        for _ in range(3):
            person = Person(panel.chrome, panel.up)
            cookies = person.context.cookies()
            person.close()
            context = panel.chrome.new_context(viewport={"width": 1440, "height": 900})
            context.add_cookies(cookies)
            page = context.new_page()
            wire: list[float] = []
            protocol = context.new_cdp_session(page)
            protocol.on(
                "Network.loadingFinished", lambda event, wire=wire: wire.append(event["encodedDataLength"])
            )
            protocol.send("Network.enable")
            answer = page.goto(f"http://127.0.0.1:{panel.up.port}{panel.pages[name]}", wait_until="load")
            page.wait_for_timeout(300)
            best = min(best, page.evaluate(_PAINT))
            weights[name] = (sum(wire) / 1024, len(answer.body()) / 1024)
            context.close()
        assert weights[name][0] <= FIRST_VISIT_KB, weights
        assert weights[name][1] <= LIST_HTML_KB, weights
        assert best <= SEEN_MS, (name, best)


_PAINT = """new Promise((tell) => {
  new PerformanceObserver((list) => tell(list.getEntries().at(-1).startTime))
    .observe({type: "largest-contentful-paint", buffered: true});
  setTimeout(() => tell(99999), 2000);
})"""
