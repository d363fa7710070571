"""A person's browser window at a running panel; it notes whatever the policy or a script complains about."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from tests.e2e.up_kit import Up, eventually

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
NAME, PASSWORD = "ann", "correct horse 7 battery"
SLOWER = 4

# In every document, before its own scripts: whether one of them sent the window elsewhere.
_LEAVING = """navigation.addEventListener("navigate", (event) => {
  if (!event.destination.sameDocument && event.downloadRequest === null) window.leaves = true;
});"""
# What events and scripts of the page had waiting comes first, then the answer.
_RESTS = """async () => {
  await new Promise((go) => setTimeout(go));
  await new Promise((go) => requestIdleCallback(go, {timeout: 1000}));
  return document.readyState === "complete" && !window.leaves;
}"""


def at_rest(page: Any) -> None:
    """Waits until the page has loaded and is not on its way to another one by a script of its own.

    An invitation's page sends its form at once, and goes anew to its address when only the part behind the # is
    another one: whoever looks in between sees a page that is not there any more. `watch` the context first.
    """

    def rests() -> bool:
        try:
            return bool(page.evaluate(_RESTS))
        except Exception as error:
            if "Execution context was destroyed" not in str(error):
                raise
            return False

    eventually(rests, f"{page.url} is at rest")


def visit(page: Any, address: str) -> Any:
    """Opens an address and waits for the page it leads to; the first answer, None where only the # differs."""
    answer = page.goto(address)
    at_rest(page)
    return answer


def watch(context: Any) -> Any:
    """Pages of this context tell `at_rest` where their scripts send them; `pytest --slow-browser` holds them back."""
    context.add_init_script(_LEAVING)
    if lag_ms := int(os.environ.get("SLOW_BROWSER_MS", 0)):
        context.on("page", lambda page: hold_back(context.new_cdp_session(page), lag_ms))
    return context


def hold_back(protocol: Any, lag_ms: int) -> None:
    """Every answer comes this much later, and scripts run SLOWER: what a loaded machine does by chance."""
    protocol.send("Network.enable")
    conditions = {"offline": False, "latency": lag_ms, "downloadThroughput": -1, "uploadThroughput": -1}
    protocol.send("Network.emulateNetworkConditions", conditions)
    protocol.send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})


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
        self.context = watch(
            chromium.new_context(
                **{
                    "viewport": {"width": width, "height": height},
                    "has_touch": phone,
                    "is_mobile": phone,
                    "java_script_enabled": scripts,
                    "timezone_id": "Europe/Berlin",
                    **options,
                }
            )
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
        """See `visit`; without script no page goes anywhere by itself."""
        address = f"{self.base}{path}"
        return visit(self.page, address) if self.scripts else self.page.goto(address)

    def rest(self) -> None:
        if self.scripts:
            at_rest(self.page)

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
        self.rest()
        overflow = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        self.context.close()
        assert not self.complaints, self.complaints
        assert overflow <= 0
