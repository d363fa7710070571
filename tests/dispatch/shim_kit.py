"""A small session for tests: launches real shims in a temporary home and reads what they leave."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from apps.artifacts.facts import artifact_id, log_paths, read_fact
from apps.dispatch.launcher.client import Launcher, Message, Shim
from apps.dispatch.launcher.spec import COMMON, CommandBody, LaunchSpec, LogSpec, ScriptBody, ShellBody
from apps.dispatch.receipts import Receipt, ReceiptStore

PATIENCE_S = 120.0
PATH = "/usr/local/bin:/usr/bin:/bin"
PYTHON = sys.executable


def until(check: Callable[[], Any], what: str = "the condition") -> Any:
    """Wait for something true, at most PATIENCE_S."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if found := check():
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited in vain for {what}")


def written(document: dict[str, Any]) -> bytes:
    """A specification as a session writes it, from what `json.loads` makes of one."""
    own = {name: value for name, value in document.items() if name not in COMMON}
    common = {name: value for name, value in document.items() if name in COMMON}
    return f"{json.dumps(own)[:-1]},\n{json.dumps(common)[1:]}".encode()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Live:
    """One launched attempt and everything known about it."""

    def __init__(self, kit: Kit, spec: LaunchSpec, shim: Shim) -> None:
        self.kit, self.spec, self.shim = kit, spec, shim
        self.messages: list[Message] = []
        self.paths = log_paths(spec.log.root, spec.log.artifact_id)

    def wait(self, state: str) -> Message:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for message in self.messages:
                if message.state == state:
                    return message
            assert not self.shim.closed, f"closed before {state}: {self.messages}"
            select.select([self.shim], [], [], 0.2)
            self.messages += self.shim.receive()
        raise AssertionError(f"no {state} among {self.messages}")

    def go(self) -> Live:
        self.wait("ready")
        assert self.shim.go()
        return self

    def receipt(self) -> Receipt:
        store = ReceiptStore(self.spec.receipts_root)
        return until(lambda: store.read(self.spec.attempt_id), "the receipt")

    def end(self) -> int:
        """Exit code, once the receipt is there and the shim is gone."""
        code = self.receipt().exit_code
        if self.messages and (ready := self.messages[0]).state == "ready":
            until(lambda: self._let_go() and not alive(ready.pid), "the end of the shim")
        return code

    def _let_go(self) -> bool:
        """A warm shim waits for another run until nobody is there to hand it one."""
        if not self.shim.closed:
            self.messages += self.shim.receive()
            if self.messages[-1].warm:
                self.shim.close()
        return True

    @property
    def log(self) -> bytes:
        return Path(self.paths.log).read_bytes()

    def fact(self, name: str) -> dict[str, Any] | None:
        path = Path(self.spec.attempt_dir, name)
        return json.loads(path.read_bytes()) if path.exists() else None

    def truncation(self) -> bool | None:
        found = read_fact(self.spec.log.root, self.spec.log.artifact_id)
        return None if found is None else found.quota_reached

    def traces(self) -> list[str]:
        """Files and attempt folders that exist for this attempt."""
        attempt, artifact = self.spec.attempt_id, self.spec.log.artifact_id
        roots = (self.spec.attempt_dir, self.spec.log.root, self.spec.receipts_root)
        found = [str(path) for root in roots for path in Path(root).rglob("*")]
        found += [self.spec.attempt_dir] if Path(self.spec.attempt_dir).exists() else []
        return [path for path in found if attempt in path or artifact in path]


class Kit:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.node = home / "node"
        self.launcher = Launcher(self.node)
        self.count = 0

    def spec(self, body: CommandBody | ShellBody | ScriptBody | str, **changes: Any) -> LaunchSpec:
        self.count += 1
        noise = os.urandom(6).hex()
        run, attempt = (f"{self.count:08x}-0000-7000-8000-{n}{noise[1:]}" for n in "12")
        folder = f"{self.home}/attempts/{attempt}"
        values: dict[str, Any] = {
            "run_id": run,
            "attempt_id": attempt,
            "callback_sequence": 1,
            "token": "k" * 43,
            "body": ShellBody(body) if isinstance(body, str) else body,
            "env": {"PATH": PATH, "HOME": f"{self.home}/home"},
            "cwd": f"{self.home}/home",
            "attempt_dir": folder,
            "log": LogSpec(f"{self.home}/logs", artifact_id(run, attempt), 1 << 24),
            "receipts_root": f"{self.home}/receipts",
            "grace_ms": 300,
        }
        values.update(changes)
        return LaunchSpec(**values)

    def launch(self, body: CommandBody | ShellBody | ScriptBody | str, **changes: Any) -> Live:
        spec = self.spec(body, **changes)
        return Live(self, spec, self.launcher.launch(spec))

    def run(self, body: CommandBody | ShellBody | ScriptBody | str, **changes: Any) -> Live:
        """Launch, go and wait for the end."""
        live = self.launch(body, **changes).go()
        live.end()
        return live

    def processes(self) -> list[int]:
        """Launchers of this home; shims share their command line."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if f"\0{self.node}\0".encode() in line and alive(int(pid)):
                found.append(int(pid))
        return found

    def launcher_pid(self) -> int:
        return int((self.node / "launcher.lock").read_text())

    def finish(self) -> None:
        self.launcher.close()
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
        until(lambda: not self.processes(), "the end of all shims")
