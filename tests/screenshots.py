"""Pictures of every page, for a person to look at: width × theme × language, with real data.

    python -m tests.screenshots OUT [--only dashboard,run-live] [--fast] [--fold]

Starts an `up` of its own in a throw-away home, makes tasks, lets them run, and ends it again. Nothing is faked but
time: the totals of the last 30 days and a few hundred ended runs are written straight into the database, since
nobody wants to wait for them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.chrome import ARGUMENTS, CHROMIUM, LANGUAGES
from tests.e2e.person import NAME, PASSWORD
from tests.e2e.up_kit import Up
from tests.e2e.window import visit, watch
from tests.furnishing import end, furnish
from tests.moments import MOMENTS

WIDTHS = {"desktop": (1440, 900), "phone": (390, 844)}
THEMES = ("light", "dark")
# Live logs fill a screen before anybody looks.
LIVE_S = 12
# What is seen before somebody has signed in.
OUTSIDE = ("sign-in", "invitation", "invitation-over")

# What a usual machine shows: plain fonts, not the wide fallback of a bare container; used where they are installed.
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
<include ignore_missing="yes">/etc/fonts/fonts.conf</include>
<match target="pattern"><test name="family" compare="eq"><string>sans-serif</string></test>
<edit name="family" mode="prepend_first" binding="strong"><string>Liberation Sans</string></edit></match>
<match target="pattern"><test name="family" compare="eq"><string>ui-monospace</string></test>
<edit name="family" mode="prepend_first" binding="strong"><string>DejaVu Sans Mono</string></edit></match>
</fontconfig>"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="names of pages, with commas")
    parser.add_argument("--fast", action="store_true", help="light desktop and light phone in English only")
    parser.add_argument("--fold", action="store_true", help="only what is seen without scrolling")
    parser.add_argument("--stay", action="store_true", help="keep the panel up until Enter")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ql-pictures-"))
    up = Up(folder / "home", QINGLONG_TIME_ZONE="Asia/Shanghai")
    try:
        up.wait_ready()
        pages = furnish(up)
        time.sleep(LIVE_S)
        wanted = {name for name in options.only.split(",") if name}
        take(up, options.out, pages, wanted, fast=options.fast, fold=options.fold)
        if options.stay:
            input(f"http://127.0.0.1:{up.port}/  {NAME} / {PASSWORD}  – Enter ends it ")
    finally:
        end(up)
        shutil.rmtree(folder, ignore_errors=True)


def take(up: Up, out: Path, pages: dict[str, str], wanted: set[str], *, fast: bool, fold: bool) -> None:
    """One PNG per page or moment, width, theme and language; `wanted` names some of them, empty means all."""
    from playwright.sync_api import sync_playwright

    out.mkdir(parents=True, exist_ok=True)
    base = f"http://127.0.0.1:{up.port}"
    fonts = up.home.parent / "fonts.conf"
    fonts.write_text(FONTS, encoding="utf-8")
    plain = any(Path("/usr/share/fonts").rglob("LiberationSans*"))
    env = {**os.environ, **({"FONTCONFIG_FILE": str(fonts)} if plain else {})}
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, env=env)
        for width, theme, language in _looks(fast):
            size = WIDTHS[width]
            context = watch(
                browser.new_context(
                    viewport={"width": size[0], "height": size[1]},
                    color_scheme=theme,
                    reduced_motion="reduce",
                )
            )
            context.add_cookies([{"name": "ql_language", "value": LANGUAGES[language], "url": base}])
            page = context.new_page()
            for name in (name for name in OUTSIDE if not wanted or name in wanted):
                visit(page, base + pages[name])
                page.wait_for_timeout(500)
                page.screenshot(path=str(out / f"{name}-{width}-{theme}-{language}.png"), full_page=True)
            visit(page, f"{base}/panel/login/")
            page.fill("#username", NAME)
            page.fill("#password", PASSWORD)
            page.click("main form button")
            page.wait_for_url("**/panel/")
            for name, address in pages.items():
                if name in OUTSIDE or (wanted and name not in wanted):
                    continue
                visit(page, base + address)
                page.wait_for_timeout(500 if name.startswith("run-") else 150)
                page.screenshot(
                    path=str(out / f"{name}-{width}-{theme}-{language}.png"),
                    full_page=not fold and name != "run-live",
                )
            for name, (address, act) in MOMENTS.items():
                if wanted and name not in wanted:
                    continue
                visit(page, base + pages[address])
                page.wait_for_timeout(300)
                if act(page) is not False:
                    page.wait_for_timeout(300)
                    page.screenshot(path=str(out / f"{name}-{width}-{theme}-{language}.png"))
            context.close()
        browser.close()


def _looks(fast: bool) -> Iterator[tuple[str, str, str]]:
    for width in WIDTHS:
        for theme in THEMES:
            for language in LANGUAGES:
                if not fast or (theme == "light" and language == "en"):
                    yield width, theme, language


if __name__ == "__main__":
    os.nice(5)
    main()
