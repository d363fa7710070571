"""A whole installation in a storm: everything that runs is killed or frozen at random while runs are asked for.

`up` with two workers of its own, two resident ones beside it, on PostgreSQL a server of its own. At the end an
independent checker reads what the scripts left. The same seed draws the same blows, though not the same moments.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.chaos.checker import Report, check
from tests.chaos.node import Node
from tests.e2e.person import Api, Browser, House, processes_with, set_up
from tests.e2e.up_kit import PARTS, ROOT, Up, environment, eventually, free_port

RESIDENT = 2
SLOTS = "4"
# Short appends never mix. The child that leaves its session must be gone with the rest.
SCRIPT = """read up rest </proc/uptime
echo "begin $QINGLONG_RUN_ID $QINGLONG_ATTEMPT $up" >>../ran
{body}
read up rest </proc/uptime
echo "end $QINGLONG_RUN_ID $QINGLONG_ATTEMPT $up {code}" >>../ran
exit {code}"""
AGAIN = {
    "max_attempts": 3, "retry_on_lost": True, "safety": "idempotent", "backoff_base_ms": 100, "backoff_max_ms": 500,
}  # fmt: skip
BODIES: list[tuple[str, int, bool]] = [
    (":", 0, False),
    ("sleep 0.2", 0, True),
    ("sleep 0.5", 3, False),
    ("setsid sh -c 'sleep 60' & sleep 0.3", 0, False),
    ("head -c 200000 /dev/zero; sleep 0.1", 0, True),
    ("sleep 2", 0, True),
]
# Who is struck, and how often of a hundred.
BLOWS = {
    "session": 30, "shim": 14, "launcher": 8, "scheduler": 8, "control": 8, "runs": 10,
    "web": 7, "database": 8, "up": 7,
}  # fmt: skip
FREEZE_S = (0.2, 2.5)


@dataclass
class Storm:
    """One storm over one house."""

    house: House
    node: Node
    dice: random.Random
    server: Server | None = None
    accepted: dict[str, int] = field(default_factory=dict)
    killed_shims: set[int] = field(default_factory=set)
    blows: Counter[str] = field(default_factory=Counter)
    _residents: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _frozen: dict[int, float] = field(default_factory=dict)

    def rage(self, runs: int, pace_s: float) -> None:
        """Until so many runs are accepted; a blow about every `pace_s`."""
        tasks = [
            (
                self.house.api.make(
                    shell=SCRIPT.format(body=body, code=code), concurrency="parallel", max_parallel=64,
                    kill_grace_ms=300, **({"retry": AGAIN} if again else {}),
                ),
                code,
            )
            for body, code, again in BODIES
        ]  # fmt: skip
        asked = threading.Thread(target=self._ask, args=(tasks, runs), daemon=True)
        asked.start()
        while asked.is_alive():
            self._keep()
            self._strike()
            time.sleep(self.dice.uniform(0.3, 1.7) * pace_s)
        asked.join()

    def settle(self, seconds: float) -> None:
        """The storm is over: everybody lives again, and every run comes to its end."""
        for pid in list(self._frozen):
            self._thaw(pid)

        def quiet() -> bool:
            self._keep()
            with contextlib.suppress(Exception):
                open_ = "status NOT IN ('succeeded', 'failed', 'cancelled', 'timed_out')"
                return not self.node.query(f"SELECT id FROM runs WHERE {open_} LIMIT 1")
            return False

        try:
            eventually(quiet, "every run has ended", seconds)
        except AssertionError as error:
            left = self.node.query(
                "SELECT r.id, r.status, a.status, a.worker_id, a.executor_handle FROM runs r JOIN run_attempts a"
                " ON a.run_id = r.id WHERE r.finished_at IS NULL"
            )
            raise AssertionError(f"{error}\n{left}\n{self.blows}\n{self.house.up.output[-6000:]}") from None

    def check(self, seconds: float = 100) -> Report:
        """The independent word on it, and that neither process nor file is left; a node tidies once a minute."""
        report = check(self.node.query, self.node.ran, self.accepted, self.killed_shims)

        def clean() -> bool:
            self._keep()
            return not (self._scripts() or self.node.ended() or self.node.claimed() or self._folders())

        with contextlib.suppress(AssertionError):
            eventually(clean, "nothing is left", seconds)
        for pid in self._scripts():
            report.rule(False, f"a process lives on: {pid}")
        report.rule(not self.node.ended(), f"receipts are left: {self.node.ended()}")
        report.rule(not self.node.claimed(), "leases are left")
        report.rule(not self._folders(), f"folders are left: {self._folders()}")
        report.counts.update({f"blows to {name}": count for name, count in sorted(self.blows.items())})
        return report

    def _scripts(self) -> list[int]:
        return processes_with(f"HOME={self.node.home}/homes/")

    def _folders(self) -> list[str]:
        """Folders of attempts, but for those of killed shims: these are kept until nothing can be at work in them."""
        unobserved = "status = 'lost' AND error_code <> 'RECOVERY_NEVER_STARTED'"
        kept = {
            str(UUID(str(row[0])))
            for row in self.node.query(f"SELECT id FROM run_attempts WHERE {unobserved}")
        }
        return [folder.name for folder in self.node.folders() if folder.name not in kept]

    def close(self) -> None:
        for process in self._residents:
            process.kill()
            process.wait()
        self.house.up.stop()

    # -- asking ------------------------------------------------------------------------------------------

    def _ask(self, tasks: list[tuple[dict[str, Any], int]], runs: int) -> None:
        dice = random.Random(self.dice.random())
        for _ in range(runs):
            task, code = dice.choice(tasks)
            key = secrets.token_hex(8)
            path = f"/projects/default/tasks/{task['slug']}/runs"
            # The same question until it is answered: whoever lost the answer must not get a second run.
            while True:
                with contextlib.suppress(Exception):
                    answer = self.house.api.call("POST", path, {}, Idempotency_Key=key)
                    if answer.status in (200, 201):
                        self.accepted[answer.json["id"]] = code
                        break
                time.sleep(0.1)
            time.sleep(dice.uniform(0, 0.12))

    # -- blows -------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        self._thaw_due()
        name = self.dice.choices(list(BLOWS), list(BLOWS.values()))[0]
        candidates = self._candidates(name)
        if not candidates:
            return
        pid = self.dice.choice(candidates)
        if self.dice.random() < 0.3 and name != "up":
            self.blows[f"{name}, frozen"] += 1
            self._frozen[pid] = time.monotonic() + self.dice.uniform(*FREEZE_S)
            self._signal(pid, signal.SIGSTOP)
            return
        self.blows[name] += 1
        if name == "shim":
            self.killed_shims.add(pid)
        self._signal(pid, signal.SIGKILL)

    def _candidates(self, name: str) -> list[int]:
        up = self.house.up
        if name == "session":
            return self.node.sessions()
        if name == "shim":
            return self.node.shims()
        if name == "launcher":
            return [pid for pid in [up.launcher()] if pid is not None]
        if name == "database":
            return self.server.processes() if self.server is not None else []
        if name == "up":
            # One that has only just begun has nothing yet that could be harmed.
            return [up.process.pid] if up.process.poll() is None and len(up.parts()) >= len(PARTS) else []
        return [pid for part, pid in up.parts().items() if part.startswith(f"ql {name}")]

    def _thaw_due(self) -> None:
        for pid, until in list(self._frozen.items()):
            if time.monotonic() >= until:
                self._thaw(pid)

    def _thaw(self, pid: int) -> None:
        self._frozen.pop(pid, None)
        self._signal(pid, signal.SIGCONT)

    @staticmethod
    def _signal(pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    # -- what an administrator's service manager does ----------------------------------------------------

    def _keep(self) -> None:
        """Starts anew what died and has nobody above it."""
        if self.server is not None:
            self.server.keep()
        if self.house.up.process.poll() is not None:
            old = self.house.up

            def gone() -> bool:
                self._thaw_due()
                if self.server is not None:
                    self.server.keep()
                return not old.parts()

            try:
                eventually(gone, "the parts of a dead tree end", 40)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{old.parts()}\n{old.output[-3000:]}") from None
            self.house.up = Up(
                old.home, "--workers", "2", "--slots", SLOTS, port=old.port, **self.house.extra
            )
        self._residents = [process for process in self._residents if process.poll() is None]
        while len(self._residents) < RESIDENT:
            self._residents.append(
                subprocess.Popen(
                    [sys.executable, "manage.py", "worker"], cwd=ROOT,
                    env=environment(self.node.home, QINGLONG_SLOTS=SLOTS, **self.house.extra),
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip


class Server:
    """A PostgreSQL of the storm's own, which it may kill."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"postgresql://ql@127.0.0.1:{self.port}/postgres"
        found = shutil.which("initdb") or next(
            map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), "initdb"
        )
        self._bin = Path(found).resolve().parent
        self._as: list[str] = []
        if os.getuid() == 0:
            shutil.chown(folder, "postgres")
            self._as = ["runuser", "-u", "postgres", "--"]
        self._run("initdb", "-U", "ql", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8")
        self.keep()

    def keep(self) -> None:
        """Starts it where it does not run."""
        if self._run("pg_ctl", "status", check=False) != 0:
            options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c max_connections=200"
            self._run("pg_ctl", "-w", "-l", str(self.folder / "log"), "start", "-o", options, check=False)

    def processes(self) -> list[int]:
        """The server itself, and all that it has forked."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            main = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
            children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
            return [main, *map(int, children)]
        return []

    def stop(self) -> None:
        self._run("pg_ctl", "-m", "immediate", "stop", check=False)

    def _run(self, program: str, *arguments: str, check: bool = True) -> int:
        command = [*self._as, str(self._bin / program), "-D", str(self.folder / "data"), *arguments]
        return subprocess.run(
            command, cwd=self.folder, check=check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ).returncode


@contextlib.contextmanager
def storm(folder: Path, seed: int, *, postgresql: bool) -> Iterator[Storm]:
    """A house in fair weather, ready to be struck; gone afterwards."""
    server = None
    extra: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        if postgresql:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ql-server-")))
            place.chmod(0o755)
            server = Server(place)
            stack.callback(server.stop)
            extra["DATABASE_URL"] = server.url
        up = Up(folder / "home", "--workers", "2", "--slots", SLOTS, **extra)
        stack.callback(up.stop)
        up.wait_ready()
        house = House(up, Api(up.port, set_up(up.home, **extra)), Browser(up.port), extra)
        made = Storm(house, Node(house), random.Random(seed), server)
        stack.callback(made.close)
        yield made
