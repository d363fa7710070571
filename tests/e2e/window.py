"""A person's browser window at a running panel; it notes whatever the policy or a script complains about."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.e2e.up_kit import Up, eventually

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
NAME, PASSWORD = "ann", "correct horse 7 battery"


class Window:
    """One window in one language and width; `close` fails on complaints and on a page that is too wide."""

    who = (NAME, PASSWORD)

    def __init__(
        self,
        chromium: Any,
        up: Up,
        *,
        language: str,
        width: int,
        height: int = 844,
        scripts: bool = True,
        **options: Any,
    ) -> None:
        self.base = up.address
        self.scripts = scripts
        phone = width < 640
        self.context = chromium.new_context(
            **{
                "viewport": {"width": width, "height": height},
                "has_touch": phone,
                "is_mobile": phone,
                "java_script_enabled": scripts,
                "timezone_id": "Europe/Berlin",
                **options,
            }
        )
        self.context.add_cookies([{"name": "ql_language", "value": language, "url": f"{self.base}/"}])
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda line: line.type == "error" and self.complaints.append(line.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._stays_here)

    def _stays_here(self, request: Any) -> None:
        if not request.url.startswith((f"{self.base}/", "data:")):
            self.complaints.append(f"asked {request.url}")

    def go(self, path: str) -> Any:
        return self.page.goto(f"{self.base}{path}")

    def set_up(self, up: Up) -> None:
        """Makes the first account through the printed link; ends on the dashboard."""
        link = eventually(lambda: re.search(r"/setup\?token=\S+", up.output), "the set-up link")[0]
        self.go(link)
        self.page.fill("#username", NAME)
        self.page.fill("#password", PASSWORD)
        self.page.click("main button.ql-primary")
        self.page.wait_for_url("**/panel/")

    def sign_in(self) -> None:
        self.go("/panel/login/")
        self.page.fill("#username", self.who[0])
        self.page.fill("#password", self.who[1])
        self.page.click("main button.ql-primary")
        self.page.wait_for_url("**/panel/")

    def write(self, field: str, text: str) -> None:
        """Writes a whole text into a code field, through the editor where there is script."""
        if not self.scripts:
            self.page.fill(f"#{field}", text)
            return
        editor = self.page.locator(f"ql-editor[for={field}] .cm-content")
        editor.click()
        self.page.keyboard.press("Control+A")
        self.paste(editor, text)

    def paste(self, place: Any, text: str) -> None:
        """What the clipboard would bring."""
        place.evaluate(
            """(element, text) => {
              const clipboardData = new DataTransfer();
              clipboardData.setData("text/plain", text);
              element.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
            }""",
            text,
        )

    def code(self, field: str) -> str:
        """What stands in a code field."""
        return str(self.page.evaluate("id => document.getElementById(id).value", field))

    def make(self, name: str, shell: str) -> None:
        """Fills the form of a new shell task and starts it."""
        self.go("/panel/p/default/tasks/new/")
        self.page.fill("#f-name", name)
        self.page.check("input[name=kind][value=shell]")
        self.write("f-shell", shell)
        self.page.click("button[value=save-and-run]")
        self.page.wait_for_url("**/panel/runs/**")

    def close(self) -> None:
        overflow = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        self.context.close()
        assert not self.complaints, self.complaints
        assert overflow <= 0
