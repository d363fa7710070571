"""Tags and filters that draw states, icons, times and links the same way on every page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django import template
from django.urls import get_script_prefix
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from apps.core import clock
from apps.panel import drawings, queries, words
from apps.runs.models import Run

register = template.Library()

# Where a list stands; it starts over when the filter changes.
_POSITION = ("cursor", "before", "oldest")


@register.simple_tag
def icon(name: str) -> SafeString:
    """A drawing from the sprite; decoration, the name stands beside it or in a label."""
    return format_html('<svg class="ql-i" aria-hidden="true"><use href="#i-{}"/></svg>', name)


def _state(css: str, status: str) -> SafeString:
    look = words.LOOKS.get(status, status)
    return format_html(
        '<span class="{}" data-state="{}"><svg class="ql-i" aria-hidden="true"><use href="#s-{}"/></svg>{}</span>',
        css, look, look, words.state(status),
    )  # fmt: skip


@register.simple_tag
def mark(status: str) -> SafeString:
    """The icon of a state alone; its word must stand beside it."""
    look = words.LOOKS.get(status, status)
    return format_html(
        '<span class="ql-mark" data-state="{}"><svg class="ql-i" aria-hidden="true"><use href="#s-{}"/></svg></span>',
        look,
        look,
    )


@register.simple_tag
def chip(status: str) -> SafeString:
    """A state as icon, word and colour on its ground."""
    return _state("ql-chip", status)


@register.simple_tag
def state(status: str) -> SafeString:
    """A state as icon and word in running text."""
    return _state("ql-state", status)


@register.simple_tag(takes_context=True)
def theme_attribute(context: template.Context) -> SafeString:
    """The chosen theme on the root element; nothing when the system decides."""
    request = context.get("request")
    chosen = request.COOKIES.get("ql_theme") if request else None
    return format_html(' data-theme="{}"', chosen) if chosen in ("light", "dark") else mark_safe("")


@register.simple_tag
def base_path() -> str:
    """The sub-path of the panel, where its cookies hold."""
    return get_script_prefix()


@register.simple_tag(takes_context=True)
def address(context: template.Context, **changes: Any) -> str:
    """This page's address with some parameters changed; an empty value drops one. Pages start over."""
    query = context["request"].GET.copy()
    for gone in _POSITION:
        query.pop(gone, None)
    for name, value in changes.items():
        query.pop(name, None)
        if value not in (None, ""):
            query[name] = value
    return f"?{query.urlencode()}"


@register.simple_tag(takes_context=True)
def toggled(context: template.Context, name: str, *values: str) -> str:
    """This page's address with `values` added to a parameter, or taken out when all of them are in it."""
    query = context["request"].GET.copy()
    for gone in _POSITION:
        query.pop(gone, None)
    now = query.getlist(name)
    if all(value in now for value in values):
        query.setlist(name, [value for value in now if value not in values])
    else:
        query.setlist(name, [*now, *(value for value in values if value not in now)])
    return f"?{query.urlencode()}"


@register.simple_tag
def keys(chord: str) -> SafeString:
    """`Mod K` as keys; `Mod` becomes ⌘ on a Mac by script."""
    pieces = chord.split(" ")
    inner = format_html_join(
        " ", "<kbd{}>{}</kbd>",
        ((mark_safe(" data-mod"), "Ctrl") if key == "Mod" else ("", key) for key in pieces),
    )  # fmt: skip
    return format_html('<span class="ql-chord">{}</span>', inner)


@register.simple_tag
def history(statuses: Sequence[str]) -> SafeString:
    """Runs as bars, oldest first: height and colour say how each ended; read aloud as counts."""
    return drawings.history(statuses)


@register.simple_tag
def pace(took_ms: int | None, usual_ms: int | None, status: str = "", *, wide: bool = False) -> SafeString:
    """A duration as a bar against the usual one (the tick); `wide` fills its place and ends at the usual."""
    return drawings.pace(took_ms, usual_ms, status, wide=wide)


