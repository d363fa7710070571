"""Tags and filters of the pages about tasks: coming times, rules, phrases of the editor."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from urllib.parse import urlencode

from django import template
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from apps.core import clock
from apps.panel import words
from apps.triggers.errors import ScheduleInvalid
from apps.triggers.models import Kind, Trigger
from apps.triggers.schedules.preview import Preview

register = template.Library()


@register.filter
def soon(at: datetime | None) -> SafeString | str:
    """`today 03:00` with how long until then, `Tue 03:00`, or a date; exact on hover."""
    if at is None:
        return ""
    return format_html(
        '<time datetime="{}" title="{}">{} <span class="ql-quiet">{}</span></time>',
        clock.rfc3339(at), words.exact(at), day_and_time(at), words.ago(at),
    )  # fmt: skip


@register.filter
def when(at: datetime) -> SafeString:
    """`today 03:00`, `yesterday 03:00`, or a date; exact on hover."""
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', clock.rfc3339(at), words.exact(at), day_and_time(at)
    )


@register.filter
def span_to(first: datetime, last: datetime) -> str:
    """`today 01:00 – 05:00`."""
    one, other = (timezone.localtime(at) for at in (first, last))
    end = f"{other:%H:%M}" if one.date() == other.date() else day_and_time(last)
    return f"{day_and_time(first)} – {end}"


@register.filter
def local_input(at: datetime) -> str:
    """A time as `datetime-local` has it, in the panel's zone."""
    return timezone.localtime(at).strftime("%Y-%m-%dT%H:%M")


def day_and_time(at: datetime) -> str:
    """A time near now as people say it, in the panel's zone."""
    local, today = timezone.localtime(at), timezone.localdate(clock.now())
    days, text = (local.date() - today).days, local.strftime("%H:%M")
    if days == 0:
        return _("today %(time)s") % {"time": text}
    if days == -1:
        return _("yesterday %(time)s") % {"time": text}
    if days == 1:
        return _("tomorrow %(time)s") % {"time": text}
    if 1 < days < 7:
        return _("%(weekday)s %(time)s") % {"weekday": date_format(local, "D"), "time": text}
    return f"{local:%Y-%m-%d} {text}"


@register.filter
def rule(trigger: Trigger) -> SafeString | str:
    """The rule of a trigger in short: the text as it was typed, or the kind in words."""
    match trigger.kind:
        case Kind.CRON:
            return format_html("<code>{}</code> {}", trigger.schedule, trigger.timezone)
        case Kind.INTERVAL:
            return pgettext("interval", "every %(time)s") % {"time": interval(trigger.every_ms or 0)}
        case Kind.ONCE if trigger.at:
            return pgettext("once", "once, %(time)s") % {"time": day_and_time(trigger.at)}
    return str(trigger.get_kind_display())


def interval(every_ms: int) -> str:
    """`10 min`, `1 h 30 min`: as short as it can be said."""
    for unit_ms, text in ((86_400_000, _("%(n)d d")), (3_600_000, _("%(n)d h")), (60_000, _("%(n)d min"))):
        if every_ms % unit_ms == 0:
            return text % {"n": every_ms // unit_ms}
    return words.duration(timedelta(milliseconds=every_ms))


@register.filter
def split_commas(text: str) -> list[str]:
    """The parts of a list in a template."""
    return text.split(",")


@register.filter
def wall(at: datetime) -> SafeString:
    """A time by the clocks it carries, with its weekday; a narrow page leaves the year out."""
    text = f"{at:%m-%d %H:%M}" + (f":{at:%S}" if at.second else "")
    return format_html(
        '<time datetime="{}">{} <span class="ql-year">{}-</span>{}</time>',
        at.isoformat(), date_format(at, "D"), at.year, text,
    )  # fmt: skip


@register.filter
def same_zone(preview: Preview) -> bool:
    """Whether the rule's clocks and the viewer's show the same for all of its next starts."""
    return all(fire.local.utcoffset() == fire.viewer.utcoffset() for fire in preview.fires)


@register.filter
def viewer_zone(preview: Preview) -> str:
    """The viewer's zone."""
    return str(preview.fires[0].viewer.tzinfo) if preview.fires else ""


@register.simple_tag
def marked_rule(text: str, wrong: ScheduleInvalid) -> SafeString | str:
    """The rule as it was typed, with the place that is not understood marked."""
    offset, length = wrong.extra["offset"], wrong.extra["length"]
    if not text.strip() or not length:
        return ""
    return format_html(
        '<code class="ql-marked">{}<mark>{}</mark>{}</code>',
        text[:offset], text[offset : offset + length], text[offset + length :],
    )  # fmt: skip


@register.filter
def spoken(name: str, what: str) -> str:
    """What a row's control is called, with the task's name in it; much cheaper than a block of translation."""
    match what:
        case "run":
            text = _("Run %(name)s")
        case "ask":
            text = _("Ask for approval to run %(name)s")
        case "log":
            text = _("Latest log of %(name)s")
        case "more":
            text = _("More for %(name)s")
        case _other:
            text = _("Select %(name)s")
    return text % {"name": name}


@register.simple_tag
def label_address(label: str) -> str:
    """The list of the tasks with a label."""
    return "?" + urlencode({"search": f'label:"{label}"' if " " in label else f"label:{label}"})


@register.simple_tag
def editor_phrases() -> str:
    """What the code editor says, in the reader's language; for its `data-phrases`."""
    phrases = {
        "Find": pgettext("editor", "Find"),
        "Replace": pgettext("editor", "Replace"),
        "next": pgettext("editor", "next"),
        "previous": pgettext("editor", "previous"),
        "all": pgettext("editor", "all"),
        "match case": pgettext("editor", "match case"),
        "regexp": pgettext("editor", "regular expression"),
        "by word": pgettext("editor", "whole words"),
        "replace": pgettext("editor", "replace"),
        "replace all": pgettext("editor", "replace all"),
        "close": pgettext("editor", "close"),
        "current match": pgettext("editor", "current match"),
        "on line": pgettext("editor", "on line"),
        "Go to line": pgettext("editor", "Go to line"),
        "go": pgettext("editor", "go"),
        "Fold line": pgettext("editor", "Fold"),
        "Unfold line": pgettext("editor", "Unfold"),
        "folded code": pgettext("editor", "folded lines"),
        "unfold": pgettext("editor", "unfold"),
        "Control character": pgettext("editor", "Control character"),
        "Selection deleted": pgettext("editor", "Selection deleted"),
        "$ unchanged lines": pgettext("editor", "$ unchanged lines"),
        "replaced match on line $": pgettext("editor", "replaced on line $"),
        "replaced $ matches": pgettext("editor", "replaced $ times"),
    }
    return json.dumps(phrases, ensure_ascii=False)
