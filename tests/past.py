"""What a panel has after a month of use, written straight into its database; called by tests/furnishing.py."""

# ruff: noqa: E501

from __future__ import annotations

from tests.e2e.person import NAME


def write_stops() -> None:
    """Inside Django: a stop that was not delivered and one that somebody outlived, on a machine that is not here."""
    from django.db import transaction

    from apps.core import clock
    from apps.dispatch.models import Node, RunDispatchLease, Worker
    from tests.dispatch.test_stop_decision import escaping, stopping
    from tests.runs import kit

    ahead = clock.from_ms(clock.now_ms() + 86_400_000)
    # In one go, or a session of this machine would take them.
    with transaction.atomic():
        blocked, lease = stopping(name="Restart the mail relay")
        escaped = escaping({"pid": 40_711, "start_ticks": 3}, {"pid": 40_712, "start_ticks": 4})
        Node.objects.filter(pk=kit.NODE).update(last_heartbeat_at=ahead, host="mail-1")
        Worker.objects.filter(node_id=kit.NODE).update(last_heartbeat_at=ahead, lease_expires_at=ahead)
        RunDispatchLease.objects.filter(pk=lease.attempt_id).update(expires_at=ahead)
    print(blocked.pk, escaped.pk)


def write_stuck() -> None:
    """Inside Django: an approved action whose process died over its start; nothing tells what it did."""
    from django.db import transaction

    from apps.access.models import User
    from apps.core import clock
    from apps.identity.principals import PolicySubject
    from tests.approvals import action_kit, kit

    owner, asked = User.objects.get(username=NAME), kit.fresh("deploy-1")
    bot = PolicySubject(asked.requested_by_type, asked.requested_by_id)
    past = clock.now_ms() - 3_500_000
    with transaction.atomic(), clock.fixed(lambda: past):
        kit.requested(bot, "migrate-7", action=kit.action("migrate"), risk="critical")
        action_kit.started(action_kit.consumed(kit.decide(owner, kit.verdict("migrate-7"))))
    print("migrate-7")


def write_rules() -> None:
    """Inside Django: rules by which two must approve, a task that needs it, what people asked, a broken glass."""
    from apps.access.models import User
    from apps.runs.services import Alone, start_run
    from tests.approvals import kit
    from tests.people import grant, member

    owner = User.objects.get(username=NAME)
    wei, tom, bob = member("admin", "wei"), member("admin", "tom"), member("operator", "bob")
    kit.policy_of_project(
        owner,
        quorum=2,
        exempt_roles=["owner"],
        break_glass_roles=["owner", "admin"],
        decider_people=[wei.subject_id],
    )
    task = kit.task("Rotate the keys", slug="rotate-keys", requires_approval=True, labels=["security"])
    kit.filed(bob, task, "rotate-1", input={"realm": "prod"}, risk="high", expires_in_ms=1_500_000)
    kit.decide(tom, kit.verdict("rotate-1", reason_code="tested"))
    kit.filed(owner, task, "rotate-2", args=["--all"], risk="low")
    reason = "The old keys leaked an hour ago; nobody else is awake."
    start_run(grant(owner, "run.start"), task.pk, trigger_type="manual", alone=Alone(reason))
    print("rotate-1", "rotate-2")


def write_secrets() -> None:
    """Inside Django: secrets, two tasks that name one, and one that is disabled."""
    from apps.projects.policy import Grant
    from apps.tasks.models import Task
    from apps.tasks.services import update_task
    from apps.vault import services

    manage = Grant.system("default", "secret.manage", "tests")
    for name, value in (
        ("pg-password", "correct horse 7"),
        ("tls-key", "-----BEGIN KEY-----"),
        ("old-token", "x"),
    ):
        services.put(manage, name, value, mutation_id="first", expected_version=0)
    services.put(manage, "pg-password", "battery staple 9", mutation_id="second", expected_version=1)
    services.disable(manage, "old-token", mutation_id="off")
    update = Grant.system("default", "task.update", "tests")
    both = {"PGPASSWORD": "pg-password", "TLS_KEY": {"secret": "tls-key", "as": "file"}}
    for slug, named in (("backup-db", both), ("weekly-report", {"PGPASSWORD": "pg-password"})):
        task = Task.objects.get(slug=slug)
        update_task(update, task.pk, task.version, {"secrets": named})


def write_people() -> None:
    """Inside Django: somebody who left and whose schedule goes on, and links for people to come."""
    from datetime import timedelta

    from apps.access.models import User
    from apps.access.services import change_person, invite
    from apps.tasks.models import Task
    from apps.triggers.drafts import TriggerDraft
    from apps.triggers.services import create_trigger
    from tests.people import grant, member, subject

    owner, gone = User.objects.get(username=NAME), member("operator", "mei.lin")
    task = Task.objects.get(slug="renew-certificates")
    draft = TriggerDraft(kind="cron", schedule="15 4 * * 0")
    create_trigger(grant(gone, "task.update"), grant(gone, "run.start"), task.pk, draft)
    change_person(gone.subject_id, 1, status="disabled", actor=subject(owner), origin="panel")
    given = grant(owner, "policy.manage")
    for name, role, days in (("anna", "operator", 7), ("", "viewer", 1)):
        made = invite(
            subject(owner), username=name, grant=given, role=role, lasts=timedelta(days=days), origin="panel"
        )
    invite(subject(owner), username="kim", administrator=True, origin="panel")
    print(gone.subject_id, made.secret)


