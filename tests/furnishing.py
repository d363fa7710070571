"""A panel with things of every kind in it, for pictures and for tests that look at every page."""

# ruff: noqa: E501

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any

from tests.e2e.person import NAME, Api, manage, processes_with, set_up
from tests.e2e.up_kit import ROOT, Up, environment

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
    past = inside(up, "write_secrets", "write_past", "write_stops", "write_people", "write_bills", **extra)
    blocked, escaped, left, link, folded = past
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
    # Not before: at a full hour their runs would stand before those above.
    for slug, rule in SCHEDULES.items():
        api.ok("POST", f"/projects/default/tasks/{slug}/triggers", {"kind": "cron", "schedule": rule})
    agent = api.ok("POST", "/applications", {"type": "agent", "name": "release-bot", "description": "Ships"})[
        "id"
    ]
    asked = ask_for_approval(up, api, agent, **extra)
    stuck, voted, own = inside(up, "write_stuck", "write_rules", **extra)
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
        "approval-rules": f"{p}/approval-rules/", "approval-voted": f"/panel/approvals/{voted}/", "approval-own": f"/panel/approvals/{own}/",
        "task-marked": f"{p}/task/rotate-keys/", "task-ask": f"{p}/task/rotate-keys/run-with/", "task-settings": f"{p}/task/rotate-keys/settings/",
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


def inside(up: Up, *names: str, **extra: str) -> list[str]:
    """The words that functions of tests/past.py print, one after the other in the database of the running panel."""
    calls = "; ".join(f"past.{name}()" for name in names)
    code = f"import django; django.setup(); from tests import past; {calls}"
    env = environment(up.home, DJANGO_SETTINGS_MODULE="qinglong.settings", PYTHONPATH=str(ROOT), **extra)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE)
    return done.stdout.decode().split()
