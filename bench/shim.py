"""What a run costs between `launch` and `ended`: `python bench/shim.py [runs] [width]`.

Prints wall and CPU milliseconds per run of /bin/true, one after another and side by side, against a floor of
plain process starts in the same program; memory per waiting shim; and the speed of copying output.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
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

    def launch(self, *argv: str) -> Shim:
        self.count += 1
        run, attempt = (f"{self.count:08x}-0000-7000-8000-00000000000{n}" for n in (1, 2))
        folder = f"{self.home}/attempts/{attempt}"
        log = LogSpec(f"{self.home}/logs", artifact_id(run, attempt), 1 << 30)
        spec = LaunchSpec(
            run_id=run,
            attempt_id=attempt,
            callback_sequence=1,
            token="t" * 43,
            body=CommandBody(argv),
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.home)},
            cwd=str(self.home),
            attempt_dir=folder,
            tmpdir=f"{folder}/tmp",
            log=log,
            receipts_root=f"{self.home}/receipts",
        )
        return self.launcher.launch(spec)

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
                if shim.closed:
                    poll.unregister(descriptor)
                    del live[descriptor]
                    shim.close()
                    ended += 1


def cpu_of_machine() -> float:
    """Busy seconds of all processors; shims are nobody's waited-for children, so only this counts them."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def measure(name: str, runs: int, work: object) -> None:
    before = cpu_of_machine()
    begin = time.monotonic()
    work()  # type: ignore[operator]
    wall = time.monotonic() - begin
    busy = cpu_of_machine() - before
    print(
        f"{name}: {wall / runs * 1000:.2f} ms wall, {busy / runs * 1000:.2f} ms CPU (whole machine) per run"
    )


def floor(runs: int) -> None:
    for _ in range(runs):
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


def pss_kib(pid: int) -> tuple[int, int]:
    found = {"Pss:": 0, "Private_Dirty:": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        key, value = line.split()[:2]
        if key in found:
            found[key] = int(value)
    return found["Pss:"], found["Private_Dirty:"]


def memory(bench: Bench, width: int) -> None:
    shims = [bench.launch("/bin/sleep", "60") for _ in range(width)]
    pids = []
    for shim in shims:
        while not (messages := shim.receive()):
            select.select([shim], [], [], 5)
        pids.append(messages[0].pid)
        shim.go()
    time.sleep(0.5)
    try:
        figures = [pss_kib(pid) for pid in pids]
        mean = [sum(column) / len(figures) / 1024 for column in zip(*figures, strict=True)]
        print(f"memory per live shim, {width} live: {mean[0]:.2f} MiB PSS, {mean[1]:.2f} MiB private dirty")
    except OSError as error:
        print(f"memory: not readable ({error.strerror})")
    for shim in shims:
        shim.stop()
    for shim in shims:
        while not shim.closed:
            select.select([shim], [], [], 5)
            shim.receive()


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    width = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    bench = Bench()
    try:
        bench.carry(20, 4, "/bin/true")
        measure("floor, spawn and wait", runs, lambda: floor(runs))
        measure("one after another", runs, lambda: bench.carry(runs, 1, "/bin/true"))
        measure(f"{width} side by side", runs, lambda: bench.carry(runs, width, "/bin/true"))
        memory(bench, width)
        begin = time.monotonic()
        bench.carry(1, 1, "/bin/sh", "-c", "head -c 1000000000 /dev/zero")
        print(f"output: {1000 / (time.monotonic() - begin):.0f} MB/s into {bench.home}")
        own = resource.getrusage(resource.RUSAGE_SELF)
        print(f"this program: {own.ru_utime + own.ru_stime:.2f} s CPU")
    finally:
        bench.launcher.close()
        for pid in os.listdir("/proc"):
            if pid.isdigit():
                try:
                    line = Path(f"/proc/{pid}/cmdline").read_bytes()
                except OSError:
                    continue
                if str(bench.home / "node").encode() in line:
                    os.kill(int(pid), 15)
        shutil.rmtree(bench.home, ignore_errors=True)


if __name__ == "__main__":
    main()
