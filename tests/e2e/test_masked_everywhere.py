"""A script prints its secrets in every form: log file, API, panel and the log as it grows show marks instead."""

from __future__ import annotations

import base64
import json
import re
import shlex
import time
import urllib.parse
from typing import Any

import pytest

from tests.e2e.person import House
from tests.e2e.window import Window

TOKEN = "ghp_R7c0m/Qz+8w&<k'\"x é"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END KEY-----\n"
PRINTER = """
import base64, json, os, shlex, sys, time, urllib.parse

def shown(value):
    raw = value.encode()
    yield value
    for before in (b"", b"u", b"us"):
        yield base64.b64encode(before + raw).decode()
        yield base64.urlsafe_b64encode(before + raw + b":x").decode()
    yield from (raw.hex(), raw.hex().upper(), repr(value), repr(raw), shlex.quote(value))
    yield from (urllib.parse.quote(value), urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value))
    yield from (json.dumps(value), json.dumps(value, ensure_ascii=False), json.dumps(value).replace("/", chr(92) + "/"))
    yield value.replace(chr(10), chr(13) + chr(10))

print("*** the script's own stars ***")
for value in (os.environ["TOKEN"], os.environ["KEY"]):
    for text in shown(value):
        data = f"<{text}>".encode() + b"\\n"
        for at in range(0, len(data), 7):
            os.write(1 if at % 2 else 2, data[at : at + 7])
            time.sleep(0.002)
with open(os.environ["QINGLONG_OUTPUT"], "w") as output:
    json.dump({"said": os.environ["TOKEN"]}, output)
"""


def spellings(value: str) -> set[bytes]:
    """What must be nowhere, as libraries spell it; of base64 the digits that are the value's alone."""
    value = value.strip()
    raw = value.encode()
    texts = {
        value, raw.hex(), raw.hex().upper(), repr(value)[1:-1], shlex.quote(value)[1:-1],
        urllib.parse.quote(value), urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value),
        json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1],
        value.replace("\n", "\r\n"), *(line for line in value.splitlines() if len(line) > 20),
    }  # fmt: skip
    for shift in range(3):
        digits = base64.b64encode(bytes(shift) + raw).rstrip(b"=").decode()[(8 * shift + 5) // 6 : -1]
        texts |= {digits, digits.replace("+", "-").replace("/", "_")}
    return {text.encode() for text in texts}


NOWHERE = spellings(TOKEN) | spellings(KEY)


def assert_clean(*places: tuple[str, bytes]) -> None:
    found = [(place, text) for place, content in places for text in NOWHERE if text in content]
    assert not found, found


@pytest.fixture(scope="module")
def printer(house: House) -> dict[str, Any]:
    for name, value in (("token", TOKEN), ("key", KEY)):
        house.browser.submit("/panel/p/default/secrets/", {"name": name, "value": value}, having="value")
    script = {"language": "python", "source": PRINTER}
    return house.api.make(name="Printer", script=script, secrets={"TOKEN": "token", "KEY": "key"})


def test_no_form_in_log_api_panel_or_live_stream(house: House, printer: dict[str, Any]) -> None:
    api, browser = house.api, house.browser
    run_id = api.start(printer)
    api.until(run_id, {"running"})
    streamed, looks = b"", 0
    while True:
        answer = api.call("GET", f"/runs/{run_id}/log?offset={len(streamed)}&limit=65536")
        streamed += answer.content
        assert_clean(("the stream", streamed))
        if looks % 10 == 0:
            page = browser.get(f"/panel/runs/{run_id}/")
            assert_clean(("the live page", page.content))
        looks += 1
        if answer.headers["X-Log-Complete"] == "true" and len(streamed) >= int(answer.headers["X-Log-Size"]):
            break
        time.sleep(0.02)
    assert looks > 5
    run = api.until(run_id)
    assert run["status"] == "succeeded"
    assert run["secrets_printed"] == ["token", "key"]
    lines = streamed.splitlines()
    assert lines[0] == b"*** the script's own stars ***"
    assert all(b"***" in line or len(line) <= 2 for line in lines)
    assert len(lines) >= 1 + 2 * 18
    places = [
        (path, api.call("GET", path).content)
        for path in (
            f"/runs/{run_id}", f"/runs/{run_id}/events?limit=500", f"/runs/{run_id}/attempts", f"/runs/{run_id}/log",
            f"/runs/{run_id}/log?download=1", f"/runs/{run_id}/log/search?q=x", f"/runs/{run_id}/output",
            "/projects/default/runs", "/projects/default/audit", f"/projects/default/tasks/{printer['slug']}",
        )
    ]  # fmt: skip
    assert_clean(*places)
    for path in (f"runs/{run_id}/", f"runs/{run_id}/log/", "p/default/runs/", "p/default/task/printer/", ""):
        answer = browser.get(f"/panel/{path}")
        assert answer.status == 200, path
        assert_clean((path, answer.content))
    for path in house.up.home.rglob("*"):
        if path.is_file():
            assert_clean((str(path), path.read_bytes()))
    part = browser.get(f"/panel/runs/{run_id}/").text
    assert "This run printed 2 secrets." in part
    assert 'href="/panel/p/default/secrets/token/"' in part


def test_the_log_marks_places_that_the_server_knows_and_no_others(
    house: House, printer: dict[str, Any], chromium: Any
) -> None:
    task = house.api.make(
        shell='echo "*** mine $TOKEN ***"; echo "https://u:$TOKEN@host/x"', secrets={"TOKEN": "token"}
    )
    run_id = house.api.start(task)
    house.api.until(run_id)
    window = Window(chromium, house.up, language="en", width=1280)
    try:
        session = next(cookie.value for cookie in house.browser.jar if cookie.name == "ql_session")
        window.context.add_cookies([{"name": "ql_session", "value": session, "url": f"{window.base}/"}])
        window.go(f"/panel/runs/{run_id}/")
        window.page.wait_for_selector(".ql-line .ql-masked")
        shown = window.page.locator(".ql-line").all_inner_texts()
        assert [re.sub(r"\s+$", "", line) for line in shown] == ["*** mine *** ***", "https://u:***@host/x"]
        marks = window.page.locator(".ql-masked")
        assert marks.all_inner_texts() == ["***", "***"]
        assert marks.first.get_attribute("title") == "A secret stood here."
        assert window.page.locator(".ql-line a").get_attribute("href") == "https://u"
    finally:
        window.close()
