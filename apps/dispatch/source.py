"""Runs, as the loop's first source: lease → launch → go → receipt → settle (architecture.md §2)."""

from __future__ import annotations

import logging
import time
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError

from apps.artifacts.facts import ArtifactFileError
from apps.core import clock, ids, node
from apps.core.errors import Busy
from apps.dispatch import candidates, journal, launching, queries, recovery
from apps.dispatch import carried as carrying
from apps.dispatch import remains as remaining
from apps.dispatch.carried import Carried
from apps.dispatch.cleanup import Cleaner
from apps.dispatch.fence import LeaseFence
from apps.dispatch.launcher import client
from apps.dispatch.launcher.client import Launcher, LauncherUnavailable
from apps.dispatch.launcher.files import HELD
from apps.dispatch.launcher.spec import SpecError
from apps.dispatch.launcher.tree import boot_id
from apps.dispatch.launching import LaunchRefused
from apps.dispatch.loop import LEASE_MS, Loop
from apps.dispatch.predecessors import Holder, Waiting
from apps.dispatch.preparing import Preparation
from apps.dispatch.receipts import ReceiptInvalid, ReceiptStore
from apps.dispatch.services import adoption, passes, receipts, remains
from apps.dispatch.services.completion import End
from apps.dispatch.services.passes import Begun, Claimed, Ended, Failed, News, Prepared, Ready, Stored
from apps.dispatch.stopper import Stopper
from apps.runs.retries import NEVER_STARTED_MAX

logger = logging.getLogger("qinglong.dispatch")

RECONCILE_S = 60.0
LAUNCHER_PAUSE_S = 5.0
RESOLVE_S = 0.5
# A process that is killed lets go of its socket before it lets go of its lock.
DYING_S = 0.2
BROKEN = "DISPATCH_BROKEN"
# What says nothing about a single run: the whole pass is tried again, or the session ends.
_ALL_ALIKE = (Busy, OperationalError, InterfaceError, passes.SessionReplaced)


