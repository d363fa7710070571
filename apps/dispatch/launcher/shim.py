"""One script's supervisor: prepares, waits for `go`, runs, stops, and says how it ended (architecture §2).

It outlives the session, the launcher and the panel. Whatever goes wrong with them or with the disk, an end
of the started script becomes known through its receipt (spec/runs.md §8).

After a short, quiet run that left no process behind it stays, warm, as long as its session keeps the socket open:
the session hands it another run once the first is settled, so that at any time a shim is one unsettled run's. One
that is stopped, adopted or alone ends with its run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from apps.artifacts.facts import ArtifactFileError, TruncationFact, publish_fact
from apps.dispatch.journal import ACCEPTED, LAUNCHING, STARTED, Entry
from apps.dispatch.launcher import confine, hooks, programs, tree
from apps.dispatch.launcher.control import Channel
from apps.dispatch.launcher.files import (
    LOG_FACT,
    OUTPUT,
    SPARE,
    STOP_FACT,
    AttemptFolder,
    PrepareError,
    make_working_folder,
)
from apps.dispatch.launcher.loop import Loop, boot_s, wall_ms
from apps.dispatch.launcher.output import LogSink, Pump
from apps.dispatch.launcher.programs import CannotStart, Environment
from apps.dispatch.launcher.reading import parse
from apps.dispatch.launcher.spec import (
    SPEC_BYTES_MAX,
    LaunchSpec,
    SpecError,
    to_bytes,
)
from apps.dispatch.launcher.starting import Starter
from apps.dispatch.receipts import Receipt, ReceiptExists, ReceiptStore, Reservation

LEFTOVER_GRACE_MS = 2_000
KILL_LIMIT_S = 5.0  # after that what still lives cannot be killed by us and is reported as escaped
KILL_ROUND_S = 0.05
FLOOD_PROCESSES = 512  # so many are a fork bomb: woken for a goodbye it would only go on
RECEIPT_TRIES = 600
RECEIPT_PAUSE_S = 1.0
STOPPED_BEFORE_BODY = 128 + 15
NEVER_REAPED = 128 + 9
BROKEN = 255
# A script that ends sooner is told of once, with its end: half the messages of a storm of small runs.
TELL_S = 0.002
# Only what cost little stays warm: a shim that has seen much has grown, and a long run gains nothing.
WARM_RUN_S = 10.0
WARM_BYTES = 65_536
WARM_RUNS = 256


def serve(
    channel: Channel,
    loop: Loop,
    memory: int | None,
    boot: str,
    empty_input: str,
    receipt_tries: int = RECEIPT_TRIES,
) -> None:
    """The whole life of a shim, from what a session sent. Returns when it is over.

    `memory` is a file with the specification when that was too long for the control socket. `empty_input` is
    the path of a file that holds `{}`, for scripts that are given nothing.
    """
    take: Callable[[], bytes | None] = channel.take_spec if memory is None else lambda: _read_whole(memory)
    try:
        for left in range(WARM_RUNS, 0, -1):
            run = _prepare(take, channel, loop, boot, empty_input)
            if run is None or not run.carry_out(receipt_tries, stays=left > 1):
                return
            take = loop.next_spec
    finally:
        SPARE.drop()


def _prepare(
    take: Callable[[], bytes | None], channel: Channel, loop: Loop, boot: str, empty_input: str
) -> Run | None:
    """Everything up to `go`; None where that did not come, and nothing is left then."""
    undo: list[Callable[[], None]] = []
    failure: tuple[str, str] | None = None
    told = False
    try:
        data = take()
        if data is None:
            return None
        spec = parse(data)
        if spec.run_as is not None and not confine.may_switch():
            raise PrepareError(
                "run_as_not_permitted", "the launcher may not switch to the user of QINGLONG_RUN_AS"
            )
        folder = AttemptFolder(spec)

        def take_back() -> None:
            # Where its start may be on record and nobody took that back, whoever finds the folder has to know that it
            # did not start. A shim that was late may have made the folder of an attempt that is long over.
            if (folder.found or told) and not (channel.open or loop.stop_cause):
                folder.leave()
            else:
                folder.remove()

        undo.append(take_back)
        folder.prepare(spec)
        sink = LogSink(spec)
        undo.append(sink.discard)
        make_working_folder(spec)
        reservation = ReceiptStore(spec.receipts_root).reserve(spec.attempt_id)
        undo.append(reservation.discard)
        pid = os.getpid()
        note = _Journal(reservation, spec, pid, _start_ticks(pid), boot)
        if not loop.go:
            note(ACCEPTED)
            loop.turn(0)
        if (
            not loop.go
        ):  # where it came with the specification, or right behind it, nobody waits for an answer
            told = channel.send("ready", pid, note.start_ticks, boot)
        while channel.open and not loop.go and loop.stop_cause is None:
            loop.turn()
        if channel.open and not loop.go:
            loop.turn(0)  # a signal may have come between a `go` and our reading of it
        if not loop.go and loop.stop_cause is not None:
            raise PrepareError("stopped", "stopped before it was started")
        if loop.go:
            # From here on there is always a receipt, also when a stop came with the `go`.
            note(LAUNCHING)
            folder.mark_go()
            undo.clear()
    except (PrepareError, SpecError, ReceiptExists, ArtifactFileError) as error:
        failure = (error.code, str(error))
    except OSError as error:
        failure = ("io_error", os.strerror(error.errno or 0))
    finally:
        for step in reversed(undo):
            step()
    if failure is not None:
        channel.send("failed", *failure)
    if failure is not None or not loop.go:
        return None
    given = folder.input or empty_input
    return Run(
        spec, given, channel=channel, loop=loop, folder=folder, sink=sink, reservation=reservation, note=note
    )


@cache
def _start_ticks(pid: int) -> int:
    stat = tree.read_stat(pid)
    return stat.start_ticks if stat else 0


class _Journal:
    """Says in the node's journal how far the attempt is."""

    def __init__(
        self, reservation: Reservation, spec: LaunchSpec, pid: int, start_ticks: int, boot: str
    ) -> None:
        self._reservation = reservation
        self._spec = spec
        self._pid = pid
        self._boot = boot
        self.start_ticks = start_ticks

    def __call__(self, state: str) -> None:
        spec = self._spec
        self._reservation.note(
            Entry(spec.run_id, spec.attempt_id, state, self._pid, self.start_ticks, self._boot, wall_ms())
        )


