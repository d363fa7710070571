"""What a run costs between `launch` and `ended`: `python bench/shim.py [runs] [width]`.

Prints wall and CPU milliseconds per run of /bin/true, one after another and side by side, against a floor of
plain process starts in the same program; memory per waiting shim; and the speed of copying output.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from apps.artifacts.facts import artifact_id
from apps.dispatch.launcher.client import Launcher, Shim
from apps.dispatch.launcher.spec import CommandBody, LaunchSpec, LogSpec


class Bench:
    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="shim-bench-"))
        self.launcher = Launcher(self.home / "node")
        self.launcher.connect()
        self.count = 0

    def end(self) -> None:
        self.launcher.close()
        os.kill(int((self.home / "node" / "launcher.lock").read_text()), signal.SIGTERM)
        shutil.rmtree(self.home, ignore_errors=True)

    def spec(self, *argv: str) -> LaunchSpec:
        self.count += 1
        run, attempt = (f"{self.count:08x}-0000-7000-8000-00000000000{n}" for n in (1, 2))
        folder = f"{self.home}/attempts/{attempt}"
        log = LogSpec(f"{self.home}/logs", artifact_id(run, attempt), 1 << 30)
        return LaunchSpec(
            run_id=run,
            attempt_id=attempt,
            callback_sequence=1,
            token="t" * 43,
            body=CommandBody(argv),
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.home)},
            cwd=str(self.home),
            attempt_dir=folder,
            log=log,
            receipts_root=f"{self.home}/receipts",
        )

    def launch(self, *argv: str) -> Shim:
        return self.launcher.launch(self.spec(*argv))

    def carry(self, total: int, width: int, *argv: str) -> None:
        """Run `total` scripts, `width` at a time, to their end."""
        live: dict[int, Shim] = {}
        poll = select.poll()
        started = ended = 0
        while ended < total:
            while started < total and len(live) < width:
                shim = self.launch(*argv)
                live[shim.fileno()] = shim
                poll.register(shim, select.POLLIN)
                started += 1
            for descriptor, _ in poll.poll(10_000):
                shim = live[descriptor]
                for message in shim.receive():
                    if message.state == "ready":
                        shim.go()
                    elif message.state == "failed":
                        raise SystemExit(f"{message.code}: {message.detail}")
                    elif message.state == "ended" and message.warm:
                        poll.unregister(descriptor)
                        self.launcher.keep(live.pop(descriptor))
                        ended += 1
                if shim.closed:
                    poll.unregister(descriptor)
                    del live[descriptor]
                    shim.close()
                    ended += 1


def cpu_ms(pid: int) -> float:
    """Processor time of a process so far, from the scheduler's own books; others on the machine do not count."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6
    except OSError:
        return 0.0


def measure(name: str, bench: Bench, runs: int, width: int) -> None:
    launcher = int((bench.home / "node" / "launcher.lock").read_text())
    before, own, begin = cpu_ms(launcher), time.process_time(), time.monotonic()
    bench.carry(runs, width, "/bin/true")
    wall = (time.monotonic() - begin) * 1000 / runs
    own = (time.process_time() - own) * 1000 / runs
    forks = (cpu_ms(launcher) - before) / runs
    print(f"{name}: {wall:.2f} ms wall; CPU: launcher {forks:.2f} ms, session side {own:.2f} ms per run")


def shim_cpu(bench: Bench, samples: int) -> None:
    """CPU of shims alone, without /bin/true itself: of one made for its run, and of one that was warm."""
    for warm in (False, True):
        found = []
        for _ in range(samples):
            bench.launcher.close()
            shim, before = bench.launch("/bin/true"), 0.0
            for another in (False, True):
                pid = _to_the_end(shim)
                if another or not warm:
                    found.append(cpu_ms(pid) - before)
                    break
                before = cpu_ms(pid)
                shim.again(bench.spec("/bin/true").encode())
            shim.close()
        kind = "warm shim" if warm else "shim made for one run"
        print(f"CPU of a {kind}: {sorted(found)[len(found) // 2]:.2f} ms (median of {len(found)})")


def _to_the_end(shim: Shim) -> int:
    """Lets a run go and waits for its end; the pid of its shim."""
    pid = 0
    while True:
        select.select([shim], [], [], 5)
        for message in shim.receive():
            if message.state == "ready":
                pid = message.pid
                shim.go()
            elif message.state == "ended":
                return pid


def floor(runs: int) -> None:
    begin = time.monotonic()
    for _ in range(runs):
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    print(f"floor, spawn and wait: {(time.monotonic() - begin) * 1000 / runs:.2f} ms wall per run")


def pss_kib(pid: int) -> int:
    """Proportional set size: of memory that several processes share, each counts its part."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


def memory(bench: Bench, width: int) -> tuple[float, float]:
    """MiB PSS per live shim: what launcher and shims have more than the launcher alone, and what a shim shows.

    Raises OSError where memory of other processes cannot be read.
    """
    launcher = int((bench.home / "node" / "launcher.lock").read_text())
    bench.launcher.close()
    time.sleep(0.5)  # until warm shims have ended
    shims = []
    pids = [launcher]
    try:
        before = pss_kib(launcher)
        shims = [bench.launch("/bin/sleep", "60") for _ in range(width)]
        for shim in shims:
            while not (messages := shim.receive()):
                select.select([shim], [], [], 5)
            pids.append(messages[0].pid)
            shim.go()
        time.sleep(0.5)
        found = [pss_kib(pid) for pid in pids]
        return (sum(found) - before) / width / 1024, sum(found[1:]) / width / 1024
    finally:
        stop(shims)


def stop(shims: list[Shim]) -> None:
    """Ends live scripts and waits for their shims."""
    for shim in shims:
        shim.stop()
    for shim in shims:
        while not shim.closed:
            select.select([shim], [], [], 5)
            shim.receive()


def show_memory(bench: Bench, width: int) -> None:
    try:
        added, shown = memory(bench, width)
    except OSError as error:
        print(f"memory: not readable ({error.strerror})")
        return
    print(
        f"memory, {width} live: each adds {added:.2f} MiB PSS; a shim shows {shown:.2f}, shared parts included"
    )


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    width = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    bench = Bench()
    try:
        bench.carry(20, 4, "/bin/true")
        floor(runs)
        measure("one after another", bench, runs, 1)
        measure(f"{width} side by side", bench, runs, width)
        shim_cpu(bench, 100)
        show_memory(bench, width)
        begin = time.monotonic()
        bench.carry(1, 1, "/bin/sh", "-c", "head -c 1000000000 /dev/zero")
        print(f"output: {1000 / (time.monotonic() - begin):.0f} MB/s into {bench.home}")
    finally:
        bench.end()


if __name__ == "__main__":
    main()
