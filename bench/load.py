"""Web, two worker processes and 20 API clients for 60 s on a database of its own: calls/s, delays, errors.

`python -m bench.load [seconds]`; `DATABASE_URL` chooses PostgreSQL, nothing SQLite. Exit code 1 when any call
or log shows an error. The floor is the same panel answering one client that only reads `/me`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.e2e.load import CLIENTS, drive, quantile  # noqa: E402
from tests.e2e.person import House  # noqa: E402
from tests.e2e.up_kit import database  # noqa: E402

SECONDS = 60.0
COMPLAINTS = ("locked", "Traceback", "could not be stored", "OperationalError", "CRITICAL")


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with tempfile.TemporaryDirectory(prefix="ql-load-") as folder, database() as extra:
        house = House.build(Path(folder) / "home", "--workers", "2", **extra)
        try:
            engine = "PostgreSQL" if extra else "SQLite"
            floor = empty_calls(house, 3.0)
            figures = drive(house.up.port, house.api.token, seconds)
            said = [line for line in house.up.output.splitlines() if any(word in line for word in COMPLAINTS)]
        finally:
            house.up.stop()
    times = figures.all_times()
    rate = len(times) / figures.seconds
    print(f"{engine}: {CLIENTS} clients, {figures.seconds:.0f} s, {len(figures.runs)} runs started")
    print(f"  {rate:8.1f} calls/s, {rate / floor:.2f} of one client's empty calls ({floor:.1f}/s)")
    print(f"  {'':8} {'calls':>7} {'p50 ms':>8} {'p95 ms':>8} {'max ms':>8}")
    for name, found in [*sorted(figures.times.items()), ("all", times)]:
        shown = [quantile(found, share) * 1000 for share in (0.5, 0.95, 1.0)]
        print(f"  {name:8} {len(found):7d} " + " ".join(f"{value:8.1f}" for value in shown))
    print(
        f"  statuses {dict(sorted(figures.statuses.items()))}; errors {len(figures.wrong)}, in logs {len(said)}"
    )
    for line in [*figures.wrong[:10], *said[:10]]:
        print(f"    {line}")
    return 1 if figures.wrong or said else 0


def empty_calls(house: House, seconds: float) -> float:
    """Calls of `/me` a second, one after the other."""
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        house.api.ok("GET", "/me")
        count += 1
    return count / seconds


if __name__ == "__main__":
    sys.exit(main())
