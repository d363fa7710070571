"""What an idle `up` costs: proportional memory and processor time of every process, taken apart.

    python bench/idle.py [--settle 20] [--seconds 30]

Starts `up` in a fresh home (PostgreSQL with DATABASE_URL, else SQLite), waits until it is quiet, measures, stops
it. Shared pages are counted once over the tree (PSS), so run it where no other tree runs. Needs root: the
processes are protected from others of the same user. Exits 1 above the limits.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

PSS_LIMIT_MIB = 200
CPU_LIMIT_PERCENT = 2.0
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settle", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ql-idle-") as home:
        port = free_port()
        up = subprocess.Popen(
            [sys.executable, "manage.py", "up", "--port", str(port)],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "QINGLONG_HOME": home},
            stdout=subprocess.DEVNULL,
        )
        try:
            wait_for(f"http://127.0.0.1:{port}/livez", up)
            time.sleep(options.settle)
            return report(up.pid, options.seconds)
        finally:
            up.send_signal(signal.SIGTERM)
            up.wait(60)


def report(root: int, seconds: float) -> int:
    pids = tree(root)
    before = {pid: cpu_s(pid) for pid in pids}
    start = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - start
    total_pss = total_private = total_cpu = 0.0
    print(f"{'process':<18}{'PSS MiB':>9}{'private':>9}{'CPU %':>8}")
    for pid in pids:
        pss, private = memory(pid)
        cpu = (cpu_s(pid) - before[pid]) / passed * 100
        total_pss, total_private, total_cpu = total_pss + pss, total_private + private, total_cpu + cpu
        print(f"{comm(pid):<18}{pss:>9.1f}{private:>9.1f}{cpu:>8.2f}")
    print(f"{'all':<18}{total_pss:>9.1f}{total_private:>9.1f}{total_cpu:>8.2f}")
    print(f"{'limit':<18}{PSS_LIMIT_MIB:>9}{'':>9}{CPU_LIMIT_PERCENT:>8.2f}")
    ratio = total_pss / PSS_LIMIT_MIB, total_cpu / CPU_LIMIT_PERCENT
    print(f"of the limit: memory {ratio[0]:.2f}, processor {ratio[1]:.2f}")
    return int(max(ratio) > 1)


def tree(root: int) -> list[int]:
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [root]
    for pid in found:
        found += sorted(child for child, parent in parents.items() if parent == pid)
    return found


def memory(pid: int) -> tuple[float, float]:
    values = dict.fromkeys(("Pss", "Private_Clean", "Private_Dirty"), 0)
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        if name in values:
            values[name] = int(rest.split()[0])
    return values["Pss"] / 1024, (values["Private_Clean"] + values["Private_Dirty"]) / 1024


def cpu_s(pid: int) -> float:
    """From the scheduler's own nanoseconds where they are kept: a tick is far too coarse for an idle process."""
    total = 0
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            total += int((thread / "schedstat").read_text().split()[0])
        return total / 1e9
    except (OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(url: str, up: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end and up.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("up did not come up")


if __name__ == "__main__":
    sys.exit(main())