@register.simple_tag
def pace_of(run: Run, usual_ms: int | None) -> SafeString:
    """The wide bar of a run that goes on."""
    since = clock.now() - run.started_at if run.started_at else timedelta()
    return drawings.pace(since // timedelta(milliseconds=1), usual_ms, run.status, wide=True)


@register.simple_tag
def columns(series: Sequence[drawings.Column]) -> SafeString:
    """A chart of stacked columns; each leads to its runs."""
    return drawings.columns(series)


@register.simple_tag
def column_ticks(series: Sequence[drawings.Column]) -> SafeString:
    """The labels beneath such a chart."""
    return drawings.ticks(series)


@register.simple_tag
def column_rows(series: Sequence[drawings.Column]) -> SafeString:
    """Such a chart as rows of a table; a template would take ten times as long for them."""
    return drawings.rows(series)


@register.simple_tag
def line(series: Sequence[drawings.Column]) -> SafeString:
    """The mean duration under such a chart."""
    return drawings.line([column.mean_ms for column in series])


@register.simple_tag
def longest_mean(series: Sequence[drawings.Column]) -> str:
    """The top of that line."""
    most = max((column.mean_ms for column in series if column.mean_ms is not None), default=None)
    return "" if most is None else words.milliseconds(most)


@register.simple_tag
def blocks(used: int, total: int) -> SafeString:
    """Slots as blocks; above 32 only the numbers beside it say how many."""
    shown = min(total, 32)
    inner = format_html_join(
        "", "<i{}></i>", ((mark_safe(' class="ql-on"') if at < used else "",) for at in range(shown))
    )
    return format_html('<span class="ql-blocks" aria-hidden="true">{}</span>', inner)


@register.filter
def short(run_id: UUID) -> str:
    """The end of a run's id, enough to tell it from its neighbours."""
    return queries.short(run_id)


@register.filter
def ago(at: datetime | None) -> SafeString | str:
    """`3 min ago`, with the exact time on hover and focus."""
    if at is None:
        return ""
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', clock.rfc3339(at), words.exact(at), words.ago(at)
    )


@register.filter
def exact(at: datetime | None) -> SafeString | str:
    """`2026-11-29 18:05:03`."""
    return (
        "" if at is None else format_html('<time datetime="{}">{}</time>', clock.rfc3339(at), words.exact(at))
    )


@register.filter
def clocktime(at: datetime) -> SafeString:
    """`18:05:03.120`, the date on hover."""
    text = words.exact(at)
    return format_html(
        '<time datetime="{}" title="{}">{}.{}</time>',
        clock.rfc3339(at), text, text[11:], f"{at.microsecond // 1000:03d}",
    )  # fmt: skip


@register.filter
def epoch(at: datetime | None) -> str:
    """Unix milliseconds, for scripts that count time."""
    return "" if at is None else str(clock.to_ms(at))


@register.simple_tag
def took(start: datetime | None, end: datetime | None, usual_ms: int | None = None) -> SafeString | str:
    """A duration; still counting (by script) while there is no end, a bar beside it with it."""
    if start is None:
        return ""
    if end is not None:
        return words.duration(end - start)
    return format_html(
        '<span class="ql-num" data-since="{}"{}>{}</span>',
        clock.to_ms(start),
        format_html(' data-usual="{}"', usual_ms) if usual_ms else "",
        words.duration(clock.now() - start),
    )


@register.simple_tag
def left(until: datetime) -> SafeString:
    """How long there is until then; counting down by script."""
    rest = words.duration(max(until - clock.now(), timedelta()))
    return format_html(
        '<time datetime="{}" title="{}" data-left="{}" data-words="{}">{}</time>',
        clock.rfc3339(until), words.exact(until), epoch(until), _("%(time)s left") % {"time": "*"},
        _("%(time)s left") % {"time": rest},
    )  # fmt: skip


@register.filter
def duration(milliseconds: int | None) -> str:
    """A span given in milliseconds."""
    return "" if milliseconds is None else words.duration(timedelta(milliseconds=milliseconds))


@register.filter
def size(count: int | None) -> str:
    """Bytes in words."""
    return "" if count is None else words.size(count)


@register.filter
def wait_reason(code: str) -> str:
    """Why a run waits."""
    return str(words.WAITS.get(code, code))


@register.filter
def trigger(kind: str) -> str:
    """What started a run."""
    return words.trigger(kind)


@register.filter
def role(name: str | None) -> str:
    """A role's word."""
    return str(words.ROLES.get(name or "", name or ""))


@register.filter
def skip_reason(code: str) -> str:
    """Why a start did not happen."""
    return str(words.SKIP_REASONS.get(code, code))