def _read_whole(descriptor: int) -> bytes:
    try:
        size = min(os.lseek(descriptor, 0, os.SEEK_END), SPEC_BYTES_MAX + 1)
        return os.pread(descriptor, size, 0)
    finally:
        os.close(descriptor)


class Run:
    """One started attempt, from `go` to its receipt."""

    def __init__(
        self,
        spec: LaunchSpec,
        given: str,
        *,
        channel: Channel,
        loop: Loop,
        folder: AttemptFolder,
        sink: LogSink,
        reservation: Reservation,
        note: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._note = note
        self._input = given
        self._channel = channel
        self._loop = loop
        self._folder = folder
        self._sink = sink
        self._reservation = reservation
        self._pump = Pump(sink)
        self._starter = Starter(spec, sink, self._pump.write_end)
        self._cause: str | None = None
        self._cause_at_ms = 0
        self._finished_at_ms = 0
        self._collected = False
        self._body_pid = 0
        self._announced = False
        self._untold: int | None = None
        self._started_at_ms = wall_ms()
        self._deadline_s = self._deadline()
        loop.watch(self._pump)

    def carry_out(self, receipt_tries: int, *, stays: bool) -> bool:
        """Run to the end and publish. Errors of our own end the run with 255, never without a receipt.

        True where the shim stays for another run, which it does only if it may (`stays`).
        """
        try:
            code = self._phases()
        except Exception as error:
            self._sink.say(f"the supervisor failed ({type(error).__name__}); the run is ended")
            code = BROKEN
        stop_fact = None
        with suppress(Exception):
            stop_fact = self._end_tree()
        if self._spec.limits is not None:
            with suppress(Exception):
                stop_fact = self._limit_fact(code, stop_fact)
        self._finished_at_ms = max(self._started_at_ms, wall_ms())
        stop_fact = self._collect(stop_fact, stays)
        done = self._publish(code if code is not None else self._interrupted_code(), stop_fact, receipt_tries)
        warm = stays and done and code != BROKEN and self._light()
        self._let_go()
        self._channel.send("ended", *(("warm",) if warm else ()))
        return warm

    def _light(self) -> bool:
        return (
            self._cause is None
            and not self._spec.mask  # what it knew stays in its memory until it ends
            and self._loop.stop_cause is None
            and self._loop.childless
            and self._channel.open
            and not self._collected
            and self._sink.bytes_seen <= WARM_BYTES
            and wall_ms() - self._started_at_ms <= WARM_RUN_S * 1000
        )

    def _let_go(self) -> None:
        self._loop.unwatch(self._pump)
        self._pump.close()
        self._folder.close()
        self._starter.close()
        os.chdir("/")

    def _deadline(self) -> float | None:
        now = boot_s()
        ends = []
        if self._spec.timeout_ms is not None:
            ends.append(now + self._spec.timeout_ms / 1000)
        if self._spec.deadline_at_ms is not None:
            # Turned into the clock that cannot be set; a step of the wall clock moves nothing from here on.
            ends.append(now + (self._spec.deadline_at_ms - self._started_at_ms) / 1000)
        return min(ends, default=None)

    # -- phases -----------------------------------------------------------------------------------------

    def _phases(self) -> int | None:
        """Exit code of the body, or None when a stop or the deadline came first."""
        spec = self._spec
        self._sink.say_what_shows()
        try:
            self._starter.get_ready()
        except CannotStart as error:
            self._sink.say(error.text)
            self._announce(0)
            return error.exit_code
        env = {to_bytes(name): to_bytes(value) for name, value in spec.env.items()}
        env[b"QINGLONG_INPUT"] = to_bytes(self._input)
        env[b"QINGLONG_OUTPUT"] = to_bytes(f"{self._folder.scratch}/{OUTPUT}")
        env[b"QINGLONG_ARTIFACTS"] = to_bytes(self._folder.files)
        env[b"TMPDIR"] = to_bytes(self._folder.scratch)
        for name, place in self._folder.secrets.items():
            env[to_bytes(name)] = to_bytes(f"{self._folder.path}/{place}")
        if spec.before is not None and not self._interrupted():
            env = self._before(to_bytes(spec.before), env)
        if self._interrupted():
            return None
        code = self._body(env)
        if code is not None and spec.after is not None and not self._interrupted():
            env[b"QINGLONG_EXIT_CODE"] = str(code).encode()
            self._hook("after", hooks.after_argv(to_bytes(spec.after)), env)
        return code

    def _before(self, text: bytes, env: Environment) -> Environment:
        dump = hooks.open_dump()
        try:
            ended = self._hook("before", hooks.before_argv(text), env, (dump, hooks.DUMP_DESCRIPTOR))
            if not ended:
                return env
            left = hooks.read_dump(dump, env)
        finally:
            os.close(dump)
        if left is None:
            self._sink.say("before left no variables behind; the run goes on without them")
            return env
        return left

    def _hook(
        self, name: str, argv: list[bytes], env: Environment, extra: tuple[int, int] | None = None
    ) -> bool:
        """Run a hook to its end; False when it did not get there. A failure is one line in the log."""
        try:
            pid = self._starter.hook(argv, env, extra)
        except CannotStart as error:
            self._sink.say(f"{name}: {error.text}")
            return False
        self._announce(self._loop.expect(pid))
        code = self._wait(pid)
        if code:
            self._sink.say(f"{name} ended with exit code {code}; this does not change the run")
        return code is not None

    def _body(self, env: Environment) -> int | None:
        try:
            self._body_pid = self._starter.body(env)
        except CannotStart as error:
            self._announce(0)
            self._sink.say(error.text)
            return error.exit_code
        self._announce(self._loop.expect(self._body_pid))
        return self._wait(self._body_pid)

    def _announce(self, pid: int) -> None:
        """Note once that something was started; the session hears of it unless it ends at once."""
        if not self._announced:
            self._announced = True
            self._untold = pid
            with suppress(OSError):
                self._note(STARTED)

    def _tell(self) -> None:
        if self._untold is not None:
            self._channel.send("started", self._untold, self._started_at_ms)
            self._untold = None

    def _wait(self, pid: int) -> int | None:
        """Exit code of a child, its last output copied; None when a stop or the deadline came first."""
        tell_at = boot_s() + TELL_S
        while pid not in self._loop.statuses:
            if self._interrupted():
                return None
            if self._untold is not None and boot_s() >= tell_at:
                self._tell()
            self._loop.turn(tell_at if self._untold is not None else self._deadline_s)
        self._pump.drain()
        return programs.exit_code(self._loop.statuses[pid])

    def _interrupted(self) -> bool:
        if self._cause is None:
            if self._loop.stop_cause is not None:
                self._cause = self._loop.stop_cause
                self._cause_at_ms = self._loop.stop_requested_at_ms
            elif self._deadline_s is not None and boot_s() >= self._deadline_s:
                self._cause = "deadline"
                self._cause_at_ms = wall_ms()
        return self._cause is not None

    # -- the end ----------------------------------------------------------------------------------------

    def _end_tree(self) -> dict[str, object] | None:
        """Leave no process behind; the stop fact when there was something to stop or a reason to."""
        if not self._loop.childless:
            self._loop.reap()
        if self._cause is None:
            if self._loop.childless:
                return None
            self._cause = "leftover"
            self._cause_at_ms = wall_ms()
        self._tell()
        grace_ms = self._spec.grace_ms
        if self._cause == "leftover":
            grace_ms = min(grace_ms, LEFTOVER_GRACE_MS)
        root = os.getpid()
        term_at_ms = wall_ms()
        killed_at_ms = None
        seen = tree.freeze(root)
        if len(seen) <= FLOOD_PROCESSES:
            tree.terminate(seen)
            self._settle(boot_s() + grace_ms / 1000)
        limit = boot_s() + KILL_LIMIT_S
        while not self._loop.childless and boot_s() < limit:
            killed_at_ms = killed_at_ms or wall_ms()
            seen |= tree.kill(root)
            self._starter.kill()
            self._settle(boot_s() + KILL_ROUND_S)
        self._pump.drain()
        left = [] if self._loop.childless else tree.descendants(root).items()
        return {
            "schema_version": 1,
            "run_id": self._spec.run_id,
            "attempt_id": self._spec.attempt_id,
            "cause": self._cause,
            "requested_at_ms": self._cause_at_ms,
            "term_at_ms": term_at_ms,
            "kill_at_ms": killed_at_ms,
            "ended_at_ms": wall_ms(),
            "processes": len(seen),
            "escaped": [{"pid": pid, "start_ticks": found.start_ticks} for pid, found in left],
        }

    def _limit_fact(self, code: int | None, fact: dict[str, object] | None) -> dict[str, object] | None:
        """Adds the limit that was met, where that can be known, and says it in the log."""
        met = self._starter.met(code)
        if met is None:
            return fact
        self._sink.say(f"the limit {met} was met")
        return {**(fact or {"schema_version": 1, "cause": "limit"}), "limit": met}

    def _collect(self, fact: dict[str, object] | None, stays: bool) -> dict[str, object] | None:
        """Keeps what was left in QINGLONG_ARTIFACTS, and adds to the stop fact what there was."""
        if stays and self._light() and self._folder.put_files_by():
            return fact
        if not self._folder.left_files():
            return fact
        self._collected = True
        self._tell()
        try:
            # Loaded by the few that need it; their shims end with their run.
            from apps.dispatch.launcher.collecting import collect, lines

            found = collect(self._spec, self._folder.files, self._sink.masked)
        except Exception as error:
            self._sink.say(f"what was left in QINGLONG_ARTIFACTS could not be kept ({type(error).__name__})")
            return fact
        for line in lines(found):
            self._sink.say(line)
        return {**(fact or {"schema_version": 1}), "files": found.fact()}

    def _settle(self, until_s: float) -> None:
        """Copy output and collect the dead until nobody is left or the time is up."""
        self._loop.reap()
        while not self._loop.childless and boot_s() < until_s:
            self._loop.turn(until_s)

    def _interrupted_code(self) -> int:
        if self._body_pid == 0:
            return STOPPED_BEFORE_BODY
        status = self._loop.statuses.get(self._body_pid)
        return NEVER_REAPED if status is None else programs.exit_code(status)

    def _publish(self, code: int, stop_fact: dict[str, object] | None, receipt_tries: int) -> bool:
        """Facts first, the receipt last: whoever sees the receipt finds everything else in place.

        False where something was in the way of the receipt.
        """
        spec, sink, folder = self._spec, self._sink, self._folder
        folder.remove_secrets()
        folder.sync_output()
        if spec.mask:
            try:
                folder.mask_output(sink.masked)
            except Exception:
                folder.drop_output()
                sink.say("what was left in QINGLONG_OUTPUT could not be masked, and is not kept")
        sink.close()
        finished_at_ms = self._finished_at_ms
        with suppress(OSError, ArtifactFileError):
            artifact = spec.log.artifact_id
            publish_fact(
                spec.log.root,
                TruncationFact(
                    run_id=spec.run_id,
                    attempt_id=spec.attempt_id,
                    log_artifact_id=artifact,
                    maximum_bytes=spec.log.max_bytes,
                    quota_reached=sink.quota_reached,
                    observed_at_ms=finished_at_ms,
                ),
            )
        if sink.incomplete or sink.quota_reached:
            log_fact: dict[str, object] = {
                "incomplete": sink.incomplete,
                "bytes_seen": sink.bytes_seen,
                "bytes_written": sink.bytes_written,
            }
            with suppress(OSError):
                folder.write_fact(LOG_FACT, log_fact)
            cut = {"cut": sink.quota_reached, "incomplete": sink.incomplete}
            stop_fact = {**(stop_fact or {"schema_version": 1}), "log": cut}
        if stop_fact is not None:
            with suppress(OSError):
                folder.write_fact(STOP_FACT, stop_fact)
        receipt = Receipt(
            run_id=spec.run_id,
            attempt_id=spec.attempt_id,
            callback_sequence=spec.callback_sequence,
            token=spec.token,
            started_at_ms=self._started_at_ms,
            finished_at_ms=finished_at_ms,
            exit_code=code,
        )
        try:
            self._reservation.publish(receipt)
            return True
        except ReceiptExists:
            return False
        except OSError:
            self._publish_late(receipt, receipt_tries)
            return False

    def _publish_late(self, receipt: Receipt, tries: int) -> None:
        """The folder was removed, say: as long as we live the run counts as running, so try on for a while."""
        store = ReceiptStore(self._spec.receipts_root)
        for _ in range(tries):
            time.sleep(RECEIPT_PAUSE_S)
            try:
                store.publish(receipt)
                return
            except ReceiptExists:
                return
            except (OSError, ArtifactFileError):
                continue
