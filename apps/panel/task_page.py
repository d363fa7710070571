"""What the head of a task's page says, and its history by day."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from apps.approvals import queries as approvals
from apps.approvals.models import ApprovalRequest
from apps.core import clock
from apps.panel import schedules, task_list, words
from apps.panel.drawings import Column
from apps.panel.schedules import Outlook
from apps.panel.task_list import Bit
from apps.runs.models import Run, RunHourTotal
from apps.tasks.models import Task
from apps.triggers.queries import words as rule_words

DAYS = 30
_BAD = {"failed", "timed_out", "lost"}


@dataclass(frozen=True)
class Head:
    """A task as its page begins: what it does, in sentences, and what it does now."""

    outlook: Outlook
    current: Run | None
    last: Bit | None
    sentence: str
    asked: list[ApprovalRequest]


def head(task: Task) -> Head:
    """The head of a task's page, with requests to start it that wait; four queries."""
    outlook = schedules.outlooks([task.pk]).get(task.pk, schedules.NONE)
    current = task_list.holders([task.pk]).get(task.pk)
    bits = task_list.histories([task.pk]).get(task.pk, [])
    asked = approvals.to_start(task.project_id, task.pk)
    last = next((bit for bit in reversed(bits) if bit.finished_at or bit.status == "lost"), None)
    return Head(outlook, current, last, in_a_row(_sentences(task, outlook, last)), asked)


def _sentences(task: Task, outlook: Outlook, last: Bit | None) -> list[str]:
    if task.archived_at:
        return [_("Archived: it does not run any more; its history stays.")]
    if not task.enabled:
        return [_("Disabled: it does not run until it is enabled."), *_past(last)]
    return [_rule(outlook), *_past(last), *_coming(outlook)]


def _rule(outlook: Outlook) -> str:
    live = [trigger for trigger in outlook.triggers if trigger.enabled]
    if not live:
        return _("Runs by hand and through the API.")
    first = live[0]
    rule = rule_words(first)
    if first.kind == "cron":
        rule = _("%(rule)s (%(zone)s)") % {"rule": rule, "zone": first.timezone}
    if len(live) == 1:
        return _("%(rule)s.") % {"rule": rule}
    more = ngettext("%(n)d more trigger", "%(n)d more triggers", len(live) - 1) % {"n": len(live) - 1}
    return _("%(rule)s, and %(more)s.") % {"rule": rule, "more": more}


def _past(last: Bit | None) -> list[str]:
    if last is None or last.at is None:
        return [_("It has not run yet.")]
    told = {"state": words.state(last.status), "ago": words.ago(last.at)}
    return [_("Last run: %(state)s, %(ago)s.") % told]


def _coming(outlook: Outlook) -> list[str]:
    return [_("Next run %(when)s.") % {"when": words.ago(outlook.next_at)}] if outlook.next_at else []


def in_a_row(sentences: Sequence[str]) -> str:
    """Sentences one after the other, with what the language puts between them."""
    both = pgettext("two sentences", "%(first)s %(then)s")
    return functools.reduce(lambda first, then: both % {"first": first, "then": then}, sentences)


def days(task: Task, address: str) -> list[Column]:
    """The last DAYS days, from the totals per hour, by days of the panel's zone; one query."""
    today = timezone.localdate(clock.now())
    since = clock.now() - timedelta(days=DAYS)
    found: dict[date, Counter[str]] = defaultdict(Counter)
    rows = RunHourTotal.objects.filter(task_id=task.pk, hour__gte=since)
    for hour, status, runs in rows.values_list("hour", "status", "runs"):
        found[timezone.localdate(hour)][status] += runs
    return [_day(today - timedelta(days=back), found, address) for back in range(DAYS - 1, -1, -1)]


def _day(day: date, found: dict[date, Counter[str]], address: str) -> Column:
    counts = found.get(day, Counter())
    bad = sum(counts[status] for status in _BAD)
    label = f"{day:%m-%d}"
    told = _("%(day)s: %(good)d succeeded, %(bad)d ended badly, %(stopped)d stopped") % {
        "day": label, "good": counts["succeeded"], "bad": bad, "stopped": counts["cancelled"],
    }  # fmt: skip
    return Column(label, told, address, counts["succeeded"], bad, counts["cancelled"])


def runs_address(project_slug: str, task: Task) -> str:
    """The list of the task's runs."""
    return f"{reverse('panel:runs', args=[project_slug])}?task={task.pk}"
