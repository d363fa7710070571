"""Pictures of every page, for a person to look at: width × theme × language, with real data.

    python -m tests.screenshots OUT [--only dashboard,run-live] [--fast] [--fold]

Starts an `up` of its own in a throw-away home, makes tasks, lets them run, and ends it again. Nothing is faked but
time: the totals of the last 30 days and a few hundred ended runs are written straight into the database, since
nobody wants to wait for them.
"""

# ruff: noqa: E501

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.person import NAME, PASSWORD, Api, manage, processes_with, set_up
from tests.e2e.up_kit import ROOT, Up, environment
from tests.moments import MOMENTS

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--force-color-profile=srgb"]
WIDTHS = {"desktop": (1440, 900), "phone": (390, 844)}
THEMES = ("light", "dark")
# What is seen before somebody has signed in.
OUTSIDE = ("sign-in", "invitation", "invitation-over")
LANGUAGES = {"en": "en", "zh": "zh-hans"}

# What a usual machine shows: plain fonts, not the wide fallback of a bare container; used where they are installed.
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
<include ignore_missing="yes">/etc/fonts/fonts.conf</include>
<match target="pattern"><test name="family" compare="eq"><string>sans-serif</string></test>
<edit name="family" mode="prepend_first" binding="strong"><string>Liberation Sans</string></edit></match>
<match target="pattern"><test name="family" compare="eq"><string>ui-monospace</string></test>
<edit name="family" mode="prepend_first" binding="strong"><string>DejaVu Sans Mono</string></edit></match>
</fontconfig>"""
BUILD = r"""
for i in $(seq 1 140); do printf '\033[2m%s\033[0m building module %03d of 140\n' "$(date +%T)" $i; done
printf '\033[33mwarning\033[0m: package "left-pad" is deprecated, see https://example.org/left-pad\n'
printf '\033[32m✓\033[0m 140 modules built\n'; for p in 10 40 70 100; do printf '\rUploading %3d %%' $p; sleep 0.1; done; echo
cd "$QINGLONG_ARTIFACTS"; mkdir -p report/2026; head -c 734003 /dev/urandom > site.zip; printf 'page,bytes\n/,5120\n' > report/2026/pages.csv
echo "140 modules" > "report/构建摘要.txt"; ln -s /srv/site site
echo 数据已上传 – 完成; exit 0
"""
DUMP = r"""
echo "dumping shop to /backup/shop-$(date +%F).dump"; sleep 0.4
printf 'pg_dump: \033[31merror\033[0m: connection to server at "db.internal" (10.0.3.7), port 5432 failed: Connection refused\n' >&2
printf '\tIs the server running on that host and accepting TCP/IP connections?\n' >&2; exit 1
"""
FEED = r"""
n=0; while [ $n -lt 4000 ]; do n=$((n+1)); printf '\033[36m%s\033[0m  feed %04d  \033[32m200\033[0m  %d ms\n' "$(date +%T)" $n $((n * 37 % 190 + 20)); sleep 0.25; done
"""
TASKS: list[dict[str, Any]] = [
    {"name": "Back up the database", "slug": "backup-db", "shell": DUMP, "labels": ["nightly", "database"], "pinned": True},
    {"name": "Build and upload the site", "slug": "build-site", "shell": BUILD, "labels": ["web"]},
    {"name": "Sync feeds", "slug": "sync-feeds", "shell": FEED, "labels": ["hourly"]},
    {"name": "京东签到与账单汇总", "slug": "jd-daily", "shell": "echo 签到成功; sleep 0.3; echo 今日获得 12 京豆", "labels": ["每日"]},
    {"name": "Send the weekly report to everybody in the house, with figures", "slug": "weekly-report", "shell": "echo sent 14 mails"},
    {"name": "Renew certificates", "slug": "renew-certificates", "shell": "sleep 30", "timeout_ms": 1500, "labels": ["tls"]},
    {"name": "Long import", "slug": "long-import", "shell": "echo importing; sleep 600", "concurrency": "queue"},
    {"name": "Clean temporary files", "slug": "clean-tmp", "script": {"language": "python", "source": "import os\nprint('removed', len(os.listdir('/tmp')), 'files')\n", "args": []}},
    {"name": "Check free disk space", "slug": "disk", "shell": "df -h / | tail -1"},
    {"name": "Old importer", "slug": "old-importer", "shell": "true", "enabled": False},
]  # fmt: skip


SCHEDULES = {
    "backup-db": "0 3 * * *", "build-site": "0 */6 * * *", "sync-feeds": "0 * * * *", "jd-daily": "30 8 * * *",
    "weekly-report": "0 9 * * 1", "clean-tmp": "15 */3 * * *", "disk": "*/30 * * * *",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="names of pages, with commas")
    parser.add_argument("--fast", action="store_true", help="light desktop and light phone in English only")
    parser.add_argument("--fold", action="store_true", help="only what is seen without scrolling")
    parser.add_argument("--stay", action="store_true", help="keep the panel up until Enter")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ql-pictures-"))
    up = Up(folder / "home", QINGLONG_TIME_ZONE="Asia/Shanghai")
    try:
        up.wait_ready()
        pages = furnish(up)
        wanted = {name for name in options.only.split(",") if name}
        take(up, options.out, pages, wanted, fast=options.fast, fold=options.fold)
        if options.stay:
            input(f"http://127.0.0.1:{up.port}/  {NAME} / {PASSWORD}  – Enter ends it ")
    finally:
        end(up)
        shutil.rmtree(folder, ignore_errors=True)


def end(up: Up) -> None:
    """Ends the panel, and the scripts that would outlive it."""
    up.stop()
    for pid in processes_with(str(up.home)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def furnish(up: Up, **extra: str) -> dict[str, str]:
    """Tasks, runs in every state that can be made for real, a past; the pages by name."""
    api = Api(up.port, set_up(up.home, **extra))
    tasks = {}
    for fields in TASKS:
        enabled = fields.get("enabled", True)
        tasks[fields["slug"]] = task = api.make(**{k: v for k, v in fields.items() if k != "enabled"})
        if not enabled:
            api.ok("PATCH", f"/projects/default/tasks/{task['slug']}", {"enabled": False}, If_Match='"1"')
    for slug, rule in SCHEDULES.items():
        api.ok("POST", f"/projects/default/tasks/{slug}/triggers", {"kind": "cron", "schedule": rule})
    inside(up, "write_secrets", **extra)
    inside(up, "write_past", **extra)
    blocked, escaped = inside(up, "write_stops", **extra).split()
    left, link = inside(up, "write_people", **extra).split()
    folded = inside(up, "write_bills", **extra).strip()
    failed = api.start(tasks["backup-db"])
    ended = [failed] + [
        api.start(tasks[slug]) for slug in ("build-site", "jd-daily", "weekly-report", "clean-tmp", "disk")
    ]
    slow = api.start(tasks["renew-certificates"])
    for run in (*ended, slow):
        api.until(run)
    following = api.start(tasks["sync-feeds"])
    running = api.start(tasks["long-import"])
    waiting = api.start(tasks["long-import"])
    api.start(tasks["long-import"])
    needing = api.start(
        api.make(name="Train the model", slug="train", shell="true", requires={"labels": {"gpu": "h100"}})
    )
    printed = api.start(
        api.make(
            name="Check the database", slug="check-database", secrets={"PGPASSWORD": "pg-password"},
            shell='set -x; psql "postgres://panel:$PGPASSWORD@db/panel" -c "select 1"; echo "*** done ***"',
        )
    )  # fmt: skip
    stopped = api.start(tasks["sync-feeds"], input={"part": 2})
    api.ok("POST", f"/runs/{stopped}/stop", {"note": "wrong feed list"})
    api.until(printed)
    api.until(following, ["running"])
    api.until(running, ["running"])
    time.sleep(12)
    agent = api.ok("POST", "/applications", {"type": "agent", "name": "release-bot", "description": "Ships"})[
        "id"
    ]
    asked = ask_for_approval(up, api, agent, **extra)
    stuck = inside(up, "write_stuck", **extra).strip()
    me = api.ok("GET", "/me")["subject"]["id"]
    p = "/panel/p/default"
    return {
        "dashboard": "/panel/", "tasks": f"{p}/tasks/", "task": f"{p}/task/backup-db/", "task-new": f"{p}/tasks/new/",
        "task-edit": f"{p}/task/backup-db/edit/", "runs": f"{p}/runs/", "runs-none": f"{p}/runs/?status=lost",
        "run-failed": f"/panel/runs/{failed}/", "run-live": f"/panel/runs/{following}/",
        "run-succeeded": f"/panel/runs/{ended[1]}/", "run-queued": f"/panel/runs/{waiting}/",
        "run-printed": f"/panel/runs/{printed}/", "run-needing": f"/panel/runs/{needing}/", "run-timed-out": f"/panel/runs/{slow}/", "run-stop": f"/panel/runs/{running}/stop/",
        "skips": f"{p}/skips/", "audit": f"{p}/audit/", "project": f"{p}/", "projects": "/panel/projects/",
        "retention": f"{p}/retention/", "task-retention": f"{p}/task/build-site/retention/", "run-folded": f"/panel/runs/{folded}/",
        "people": "/panel/people/", "person": f"/panel/people/{me}/", "security": "/panel/security/",
        "left": f"/panel/people/{left}/", "role-history": f"{p}/?history=1", "invitations": "/panel/people/invitations/",
        "project-invitations": f"{p}/invitations/", "invitation": f"/invitation/#{link}", "invitation-over": "/invitation/#over",
        "applications": "/panel/applications/", "application": f"/panel/applications/{agent}/",
        "approvals": f"{p}/approvals/", "approvals-all": f"{p}/approvals/?tab=all", "approvals-recovery": f"{p}/approvals/?tab=recovery",
        **{f"approval-{name}": f"/panel/approvals/{id}/" for name, id in asked.items()},
        "approval-stuck": f"/panel/approvals/{stuck}/", "approval-recover": f"/panel/approvals/{stuck}/recover/",
        "secrets": f"{p}/secrets/", "secret": f"{p}/secrets/pg-password/",
        "secret-disable": f"{p}/secrets/pg-password/disable/", "secret-disabled": f"{p}/secrets/old-token/",
        "workers": "/panel/workers/", "tokens": "/panel/tokens/", "go": "/panel/go/?q=s",
        "sign-in-methods": "/panel/sign-in-methods/", "sign-in-doctor": "/panel/sign-in-doctor/",
        "keys": "/panel/keys/", "not-found": "/panel/runs/00000000-0000-7000-8000-000000000000/",
        "run-blocked": f"/panel/runs/{blocked}/", "run-resolve": f"/panel/runs/{blocked}/stop/resolve/",
        "run-escaped": f"/panel/runs/{escaped}/", "sign-in": "/panel/login/",
    }  # fmt: skip


def ask_for_approval(up: Up, api: Api, agent: str, **extra: str) -> dict[str, str]:
    """Requests in every state, by name; the script changed between the one that was approved and the next."""
    scopes = ("*", "policy.manage", "token.manage", "approval.decide")
    made = manage(
        up.home, "create_token", "--username", NAME, "--name", "decide", "--scopes", *scopes, **extra
    )
    decider = Api(up.port, made.split()[-1])
    binding = {
        "subject_type": "agent", "subject_id": agent, "role": "operator", "expected_version": 0, "mutation_id": "bot",
    }  # fmt: skip
    decider.ok("POST", "/projects/default/role-bindings", binding)
    token = decider.ok("POST", f"/applications/{agent}/tokens", {"name": "bot", "scopes": ["*"]})["token"]
    bot, asked = Api(up.port, token), {}

    def ask(name: str, task: str, **more: Any) -> str:
        asked[name] = id = f"{task}-{len(asked) + 1}"
        bot.ok("POST", "/projects/default/approvals", {"id": id, "task": task, **more})
        return id

    def decide(id: str, decision: str, reason: str) -> None:
        body = {
            "decision": decision,
            "reason_code": reason,
            "expected_version": 1,
            "decision_id": f"{id}.{decision}",
        }
        decider.ok("POST", f"/approvals/{id}/decision", body)

    old = 'set -e\ncd shop\ngit fetch --tags\ngit checkout "$TAG"\nmake deploy\n'
    fields = {"shell": old, "env": {"TAG": "main"}, "secrets": {"DEPLOY_KEY": "tls-key"}}
    api.make(name="Deploy the shop", slug="deploy", **fields)
    decide(ask("done", "deploy", input={"tag": "v2.3"}), "approved", "tested")
    decide(ask("rejected", "deploy", input={"tag": "v2.4-rc1"}, risk="high"), "rejected", "not_now")
    ask("void", "deploy", input={"tag": "v2.3.1"})
    new = {"shell": old.replace("make deploy", "make test\nmake deploy TARGET=prod")}
    api.ok("PATCH", "/projects/default/tasks/deploy", new, If_Match='"1"')
    ask("changed", "deploy", input={"tag": "v2.4"}, args=["--now"], risk="high", expires_in_ms=840_000)
    ask("first", "disk", risk="low", expires_in_ms=7_200_000)
    return asked


def inside(up: Up, name: str, **extra: str) -> str:
    """What a function of this module prints that works in the database of the running panel."""
    code = f"import django; django.setup(); from tests import screenshots; screenshots.{name}()"
    env = environment(up.home, DJANGO_SETTINGS_MODULE="qinglong.settings", PYTHONPATH=str(ROOT), **extra)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()


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


def take(up: Up, out: Path, pages: dict[str, str], wanted: set[str], *, fast: bool, fold: bool) -> None:
    """One PNG per page or moment, width, theme and language; `wanted` names some of them, empty means all."""
    from playwright.sync_api import sync_playwright

    out.mkdir(parents=True, exist_ok=True)
    base = f"http://127.0.0.1:{up.port}"
    fonts = up.home.parent / "fonts.conf"
    fonts.write_text(FONTS, encoding="utf-8")
    plain = any(Path("/usr/share/fonts").rglob("LiberationSans*"))
    env = {**os.environ, **({"FONTCONFIG_FILE": str(fonts)} if plain else {})}
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, env=env)
        for width, theme, language in _looks(fast):
            size = WIDTHS[width]
            context = browser.new_context(
                viewport={"width": size[0], "height": size[1]}, color_scheme=theme, reduced_motion="reduce"
            )
            context.add_cookies([{"name": "ql_language", "value": LANGUAGES[language], "url": base}])
            page = context.new_page()
            for name in (name for name in OUTSIDE if not wanted or name in wanted):
                page.goto(base + pages[name])
                page.wait_for_timeout(500)
                page.screenshot(path=str(out / f"{name}-{width}-{theme}-{language}.png"), full_page=True)
            page.goto(f"{base}/panel/login/")
            page.fill("#username", NAME)
            page.fill("#password", PASSWORD)
            page.click("main form button")
            page.wait_for_url("**/panel/")
            for name, address in pages.items():
                if name in OUTSIDE or (wanted and name not in wanted):
                    continue
                page.goto(base + address)
                page.wait_for_timeout(500 if name.startswith("run-") else 150)
                page.screenshot(
                    path=str(out / f"{name}-{width}-{theme}-{language}.png"),
                    full_page=not fold and name != "run-live",
                )
            for name, (address, act) in MOMENTS.items():
                if wanted and name not in wanted:
                    continue
                page.goto(base + pages[address])
                page.wait_for_timeout(300)
                if act(page) is not False:
                    page.wait_for_timeout(300)
                    page.screenshot(path=str(out / f"{name}-{width}-{theme}-{language}.png"))
            context.close()
        browser.close()


def _looks(fast: bool) -> Iterator[tuple[str, str, str]]:
    for width in WIDTHS:
        for theme in THEMES:
            for language in LANGUAGES:
                if not fast or (theme == "light" and language == "en"):
                    yield width, theme, language


if __name__ == "__main__":
    os.nice(5)
    main()
