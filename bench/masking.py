"""What masking costs: `python -m bench.masking [MB] [rounds]`.

A script prints a log through its shim, by turns without secrets and with 50 of them looked for in all forms: MB/s of
both from the same run, and their ratio. Then what a live shim with secrets has more in memory, how long it takes to be
ready, and the masker alone on output of several kinds.
"""

from __future__ import annotations

import base64
import os
import random
import select
import signal
import statistics
import string
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

from apps.dispatch.launcher.anchors import engine_folder
from apps.dispatch.launcher.client import Shim
from apps.dispatch.launcher.masker import Masker
from bench.shim import Bench, pss_kib, stop

SECRETS = 50
LIVE = 16
READ = 256 * 1024
WORDS = 3_000

Secrets = tuple[tuple[str, str], ...]


def secrets(chance: random.Random) -> Secrets:
    """As people have them: mostly tokens of letters and digits, some with everything a keyboard has, a few keys."""
    plain, every = string.ascii_letters + string.digits + "_-", string.printable[:95]
    values = ["".join(chance.choices(plain, k=chance.randint(16, 48))) for _ in range(35)]
    values += ["".join(chance.choices(every, k=chance.randint(12, 32))).strip() for _ in range(12)]
    for _ in range(SECRETS - len(values)):
        whole = base64.b64encode(chance.randbytes(1_200)).decode()
        values.append(
            "\n".join(
                [
                    "-----BEGIN KEY-----",
                    *(whole[at : at + 64] for at in range(0, 1_600, 64)),
                    "-----END KEY-----",
                ]
            )
        )
    return tuple((f"SECRET_{number}", value) for number, value in enumerate(values))


def log_text(chance: random.Random, size: int, masker: Masker, every: int) -> bytes:
    """Lines of an ordinary log; each `every`th one ends with a form of a secret (0 = none does)."""
    words = ["".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 9))) for _ in range(WORDS)]
    lines: list[bytes] = []
    length = 0
    while length < size:
        text = " ".join(chance.choices(words, k=12))
        second, worker = chance.randint(0, 59), chance.randint(1, 999)
        line = f"2026-11-30T16:25:{second:02d}.123Z INFO worker[{worker}] {text}".encode()
        if every and len(lines) % every == 0:
            line += b" " + chance.choice(masker._forms).text
        lines.append(line + b"\n")
        length += len(lines[-1])
    return b"".join(lines)[:size]


def through_shims(bench: Bench, source: Path, given: Secrets, rounds: int) -> None:
    size = source.stat().st_size / 1e6
    speeds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for masking in (False, True):
            spec = bench.spec("/bin/cat", str(source))
            shim = bench.launcher.launch(replace(spec, mask=given if masking else ()))
            begin = to(shim, "ready")
            shim.go()
            to(shim, "ended")
            speeds[masking].append(size / (time.monotonic() - begin))
            shim.close()
            Path(spec.log.root).joinpath(spec.log.artifact_id[6:8], f"{spec.log.artifact_id}.log").unlink()
    copy, masked = (statistics.median(speeds[masking]) for masking in (False, True))
    ratios = [second / first for first, second in zip(speeds[False], speeds[True], strict=True)]
    print(
        f"through a shim, {size:.0f} MB, median of {rounds}: copied {copy:.0f} MB/s, masked with {len(given)} secrets "
        f"{masked:.0f} MB/s (slowest {min(speeds[True]):.0f}); ratio {statistics.median(ratios):.2f} "
        f"(least {min(ratios):.2f})"
    )


def to(shim: Shim, state: str) -> float:
    """Waits for a message of a shim; the moment it came."""
    while True:
        select.select([shim], [], [], 60)
        for message in shim.receive():
            if message.state == state:
                return time.monotonic()
            if message.state == "failed":
                raise SystemExit(f"{message.code}: {message.detail}")


def memory(bench: Bench, name: str, given: Secrets) -> None:
    """What each live shim adds to what the launcher has alone, and the time from asking for it to `ready`."""
    launcher = int((bench.home / "node" / "launcher.lock").read_text())
    bench.launcher.close()
    time.sleep(0.5)
    before = pss_kib(launcher)
    shims, pids, took = [], [launcher], []
    for _ in range(LIVE):
        begin = time.monotonic()
        shim = bench.launcher.launch(replace(bench.spec("/bin/sleep", "60"), mask=given))
        while not (messages := shim.receive()):
            select.select([shim], [], [], 5)
        took.append(time.monotonic() - begin)
        shims.append(shim)
        pids.append(messages[0].pid)
        shim.go()
    time.sleep(0.5)
    added = (sum(pss_kib(pid) for pid in pids) - before) / LIVE / 1024
    print(
        f"a live shim with {name}: adds {added:.2f} MiB PSS; ready after {statistics.median(took) * 1000:.1f} ms"
    )
    stop(shims)


def alone(name: str, data: bytes, given: Secrets, engine: str | None, read: int = READ) -> None:
    """The masker by itself, best of three, by processor time: others on the machine do not count."""
    best, places = 0.0, 0
    view = memoryview(data)
    for _ in range(3):
        masker = Masker(given, engine)
        begin = time.process_time()
        pieces = [masker.feed(view[at : at + read]) for at in range(0, len(data), read)]
        best = max(best, len(data) / 1e6 / (time.process_time() - begin))
        places = sum(piece[0] for chunk in pieces for piece in chunk if isinstance(piece, tuple))
    print(
        f"the masker alone, {name}: {best:.0f} MB/s of processor time, {places} places in {len(data) / 1e6:.0f} MB"
    )


def main(arguments: Sequence[str]) -> None:
    size = int(arguments[0]) if arguments else 256
    rounds = int(arguments[1]) if len(arguments) > 1 else 5
    chance = random.Random(1)
    given, engine = secrets(chance), engine_folder()
    begin = time.perf_counter()
    masker = Masker(given, engine)
    took = (time.perf_counter() - begin) * 1000
    print(
        f"{len(given)} secrets: {len(masker._forms)} forms, {len(masker._families)} anchors, made in {took:.1f} ms"
    )
    bench = Bench()
    try:
        source = bench.home / "source"
        part = log_text(chance, 32_000_000, masker, 100)
        with source.open("wb") as file:
            for _ in range(max(1, size // 32)):
                file.write(part)
        bench.carry(20, 4, "/bin/true")
        through_shims(bench, source, given, rounds)
        memory(bench, "no secrets", ())
        memory(bench, "3 secrets", given[:3])
        memory(bench, f"{len(given)} secrets", given)
    finally:
        bench.launcher.close()
        os.kill(int((bench.home / "node" / "launcher.lock").read_text()), signal.SIGTERM)
        rmtree(bench.home, ignore_errors=True)
    for name, every in (
        ("no secrets in it", 0),
        ("one in 100 lines", 100),
        ("one in 10 lines", 10),
        ("one in each line", 1),
    ):
        alone(name, log_text(chance, 16_000_000, masker, every), given, engine)
    alone("base64 of noise", base64.b64encode(chance.randbytes(12_000_000)), given, engine)
    alone("one in 100 lines, read by 4 KiB", log_text(chance, 16_000_000, masker, 100), given, engine, 4_096)
    alone("without the engine", log_text(chance, 4_000_000, masker, 100), given, None)


if __name__ == "__main__":
    main(sys.argv[1:])
