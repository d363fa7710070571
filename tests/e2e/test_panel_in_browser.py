"""A person at a running panel: the live log, stopping, the palette, the keys (panel.md §5, §6)."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import chrome
from tests.e2e.chrome import Person
from tests.e2e.person import House
from tests.e2e.up_kit import eventually

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.one_engine,
    pytest.mark.skipif(chrome.CHROMIUM is None, reason="no browser here"),
]

VIEW = "document.querySelector('[data-log-view]')"


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with chrome.browser() as found:
        yield found


@pytest.fixture
def person(started: Any, house: House) -> Iterator[Person]:
    found = Person(started, house.up)
    yield found
    faults = found.faults
    found.close()
    assert not faults, faults


def ticking(house: House, **task: Any) -> str:
    """A run that writes a line every tenth of a second until it is stopped."""
    made = house.api.make(shell="i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.1; done", **task)
    run = house.api.start(made)
    house.api.until(run, ["running"])
    return run


def ended(house: House, shell: str, **task: Any) -> str:
    run = house.api.start(house.api.make(shell=shell, **task))
    house.api.until(run)
    return run


def lines(person: Person) -> list[str]:
    found = person.page.evaluate(
        "[...document.querySelectorAll('.ql-line')].map((one) => one.textContent.trim())"
    )
    return list(found)


def test_a_live_log_follows_pauses_and_counts_what_came(person: Person, house: House) -> None:
    run = ticking(house)
    person.go(f"/panel/runs/{run}/")
    page = person.page
    person.until("document.querySelectorAll('.ql-line').length > 30")
    at_end = f"{VIEW}.scrollHeight - {VIEW}.scrollTop - {VIEW}.clientHeight < 32"
    person.until(at_end)
    page.evaluate(f"{VIEW}.style.maxHeight = '200px'")
    page.evaluate(f"{VIEW}.scrollTop = 0")
    more = page.locator("[data-log-more]")
    more.wait_for(state="visible")
    assert "new lines" in more.inner_text()
    more.click()
    person.until(at_end)
    assert more.is_hidden()
    page.keyboard.press("f")
    assert page.locator("[data-log-follow]").get_attribute("aria-pressed") == "false"
    seen = lines(person)
    numbers = [int(line.split()[1]) for line in seen]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "no gap and no double line"
    house.api.call("POST", f"/runs/{run}/stop", {})
    person.until("document.querySelector('[data-log-note]').textContent.includes('Stopped')")


def test_stopping_asks_once_traps_the_focus_and_ends_with_proof(person: Person, house: House) -> None:
    run = ticking(house, kill_grace_ms=1000)
    person.go(f"/panel/runs/{run}/")
    page = person.page
    stop = page.get_by_role("link", name="Stop")
    stop.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("#stop")
    assert dialog.is_visible()
    for _ in range(8):
        page.keyboard.press("Tab")
        assert page.evaluate(
            "document.activeElement === document.body || !!document.activeElement.closest('#stop')"
        )
    page.keyboard.press("Escape")
    assert dialog.is_hidden()
    assert page.evaluate("document.activeElement.textContent.trim()") == "Stop", "focus is given back"
    page.keyboard.press("s")
    page.fill("#stop #note", "enough of it")
    dialog.get_by_role("button", name="Stop").click()
    page.locator(".ql-run-head .ql-chip[data-state=cancelled]").wait_for(timeout=20_000)
    head = page.locator(".ql-run-head").inner_text()
    assert "all gone after" in head and "KILL was" in head
    assert "enough of it" in page.locator("#run-timeline").inner_text()
    assert page.get_by_role("button", name="Retry").is_enabled()
    assert page.title().startswith("■ ")


def test_a_huge_log_is_read_at_both_ends_and_by_link(person: Person, house: House) -> None:
    shell = "seq -f 'row %.0f of a log that goes on and on' 1 400000"
    run = ended(house, shell, log_quota_bytes=64 * 1024 * 1024)
    person.go(f"/panel/runs/{run}/")
    page = person.page
    person.until(
        "document.querySelector('.ql-chunk:last-child .ql-line:last-child')?.textContent.includes('row 400000 ')"
    )
    assert not page.locator(".ql-numbered").count(), "numbers only when counted from the start"
    page.locator("[data-log-view]").focus()
    page.keyboard.press("Home")
    person.until("document.querySelector('.ql-line')?.textContent.includes('row 1 ')")
    assert page.locator(".ql-numbered").count() == 1
    for _ in range(60):
        page.evaluate(f"{VIEW}.scrollTop = {VIEW}.scrollHeight")
        page.wait_for_timeout(60)
        if (
            page.evaluate("[...document.querySelectorAll('.ql-chunk')].reduce((n, c) => n + c.bytes, 0)")
            > 7_500_000
        ):
            break
    shown = page.evaluate("[...document.querySelectorAll('.ql-chunk')].reduce((n, c) => n + c.bytes, 0)")
    assert shown <= 8 * 1024 * 1024 + 300_000
    page.locator("[data-log-view]").focus()
    page.keyboard.press("End")
    person.until(
        "document.querySelector('.ql-chunk:last-child .ql-line:last-child')?.textContent.includes('row 400000 ')"
    )
    offset = len("".join(f"row {n} of a log that goes on and on\n" for n in range(1, 200_000)))
    person.go(f"/panel/runs/{run}/#log-b{offset}")
    page.reload()
    person.until("document.querySelector('.ql-line.ql-marked')?.textContent.includes('row 200000 ')")
    page.evaluate(f"{VIEW}.scrollTop = 0")
    person.until(f"document.querySelector('.ql-line').offset < {offset - 100_000}")
    # What is loaded does not hold it: the server finds it, by its byte, and both ways lead round.
    page.keyboard.press("/")
    page.keyboard.type("ROW 12345")
    told = page.locator("[data-find-told]")
    assert "not found" in told.inner_text()
    page.keyboard.press("Enter")
    person.until("document.querySelector('[data-find-told]').textContent === '11 of 11'")
    person.until("document.querySelector('.ql-log-view').textContent.includes('row 123459 ')")
    page.keyboard.press("Enter")
    person.until("document.querySelector('[data-find-told]').textContent === '1 of 11'")
    person.until("document.querySelector('.ql-log-view').textContent.includes('row 12345 ')")
    person.until("CSS.highlights.get('ql-find-at').size === 1")
    page.keyboard.press("Escape")


def test_search_wrap_colours_and_long_lines(person: Person, house: House) -> None:
    shell = r"""printf 'plain\n\033[31mred\033[0m and \033[1;4mbold\033[0m\n'; printf '10%%\r50%%\r100%%\n'
    printf 'needle one\nneedle two\n'; head -c 20000 /dev/zero | tr '\0' x; echo; printf 'bidi \342\200\256 end\n'
    echo see https://example.org/a?b=1."""
    person.go(f"/panel/runs/{ended(house, shell)}/")
    page = person.page
    person.until("document.querySelectorAll('.ql-line').length === 8")
    assert (
        page.locator(".ql-a-fg-1").inner_text() == "red"
        and page.locator(".ql-a-bold.ql-a-underline").count() == 1
    )
    assert "100%" in lines(person) and not any("50%" in line for line in lines(person))
    assert any("‹U+202E›" in line for line in lines(person))
    link = page.locator(".ql-line a")
    assert link.get_attribute("href") == "https://example.org/a?b=1"
    assert link.get_attribute("rel") == "noopener noreferrer nofollow"
    fold = page.locator(".ql-fold-more")
    assert fold.inner_text().startswith("+ 12 KB")
    fold.click()
    assert max(len(line) for line in lines(person)) == 20_000
    before = page.locator("[data-log-wrap]").get_attribute("aria-pressed")
    page.keyboard.press("w")
    assert page.locator("[data-log-wrap]").get_attribute("aria-pressed") != before
    page.keyboard.press("w")
    page.keyboard.press("/")
    page.keyboard.type("needle")
    told = page.locator("[data-find-told]")
    assert told.inner_text() == "2 of 2"
    page.keyboard.press("Enter")
    assert told.inner_text() == "1 of 2"
    page.keyboard.press("Shift+Enter")
    assert told.inner_text() == "2 of 2"
    page.keyboard.press("Escape")
    assert page.locator("[data-find]").is_hidden()
    page.locator(".ql-line").nth(3).click(position={"x": 20, "y": 8})
    assert re.search(r"#log-b\d+$", page.evaluate("navigator.clipboard.readText()"))