class RunSource:
    """All attempts that one session carries."""

    def __init__(self) -> None:
        self._carried: dict[UUID, Carried] = {}
        self._consumed: list[UUID] = []
        self._launcher = Launcher(settings.NODE_DIR)
        self._planner = launching.Planner()
        self._preparation = Preparation(self._launcher, self._planner, self._carried)
        self._receipts = ReceiptStore(str(launching.receipts_root()))
        self._cleaner = Cleaner(self._receipts)
        self._remains = remaining.Waiting()
        self._adopt = True
        self._look_at_neighbours = False
        self._reconcile_at = 0.0
        self._scanned: receipts.Position | None = None
        self._paused_until = 0.0
        self._stored_at = 0.0
        self._behind = Waiting()
        self._promised: set[client.Shim] = set()
        self._needs = candidates.Needs(settings.NODE_LABELS)
        self._loop: Loop
        self._stopper: Stopper

    def open(self, loop: Loop) -> None:
        self._loop = loop
        self._stopper = Stopper(loop.fence.worker_id, self._carried)
        try:
            # Where none runs yet, one is started before any run is claimed for it, not while its lease runs.
            self._launcher.connect()
        except LauncherUnavailable:
            self._without_launcher()

    def carried(self) -> int:
        return len(self._carried)

    def expects(self) -> bool:
        return any(
            item.phase in ("launching", "going") or (item.phase == "running" and not item.told_running)
            for item in self._carried.values()
        )

    def leases(self) -> list[LeaseFence]:
        return [item.lease for item in self._carried.values()]

    def renewed(self, kept: dict[Any, LeaseFence]) -> None:
        self._look_at_neighbours = True
        self._launcher.trim()
        for attempt_id, item in list(self._carried.items()):
            if attempt_id in kept:
                item.lease = kept[attempt_id]
                if item.phase == "adopted":
                    self._look_how_far(item)
                elif item.phase == "going" and item.handle is not None:
                    client.wake(
                        item.handle
                    )  # it should have said long ago that it started: somebody froze it
            else:
                self._let_go(item)
                self._adopt = True

    def close(self) -> None:
        for item in list(self._carried.values()):
            self._let_go(item)
        self._launcher.close()
        self._remains.close()
        try:
            self._keep_remains()
        except (Busy, DatabaseError) as error:
            logger.warning("what lost attempts left is not on record yet: %s", type(error).__name__)
        self._cleaner.close()
        try:
            receipts.resolve([*self._consumed, *self._cleaner.removed()])
        except (Busy, DatabaseError) as error:
            logger.warning("settled receipts stay on record: %s", type(error).__name__)

    def step(self, look: bool, rung: bool) -> bool:
        if self._look_at_neighbours:
            # A session beside this one may have died; nobody else may come to look after its scripts.
            self._adopt |= adoption.orphaned(node.node_id(), node.held_slots())
            self._stopper.deliver_for_others()
            self._look_at_neighbours = False
        if self._adopt:
            self._take_over()
        now = time.monotonic()
        if (at := self._stopper.step(rung)) is not None:
            self._loop.wake_by(at)
        if now >= self._reconcile_at:
            self._reconcile()
        self._start_alone()
        self._keep_remains()
        news = self._news(look)
        if not (news.room or news.leases()) and not self._resolves_alone(news, now):
            return self._adopt
        self._stored_at = now
        try:
            stored = passes.store(self._loop.fence, news, LEASE_MS)
        except _ALL_ALIKE:
            self._preparation.undo()
            raise
        except Exception as error:
            self._preparation.undo()
            if not news.leases():
                raise
            logger.error("a pass broke (%s); each of its runs is stored by itself", type(error).__name__)
            self._one_by_one(news)
            return True
        del self._consumed[: len(news.consumed)]
        self._act(news, stored)
        if stored.more and news.room:
            self._loop.look_again()
            return True
        return (
            self._adopt
            or bool(stored.stopped)
            or any(item.failure or item.returned or item.unstarted for item in self._carried.values())
        )

    def _resolves_alone(self, news: News, now: float) -> bool:
        """Whether rows of removed receipts are worth a pass; in a storm of small runs the next one is near."""
        return bool(news.consumed) and (not self._carried or now - self._stored_at >= RESOLVE_S)

    def _one_by_one(self, news: News) -> None:
        """Stores each run's part of a pass alone: the run that broke it pays for it, and nobody else.

        It ends as one of which nothing more is known; where not even that can be stored it is let go, and is
        taken up again when its lease has run out.
        """
        for part in news.parts():
            (lease,) = part.leases()
            item = self._carried[lease.attempt_id]
            try:
                stored = passes.store(self._loop.fence, part, LEASE_MS)
            except _ALL_ALIKE:
                raise
            except Exception as error:
                logger.error("run %s breaks its passes: %s", lease.run_id, type(error).__name__)
                if item.failure == BROKEN:
                    self._let_go(item)
                else:
                    item.failure, item.lost = BROKEN, item.phase not in ("launching", "ready")
            else:
                self._act(part, stored)

    def _news(self, look: bool) -> News:
        """What is to be stored now, read from the state of everything carried."""
        news = News(
            slots=max(0, self._loop.slots - len(self._carried)),
            prepare=self._preparation.prepare,
            needs=self._needs,
        )
        self._consumed += self._cleaner.removed()
        news.consumed = list(self._consumed)
        for item in self._carried.values():
            if item.failure is not None:
                news.failed.append(Failed(item.lease, item.failure, item.lost))
            elif item.unstarted:
                news.unstarted.append(item.lease)
            elif item.phase == "ended":
                self._ended(item, news)
            elif item.returned:
                news.returned.append(item.lease)
            elif item.phase == "ready" and item.handle is not None and item.plan is not None:
                news.ready.append(
                    Ready(item.lease, Prepared(item.handle.encode(), item.handle.pid, item.artifact_id,
                          item.plan.token_hash, item.plan.timeout_ms))
                )  # fmt: skip
            elif item.phase == "running" and not item.told_running:
                news.begun.append(Begun(item.lease, item.started_at or clock.now()))
        leaving = len(news.ended) + len(news.failed) + len(news.returned) + len(news.unstarted)
        if (look or leaving) and time.monotonic() >= self._paused_until and not self._loop.held_back:
            news.room = max(0, news.slots + leaving)
        news.slots = min(self._loop.slots, news.slots + leaving)
        return news

    def _ended(self, item: Carried, news: News) -> None:
        try:
            receipt = self._receipts.read(ids.text(item.lease.attempt_id))
        except (ReceiptInvalid, PermissionError):
            self._quarantine(item.lease.attempt_id)
            receipt = None
        except OSError as error:
            # The end is there and cannot be read just now: the next pass tries again.
            logger.warning("a receipt could not be read: %s", type(error).__name__)
            return
        if receipt is None and item.started_at is None and self._never_started(item):
            item.unstarted = True
            news.unstarted.append(item.lease)
            return
        if receipt is None:
            code = item.lost_as or (recovery.UNOBSERVED if item.started_at else recovery.INCOMPLETE)
            news.failed.append(Failed(item.lease, code, lost=True, printed=carrying.printed(item)))
            return
        left = carrying.read_left(item.folder)
        news.ended.append(
            Ended(
                item.lease,
                End(
                    receipt,
                    left.cause,
                    left.output,
                    left.has_output,
                    left.output_code,
                    left.proof,
                    left.limit,
                    carrying.kept(left, item.lease),
                    left.log,
                    carrying.printed(item),
                ),
            )
        )

    def _never_started(self, item: Carried) -> bool:
        """Whether it is proven: by the node's journal where a shim noted something, else by the folder.

        A shim that ends without `go` takes back what it noted, a killed one leaves it. The folder alone is no proof
        beside an entry, since a script can make its own look like that. Of an earlier boot the disk may have kept
        less than happened.
        """
        handle = item.handle
        if handle is None or handle.boot_id != boot_id():
            return False
        client.wait_until_gone(handle, DYING_S)
        if not carrying.unheld(item.folder):
            return False
        try:
            found = journal.entries(str(launching.receipts_root()), str(item.lease.attempt_id))
        except OSError:
            return False
        if found:
            return journal.never_launched(found, handle.boot_id)
        return carrying.never_started(item.folder)

    def _act(self, news: News, stored: Stored) -> None:
        """Acts on what is on record now: `go`, launch, let go, remove receipts."""
        for ended in news.ended:
            attempt_id = ended.lease.attempt_id
            if attempt_id in stored.refused:
                logger.error("a receipt was refused: %s", stored.refused[attempt_id].code)
                self._quarantine(attempt_id)
            elif attempt_id in stored.settled:
                # Not where somebody else holds the lease now, or ended it as lost: the receipt is their evidence.
                self._consume(self._carried[attempt_id])
        for attempt_id in stored.running:
            self._carried[attempt_id].told_running = True
        for ready in news.ready:
            if ready.lease.attempt_id in stored.go:
                self._go(self._carried[ready.lease.attempt_id])
        for attempt_id in stored.stopped:
            self._carried[attempt_id].failure = "stopped"
        for attempt_id in stored.over:
            if (item := self._carried.get(attempt_id)) is not None:
                if item.phase in ("launching", "ready") and item.shim is not None:
                    item.shim.stop()  # so that it leaves nothing
                self._let_go(item)
                # Whoever else holds the lease now needs the folder, as a proof.
                if attempt_id in stored.never_ran and (item.unstarted or carrying.never_started(item.folder)):
                    carrying.remove_folder(item.folder)
        for claimed in stored.claimed:
            if claimed.attempt.id in stored.go:
                self._hand_over(claimed)
            else:
                self._launch(claimed)
        self._preparation.undo()
        for shim in self._promised:
            self._loop.unwatch(shim.socket)
        self._promised.clear()
        if any(one.lost and one.lease.attempt_id in stored.over for one in news.failed):
            self._remains.add(remains.waiting(node.node_id()))

    def _keep_remains(self) -> None:
        """What lost attempts left goes on record; then nothing of them is needed on this node."""
        for one, kept in self._remains.done():
            remains.record(one.attempt.pk, kept)
            # Not its receipt: a word that came too late is evidence.
            self._cleaner.add(None, str(one.folder))

    def _hand_over(self, claimed: Claimed) -> None:
        """What was prepared for a run that is on record as starting now goes to its shim, `go` included."""
        ready = self._preparation.take(claimed.attempt.id)
        plan, shim = ready.plan, ready.shim
        item = Carried(claimed.lease, plan.spec.attempt_dir, "ready", plan, shim)
        item.artifact_id = plan.spec.log.artifact_id
        item.handle = shim.handle
        self._carried[claimed.attempt.id] = item
        self._watch(item, shim)
        if shim.again(ready.spec, go=True):
            item.phase = "going"
        else:
            item.unstarted = True

    def _launch(self, claimed: Claimed) -> None:
        run, attempt = claimed.run, claimed.attempt
        item = Carried(claimed.lease, launching.attempt_folder(attempt))
        self._carried[attempt.pk] = item
        try:
            item.plan = self._planner.plan(run, attempt, claimed.project, claimed.task)
            item.artifact_id = item.plan.spec.log.artifact_id
        except LaunchRefused as error:
            item.failure = error.code
        except _ALL_ALIKE:
            raise
        except Exception as error:
            logger.error("run %s cannot be prepared: %s", run.pk, type(error).__name__)
            item.failure = BROKEN
        else:
            if not self._behind.waits(attempt):
                self._start(item)

    def _start_alone(self) -> None:
        """Those that waited for lost attempts before them: some may begin, some are not wanted any more."""
        alone, unwanted = self._behind.look()
        for attempt_id in alone:
            self._start(self._carried[attempt_id])
        for attempt_id in unwanted:
            self._carried[attempt_id].failure = "stopped"

    def _start(self, item: Carried) -> None:
        assert item.plan is not None
        try:
            item.shim = self._launcher.launch(item.plan.spec)
        except SpecError as error:
            item.failure = error.code
        except LauncherUnavailable:
            self._without_launcher()
            item.returned = True
        except Exception as error:
            logger.error("run %s cannot be started: %s", item.lease.run_id, type(error).__name__)
            item.failure = BROKEN
        else:
            self._watch(item, item.shim)

    def _without_launcher(self) -> None:
        logger.error("no launcher answers; runs stay in the queue")
        self._paused_until = time.monotonic() + LAUNCHER_PAUSE_S

    def _watch(self, item: Carried, shim: client.Shim) -> None:
        if shim in self._promised:
            self._promised.remove(shim)
            self._loop.watch_for(shim.socket, lambda: self._heard(item))
        else:
            self._loop.watch(shim.socket, lambda: self._heard(item))

    def _heard(self, item: Carried) -> None:
        shim = item.shim
        if shim is None:
            return
        for message in shim.receive():
            if message.state == "ready" and item.phase == "launching":
                item.handle, item.phase = message.handle, "ready"
            elif message.state == "failed" and message.code == HELD:
                self._unwatch(item)
                self._behind.wait_for(item.lease.run_id, Holder(item.lease.attempt_id, item.folder))
                return
            elif message.state == "failed":
                item.failure = message.code or "start_failed"
            elif message.state == "started":
                item.started_at = clock.from_ms(message.started_at_ms)
                item.phase = "running"
            elif message.state == "ended":
                item.phase, item.warm = "ended", message.warm
        if shim.closed:
            self._unwatch(item)
            if item.phase == "launching" and item.failure is None and shim.used:
                self._start(item)  # it died while it was kept; nothing was started
            elif item.phase in ("launching", "ready") and item.failure is None and not item.unstarted:
                self._not_prepared(item)
            elif item.phase in ("going", "running"):
                item.phase = "ended"

    def _not_prepared(self, item: Carried) -> None:
        """Its shim died before anything was on record: the run is claimed anew, until that is no accident any more."""
        many = item.lease.lease_generation >= NEVER_STARTED_MAX
        if many and queries.start_failures(item.lease.run_id, item.lease.attempt_id) + 1 >= NEVER_STARTED_MAX:
            item.failure = "launcher_failed"
        else:
            item.returned = True
            self._loop.look_again()

    def _go(self, item: Carried) -> None:
        item.phase = "going"
        if item.shim is None or not item.shim.go():
            # End of pipe before `go`: provably never started.
            item.phase, item.unstarted = "ready", True

    def _take_over(self) -> None:
        """Adopts what dead sessions of this node left, and watches each by its verified identity."""
        own = self._loop.fence.worker_id
        dead = adoption.dead_places(node.node_id(), own, held=node.held_slots())
        adopted, self._adopt = adoption.adopt(
            self._loop.fence,
            dead,
            LEASE_MS,
            self._loop.slots,
            lambda attempt: not recovery.examine(attempt).code,
        )
        for claimed in adopted:
            self._follow(claimed)
        self._reconcile()

    def _reconcile(self) -> None:
        self._remains.add(remains.waiting(node.node_id()))
        self._scanned = receipts.scan(node.node_id(), self._receipts, self._scanned).next_cursor
        pause = RECONCILE_S if self._scanned is None else 1.0
        self._reconcile_at = time.monotonic() + pause

    def _follow(self, claimed: Claimed) -> None:
        attempt = claimed.attempt
        item = Carried(claimed.lease, launching.attempt_folder(attempt), phase="adopted")
        item.started_at = attempt.started_at
        item.artifact_id = attempt.log_artifact_id or ""
        item.told_running = claimed.run.status == "running"
        self._carried[attempt.pk] = item
        found = recovery.examine(attempt)
        item.handle, item.lost_as = found.handle, found.code
        if found.handle is not None and not found.code:
            item.pidfd = client.open_pidfd(found.handle)
        if item.pidfd is None:
            item.phase = "ended"
            return
        self._loop.watch(item.pidfd, lambda: self._exited(item))
        self._look_how_far(item)

    def _look_how_far(self, item: Carried) -> None:
        """An adopted script counts as running once the journal says that it was let go; until then it may not be."""
        if item.started_at is None:
            try:
                found = journal.launched(
                    journal.entries(str(launching.receipts_root()), str(item.lease.attempt_id))
                )
                if found is None:
                    return
                item.started_at = min(clock.from_ms(found.at_ms), clock.now())
            except (OSError, ValueError):
                return
        item.phase = "running"

    def _exited(self, item: Carried) -> None:
        self._unwatch(item)
        item.phase = "ended"

    def _unwatch(self, item: Carried) -> None:
        if item.shim is not None:
            self._loop.unwatch(item.shim.socket)
        if item.pidfd is not None:
            self._loop.unwatch(item.pidfd)
        item.close()

    def _let_go(self, item: Carried) -> None:
        self._carried.pop(item.lease.attempt_id, None)
        self._behind.forget(item.lease.attempt_id)
        self._unwatch(item)

    def _consume(self, item: Carried) -> None:
        """Receipt and folder go once the end is on record; then, with the next pass, the journal's row.

        Only now may its shim carry another run: until here its handle stood for this one.
        """
        shim = item.shim
        if item.warm and shim is not None and not shim.closed:
            if self._preparation.give_back(shim):
                self._promised.add(shim)  # and stays watched
            else:
                self._loop.unwatch(shim.socket)
            item.shim = None
        self._cleaner.add(item.lease.attempt_id, item.folder)

    def _quarantine(self, attempt_id: UUID) -> None:
        try:
            receipts.quarantine(attempt_id, self._receipts)
        except (OSError, ArtifactFileError) as error:
            # It is on record as put aside; the move is made up for when its time there is over.
            logger.warning("a receipt could not be put aside: %s", type(error).__name__)