def neighbours() -> None:
    """Inside Django: two more machines, one that is drained and one that fell silent."""
    from apps.core import clock
    from apps.dispatch.models import Node, Worker
    from apps.dispatch.services import workers

    for number, (host, labels) in enumerate(
        (("build-2", {"gpu": "a100", "zone": "eu"}), ("attic", {"arm64": ""}))
    ):
        node_id = f"{number + 4}7c3e9" * 5 + "ab"
        for place in (1, 2):
            workers.register(node_id, place, 8, ["runs"])
        Node.objects.filter(pk=node_id).update(host=host, labels=labels)
        Worker.objects.filter(node_id=node_id).update(status="offline")
    long_ago = clock.from_ms(clock.now_ms() - 7 * 60_000)
    Node.objects.filter(host="build-2").update(drain_requested_at=long_ago)
    Node.objects.filter(host="attic").update(last_heartbeat_at=long_ago)
    Worker.objects.filter(node__host="attic").update(last_heartbeat_at=long_ago)


def write_past() -> None:
    """Inside Django: what a month of use would have left."""
    from apps.core import bulk, clock, ids
    from apps.runs.models import Run, RunAttempt, UncountedRun
    from apps.runs.services import fold_totals
    from apps.tasks.models import Task

    every = {"backup-db": 1440, "build-site": 360, "sync-feeds": 60, "jd-daily": 1440, "weekly-report": 10080,
             "renew-certificates": 720, "clean-tmp": 180, "disk": 30}  # fmt: skip
    usual = {"backup-db": 41_000, "build-site": 96_000, "sync-feeds": 52_000, "jd-daily": 3_000,
             "weekly-report": 9_000, "renew-certificates": 1_500, "clean-tmp": 700, "disk": 300}  # fmt: skip
    neighbours()
    now = clock.now_ms()
    runs, attempts, ends = [], [], []
    for task in Task.objects.filter(slug__in=every):
        step = every[task.slug] * 60_000
        for back in range(1, 30 * 1440 * 60_000 // step):
            at = now - back * step + (back * 7919) % 600_000 - 300_000
            status = "succeeded"
            if back % 17 == 3:
                status = "failed"
            elif back % 41 == 5:
                status = "timed_out"
            elif back % 53 == 7:
                status = "cancelled"
            took = usual[task.slug] * (80 + back * 31 % 50) // 100
            run_id, begun, end = ids.uuid7(), clock.from_ms(at), clock.from_ms(at + took)
            if back <= 120:
                error = (
                    ("PROCESS_FAILED", "The process ended with exit code 1.")
                    if status == "failed"
                    else (None, None)
                )
                runs.append((run_id, "default", task.pk, "1", task.name, "cron", "manual", "runtime", "system",
                             "scheduler", status, 8, 8, 0, False, "", False, begun, begun, begun, end, *error))  # fmt: skip
                attempts.append((ids.uuid7(), run_id, 1, status, "local_process", 1, begun, begun, end,
                                 {"succeeded": 0, "failed": 1}.get(status)))  # fmt: skip
            ends.append(UncountedRun(run_id=run_id, project_id="default", task_id=task.pk, status=status,
                                     finished_at=end, duration_ms=took))  # fmt: skip
    columns = ["id", "project_id", "task_id", "task_revision", "task_name", "trigger_type", "execution_origin",
               "execution_owner", "triggered_by_type", "triggered_by_id", "status", "version", "event_sequence",
               "priority", "holds_place", "requires", "may_retry", "created_at", "queued_at", "started_at", "finished_at", "error_code",
               "error_summary"]  # fmt: skip
    bulk.insert_rows(Run, columns, runs)
    bulk.insert_rows(RunAttempt, ["id", "run_id", "attempt", "status", "executor_type", "callback_sequence",
                                  "created_at", "started_at", "finished_at", "exit_code"], attempts)  # fmt: skip
    UncountedRun.objects.bulk_create(ends)
    while fold_totals():
        pass


def write_bills() -> None:
    """Inside Django: what retention would have removed in a month, and a run whose details it folded."""
    from datetime import timedelta

    from apps.artifacts.models import RetentionReceipt, StoredTotal
    from apps.core import clock
    from apps.runs.models import Run
    from apps.runs.services import folding
    from apps.tasks.models import Task

    now = clock.now()
    for number, (rule, items, size) in enumerate(
        [("age", 96, 412_000_000), ("history", 731, 0), ("age", 94, 388_123_000), ("count", 12, 9_000_000),
         ("age", 101, 402_000_000), ("pressure", 310, 2_100_000_000), ("skips", 17, 0)]
    ):  # fmt: skip
        then = now - timedelta(days=30 + number)
        RetentionReceipt.objects.create(
            project_id="default", day=(now - timedelta(days=number // 2)).date(), rule=rule, items=items, files=items * 2,
            bytes=size, oldest_at=then - timedelta(hours=20), newest_at=then,
        )  # fmt: skip
    for number, task in enumerate(
        Task.objects.filter(slug__in=["backup-db", "build-site", "sync-feeds", "disk"])
    ):
        # The panel that runs meanwhile may have counted the task's first log already.
        StoredTotal.objects.update_or_create(
            task_id=task.pk,
            defaults={
                "project_id": "default",
                "logs": 900 - 210 * number,
                "bytes": 3_900_000_000 // (number * 5 + 1),
            },
        )
    run = Run.objects.filter(status="failed", finished_at__lt=now - timedelta(days=20)).order_by(
        "created_at"
    )[0]
    folding.fold([run.pk], now)
    print(run.pk)
