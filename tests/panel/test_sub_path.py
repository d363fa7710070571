"""No address is written by hand: under a sub-path every page, template and script leads below it (lessons D21)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles.storage import staticfiles_storage
from django.test.utils import override_script_prefix

from tests.panel.kit import a_run, a_task, browser
from tests.panel.test_pages import addresses
from tests.people import member

ROOT = Path(__file__).resolve().parents[2]
# In an attribute of a template, in a text of a script: an address from the root of the host.
IN_TEMPLATE = re.compile(
    r"""\b(?:href|src|srcset|action|formaction|poster|content|value|data-[\w-]+)\s*=\s*["']/[^"']*"""
)
IN_SCRIPT = re.compile(r"""["'`]/[A-Za-z][^"'`\s]*["'`]|["'`]/(?:["'`]\s*\+|\$\{)""")
IN_CODE = re.compile(r"""["']/(?:panel|api|static|setup|hooks|i18n|oidc)\b[^"']*""")
# What the editor is made of, and never asks for anything.
BUNDLE = "editor.js"


@pytest.fixture
def under_ql(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.BASE_URL, settings.PREFIX, settings.FORCE_SCRIPT_NAME = "https://panel.example/ql", "/ql", "/ql"
    monkeypatch.setattr(staticfiles_storage, "base_url", "/ql/static/")
    # Django's own handler does that for each request; the one of its test client does not.
    with override_script_prefix("/ql/"):
        yield


def ours(*patterns: str) -> Iterator[Path]:
    for pattern in patterns:
        for path in ROOT.glob(pattern):
            if "node_modules" not in path.parts and path.name != BUNDLE:
                yield path


def found(paths: Iterator[Path], pattern: re.Pattern[str]) -> list[str]:
    looked = [(path, pattern.findall(path.read_text(encoding="utf-8"))) for path in paths]
    assert looked, "nothing to look at"
    return [f"{path.relative_to(ROOT)}: {hit}" for path, hits in looked for hit in hits]


def test_no_template_writes_an_address_by_hand() -> None:
    assert not found(ours("templates/**/*.html", "apps/*/templates/**/*.html"), IN_TEMPLATE)


def test_no_script_writes_an_address_by_hand() -> None:
    assert not found(ours("static/**/*.js", "apps/*/static/**/*.js"), IN_SCRIPT)


def test_no_page_writes_an_address_by_hand() -> None:
    assert not found(
        ours("apps/panel/**/*.py", "apps/triggers/**/*.py", "apps/access/services/*.py"), IN_CODE
    )


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (IN_TEMPLATE, '<a href="/panel/">'),
        (IN_TEMPLATE, "<form method='post' action='/panel/logout/'>"),
        (IN_TEMPLATE, '<div data-url="/api/v3/me">'),
        (IN_SCRIPT, 'fetch("/api/v3/me")'),
        (IN_SCRIPT, "fetch(`/${name}`)"),
        (IN_SCRIPT, 'import("/static/panel/x.js")'),
        (IN_CODE, 'HttpResponseRedirect("/panel/")'),
    ],
)
def test_an_address_written_by_hand_is_found(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)


@pytest.mark.django_db
@pytest.mark.usefixtures("under_ql")
def test_every_page_leads_below_the_sub_path() -> None:
    owner = member("owner", "ann", administrator=True)
    task = a_task(owner)
    run = a_run(owner, task)
    signed_in = browser(owner)
    for client, address in [
        *((signed_in, one) for one in addresses(task, run)),
        (signed_in, "/api/v3/docs"),
        (browser(), "/panel/login/"),
        (browser(), "/setup"),
        (browser(), "/nothing/here/"),
    ]:
        html = client.get(address).content.decode()
        from_root = set(re.findall(r"""=["'](/[^"']*)""", html))
        astray = {one for one in from_root if not one.startswith("/ql/")}
        assert from_root and not astray, (address, astray)
        assert not re.search(r"https?://(?:testserver|panel\.example)(?!/ql/)", html), address


@pytest.mark.django_db
@pytest.mark.usefixtures("under_ql")
def test_redirects_stay_below_the_sub_path() -> None:
    client = browser()
    for address in ("/", "/panel", "/panel/", "/panel/p/default/tasks/"):
        assert client.get(address).headers["Location"].startswith("/ql/panel/")