def test_a_server_that_went_away_is_told_and_caught_up_with(person: Person, house: House) -> None:
    run = ticking(house)
    person.go(f"/panel/runs/{run}/")
    page = person.page
    person.until("document.querySelectorAll('.ql-line').length > 5")
    page.route("**/api/**", lambda route: route.abort())
    person.until("document.querySelector('[data-log-note]').textContent.includes('Reconnecting')")
    page.unroute("**/api/**")
    person.until("!document.querySelector('[data-log-note]').textContent.includes('Reconnecting')")
    count = len(lines(person))
    person.until(f"document.querySelectorAll('.ql-line').length > {count}")
    numbers = [int(line.split()[1]) for line in lines(person)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    house.api.call("POST", f"/runs/{run}/stop", {})


def test_the_palette_goes_runs_and_stops(person: Person, house: House) -> None:
    word = f"Zebra{secrets.token_hex(3)}"
    house.api.make(name=f"{word} feeder", shell="sleep 300")
    person.go("/panel/keys/")
    page = person.page
    page.keyboard.press("Control+k")
    palette = page.locator("#palette")
    palette.wait_for(state="visible")
    page.keyboard.type(word.lower())
    palette.locator(".ql-at", has_text=f"{word} feeder").wait_for()
    assert palette.get_by_role("link", name="Dashboard").count() == 0
    assert palette.get_by_role("button", name=f"Run {word} feeder").count() == 1
    assert palette.get_by_role("link", name=f"{word} feeder").count() == 1
    page.keyboard.press("ArrowDown")
    palette.locator(".ql-at", has_text="Run").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/panel/runs/[0-9a-f-]{36}/$"))
    page.locator(".ql-run-head .ql-chip[data-state=running]").wait_for(timeout=20_000)
    page.keyboard.press("Control+k")
    page.keyboard.type(f"stop {word}")
    palette.get_by_text("Nothing fits.").wait_for()
    page.keyboard.press("Control+a")
    page.keyboard.type(word)
    palette.get_by_role("link", name=f"Stop {word} feeder").click()
    page.get_by_role("button", name="Stop").click()
    page.locator(".ql-run-head .ql-chip[data-state=cancelled]").wait_for(timeout=20_000)
    page.keyboard.press("Control+k")
    page.keyboard.press("Escape")
    assert palette.is_hidden()


def test_a_key_of_the_palette_never_acts_on_an_earlier_answer(person: Person, house: House) -> None:
    word = f"Yak{secrets.token_hex(3)}"
    house.api.make(name=f"{word} feeder", shell="true")
    person.go("/panel/keys/")
    page = person.page
    palette = page.locator("#palette")
    page.keyboard.press("Control+k")
    palette.locator(".ql-at", has_text="New task").wait_for()
    held: list[Any] = []

    def asked() -> None:
        eventually(lambda: page.wait_for_timeout(20) or held, "the question")

    page.route("**/go/?q=*", lambda route: held.append(route))
    page.keyboard.type(word)
    asked()
    page.keyboard.press("Enter")
    page.wait_for_timeout(300)
    assert page.url.endswith("/panel/keys/") and palette.is_visible(), "nothing was done while it was asked"
    held.pop().continue_()
    page.wait_for_url(re.compile(rf"/task/{word.lower()}[^/]*/$"))

    # Who types on after Enter has not chosen yet; who closes it wants nothing.
    page.keyboard.press("Control+k")
    asked()
    page.keyboard.press("Enter")
    page.keyboard.type("keys")
    held.pop().continue_()
    asked()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    held.pop().continue_()
    page.wait_for_timeout(500)
    assert f"/task/{word.lower()}" in page.url and palette.is_hidden()

    # A question without an answer: Enter goes to the page of the question, which tells why.
    page.unroute("**/go/?q=*")
    page.route(
        "**/go/?q=*", lambda route: route.abort() if "x-part" in route.request.headers else route.continue_()
    )
    page.keyboard.press("Control+k")
    page.keyboard.type(word)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/panel/go/?q={word}")
    assert page.get_by_role("link", name=f"{word} feeder").count() == 1


def test_keys_move_act_and_can_be_switched_off(person: Person, house: House) -> None:
    ended(house, "true", name="Key one")
    ended(house, "true", name="Key two")
    person.go("/panel/")
    page = person.page
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url("**/runs/")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    chosen = page.locator("tr.ql-at")
    assert chosen.count() == 1
    run = chosen.get_attribute("data-row")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{run}/")
    page.keyboard.press("?")
    keys = page.locator("#keys")
    keys.wait_for(state="visible")
    page.keyboard.press("g")
    page.keyboard.press("d")
    assert "/runs/" in page.url, "a dialog holds the keys back"
    keys.get_by_label("Single keys work in this browser").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.wait_for_timeout(300)
    assert "/runs/" in page.url
    page.evaluate("localStorage.removeItem('ql-keys')")
    person.go("/panel/p/default/runs/")
    page.keyboard.press("/")
    page.keyboard.type("gd?")
    assert page.locator("#ask-task").input_value() == "gd?"
