"""Both languages are complete, and the compiled catalogue is the written one."""

from __future__ import annotations

import gettext
import re
import shutil
import subprocess
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.utils import translation

from apps.access.models import User
from apps.access.services import create_application
from apps.core import clock
from apps.panel import words
from tests.panel.kit import a_run, a_task, browser
from tests.panel.test_pages import addresses
from tests.people import ROOT as SOMEBODY
from tests.people import member

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = ROOT / "locale/zh_Hans/LC_MESSAGES/django.po"
PLACE = re.compile(r"%\([a-z_]+\)[sd]|%[sd]|\{[a-z]+\}")
# Names, code and short technical words that stay as they are in Chinese.
LATIN_ALLOWED = re.compile(
    r"QingLong|English|Python|Node\.js|TypeScript|Shell|API|MB|KB|GB|ann|Default|default|Back up|back-up|nightly|"
    r"one two|user|project|bootstrap|console|panel|tests|system|owner-bootstrap|Tab|Esc|QINGLONG_EXIT_CODE|"
    r"qinglong up|JSON|NAME=value|QINGLONG_OUTPUT|QINGLONG_INPUT|QINGLONG_ARTIFACTS|SHA-256|/bin/sh -c|NAME_FILE|"
    r"NAME|by hand|Ctrl|Enter|Webhook|QINGLONG_NODE_LABELS|HTTPS|localhost|PIN|MCP|HMAC|POST|GitHub|UTC|label:|"
    r"status:failed",
)


def entries() -> list[dict[str, str]]:
    """The catalogue's entries: context, id, plural, text, flags."""
    found = []
    for block in CATALOGUE.read_text(encoding="utf-8").split("\n\n")[1:]:
        entry = {"flags": " ".join(line for line in block.splitlines() if line.startswith("#,"))}
        for field in ("msgctxt", "msgid", "msgid_plural", r"msgstr(?:\[0\])?"):
            match = re.search(rf'^{field} ((?:"(?:[^"\\]|\\.)*"\n?)+)', block + "\n", re.MULTILINE)
            text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', match[1])) if match else ""
            entry[field.split("(")[0]] = text.replace("\\n", "\n").replace('\\"', '"')
        if not block.startswith("#~"):
            found.append(entry)
    return found


def test_every_entry_is_translated_and_none_is_fuzzy() -> None:
    found = entries()
    assert len(found) > 300
    assert not [entry["msgid"] for entry in found if not entry["msgstr"] or "fuzzy" in entry["flags"]]
    for entry in found:
        assert sorted(PLACE.findall(entry["msgid_plural"] or entry["msgid"])) == sorted(
            PLACE.findall(entry["msgstr"])
        ), entry["msgid"]
        # 申请, 邀请 and 请求 are words of their own.
        assert not re.search("[您！]|(?<![申邀])请(?!求)", entry["msgstr"]), entry["msgstr"]
        assert not re.search(r"[\u4e00-\u9fff][,;:?](?:\s|$)", entry["msgstr"]), entry["msgstr"]


def test_the_compiled_catalogue_is_the_written_one() -> None:
    with CATALOGUE.with_suffix(".mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    for entry in entries():
        if entry["msgid_plural"] and entry["msgctxt"]:
            found = compiled.npgettext(entry["msgctxt"], entry["msgid"], entry["msgid_plural"], 2)
            assert found == entry["msgstr"]
        elif entry["msgid_plural"]:
            assert compiled.ngettext(entry["msgid"], entry["msgid_plural"], 2) == entry["msgstr"]
        elif entry["msgctxt"]:
            assert compiled.pgettext(entry["msgctxt"], entry["msgid"]) == entry["msgstr"]
        else:
            assert compiled.gettext(entry["msgid"]) == entry["msgstr"]


@pytest.mark.skipif(shutil.which("xgettext") is None, reason="gettext is not installed")
def test_no_text_of_the_code_is_missing_in_the_catalogue() -> None:
    sources = [
        str(path.relative_to(ROOT))
        for folder in ("apps", "qinglong")
        for path in (ROOT / folder).rglob("*.py")
    ]
    command = [
        "xgettext",
        "-L",
        "Python",
        "-o",
        "-",
        "--no-location",
        "--no-wrap",
        "--from-code=UTF-8",
        "-k_",
    ]
    command += [
        "-kgettext_lazy",
        "-kngettext:1,2",
        "-kpgettext:1c,2",
        "-kpgettext_lazy:1c,2",
        "-kngettext_lazy:1,2",
    ]
    output = subprocess.run([*command, *sources], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    used = set(re.findall(r'^msgid "(.+)"$', output, re.MULTILINE))
    written = set(re.findall(r'^msgid "(.+)"$', CATALOGUE.read_text(encoding="utf-8"), re.MULTILINE))
    assert not used - written
    for path in (ROOT / "templates").rglob("*.html"):
        for text in re.findall(r"""\{% trans (?:"([^"]+)"|'([^']+)')""", path.read_text(encoding="utf-8")):
            assert (text[0] or text[1]) in written, path.name


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(999, "999 ms"), (1400, "1 s"), (1998, "2 s"), (59_600, "1 min 0 s"), (7_500_000, "2 h 5 min")],
)
def test_a_duration_is_rounded_to_the_nearest_second(milliseconds: int, text: str) -> None:
    with translation.override("en"):
        assert words.duration(timedelta(milliseconds=milliseconds)) == text


def test_what_was_just_given_its_time_has_all_of_it_left() -> None:
    with translation.override("en"):
        for given, text in (
            (timedelta(days=90), "in 90 d"),
            (timedelta(hours=2), "in 2 h"),
            (timedelta(minutes=15), "in 15 min"),
        ):
            assert words.ago(clock.now() + given) == text


class Texts(HTMLParser):
    """What a person reads or hears of a page, code left out."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in ("code", "pre", "kbd", "script", "style", "option", "textarea"):
            self.hidden += 1
        self.found += [
            value for name, value in attributes if value and name in ("aria-label", "title", "placeholder")
        ]

    def handle_endtag(self, tag: str) -> None:
        if tag in ("code", "pre", "kbd", "script", "style", "option", "textarea"):
            self.hidden -= 1

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.found.append(data.strip())


@pytest.mark.django_db
def test_no_english_is_left_on_a_chinese_page() -> None:
    owner: User = member("owner", "ann", administrator=True)
    task = a_task(owner, labels=["nightly"])
    create_application("agent", "user", actor=SOMEBODY, origin="tests")
    run = a_run(owner, task)
    client: Any = browser(owner, language="zh-hans")
    pages = [*addresses(task, run), "/setup", "/panel/none-such/", f"/panel/p/default/task/{task.slug}/run/"]
    for address in pages:
        texts = Texts()
        texts.feed(client.get(address).content.decode())
        for text in texts.found:
            rest = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|<[^>]*>", "", text)
            words = re.findall(r"[A-Za-z]{3,}", LATIN_ALLOWED.sub("", rest))
            assert not words, (address, text)
