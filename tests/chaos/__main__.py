"""A long storm: `python -m tests.chaos [--runs 500] [--pace 0.35] [--seed N]`; DATABASE_URL set: on PostgreSQL."""

from __future__ import annotations

import argparse
import os
import secrets
import tempfile
from pathlib import Path

from tests.chaos.storm import storm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--pace", type=float, default=0.35, help="seconds between two blows, on average")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    options = parser.parse_args()
    postgresql = bool(os.environ.get("DATABASE_URL"))
    print(f"{'PostgreSQL' if postgresql else 'SQLite'}, seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ql-storm-") as folder:
        with storm(Path(folder), options.seed, postgresql=postgresql) as made:
            made.rage(options.runs, options.pace)
            made.settle(300)
            report = made.check()
        for name, count in sorted(report.counts.items()):
            print(f"{count:8} {name}")
        for told in report.broken:
            print(f"BROKEN: {told}")
    raise SystemExit(1 if report.broken else 0)


main()
