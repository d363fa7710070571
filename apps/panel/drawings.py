"""Small pictures as inline SVG: attributes only, no style, so that the strict policy holds (panel.md §2, §8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.panel import words

BAR, GAP, HEIGHT = 5, 2, 20
# Height of a history bar in percent (panel.md §2); what is still on its way has none.
_HEIGHTS = {
    "running": 70, "waiting_approval": 70, "succeeded": 50, "failed": 100, "timed_out": 100, "lost": 100,
    "cancelled": 30,
}  # fmt: skip


def history(statuses: Sequence[str]) -> SafeString:
    """One bar per run, oldest first."""
    paths: dict[str, list[str]] = {}
    for at, status in enumerate(statuses):
        if status in _HEIGHTS:
            paths.setdefault(status, []).append(_bar(status, at * (BAR + GAP)))
    width = max(1, len(statuses) * (BAR + GAP) - GAP)
    return format_html(
        '<svg class="ql-history" role="img" aria-label="{}" width="{}" height="{}" viewBox="0 0 {} {}">{}</svg>',
        spoken(statuses), width, HEIGHT, width, HEIGHT,
        format_html_join("", '<path data-state="{}" d="{}"/>', ((s, "".join(d)) for s, d in paths.items())),
    )  # fmt: skip


def _bar(status: str, x: int) -> str:
    tall = HEIGHT * _HEIGHTS[status] // 100
    top = HEIGHT - tall
    match status:
        case "timed_out":
            return f"M{x} {top + 4}l{BAR} -4v{tall}h-{BAR}z"
        case "waiting_approval":
            return f"M{x + 2.5} {top}l2.5 {tall / 2}l-2.5 {tall / 2}l-2.5 -{tall / 2}z"
        case "lost":
            return f"M{x + 0.7} {top + 0.7}h{BAR - 1.4}v{tall - 1.4}h-{BAR - 1.4}z"
    return f"M{x} {top}h{BAR}v{tall}h-{BAR}z"


def spoken(statuses: Sequence[str]) -> str:
    """`12 runs: 10 Succeeded, 2 Failed`."""
    counts = Counter(statuses)
    runs = ngettext("%(n)d run", "%(n)d runs", len(statuses)) % {"n": len(statuses)}
    if not counts:
        return runs
    parts = _(", ").join(f"{count} {words.state(status)}" for status, count in counts.most_common())
    return _("%(runs)s: %(parts)s") % {"runs": runs, "parts": parts}


def pace(took_ms: int | None, usual_ms: int | None, status: str, *, wide: bool) -> SafeString:
    """A duration against the usual one; nothing where nothing is known to compare with."""
    if took_ms is None or not usual_ms:
        return SafeString("")
    # In a row the usual length is the tick in the middle; a wide bar is full when the usual time is over.
    share = took_ms / usual_ms * (1 if wide else 0.5)
    fill = round(100 * min(1.0, max(0.02, share)))
    label = _("%(took)s, usually %(usual)s") % {
        "took": words.milliseconds(took_ms),
        "usual": words.milliseconds(usual_ms),
    }
    tick = (
        SafeString("")
        if wide
        else SafeString('<rect class="ql-tick" x="49.5" y="-2" width="1.5" height="10"/>')
    )
    return format_html(
        '<svg class="ql-bar{}" role="img" aria-label="{}" viewBox="0 0 100 6" preserveAspectRatio="none">'
        '<rect width="100" height="6" rx="2"/>'
        '<rect class="ql-fill" data-state="{}" width="{}" height="6" rx="2"/>{}</svg>',
        " ql-long" if wide else "", label, status or "created", fill, tick,
    )  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One hour or day of a chart: how its runs ended, what stands beneath it, where it leads."""

    label: str
    title: str
    url: str
    good: int = 0
    bad: int = 0
    stopped: int = 0
    mean_ms: int | None = None
    tick: str = ""

    @property
    def runs(self) -> int:
        return self.good + self.bad + self.stopped


WIDTH, TALL = 640, 96


def columns(series: Sequence[Column]) -> SafeString:
    """Stacked columns, what ended badly at the foot where the eye compares it; each leads to its runs."""
    most = max((column.runs for column in series), default=0) or 1
    step = WIDTH / max(1, len(series))
    return format_html(
        '<svg class="ql-chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="group" aria-label="{}">{}</svg>',
        WIDTH, TALL, _("Runs by how they ended"),
        format_html_join("", "{}", ((_column(c, at * step, step, most),) for at, c in enumerate(series))),
    )  # fmt: skip


def _column(column: Column, x: float, step: float, most: int) -> SafeString:
    gap = min(4.0, step * 0.22)
    parts, y = [], float(TALL)
    for state, count in (("failed", column.bad), ("cancelled", column.stopped), ("succeeded", column.good)):
        if not count:
            continue
        tall = max(2.0, count / most * (TALL - 2))
        y -= tall
        parts.append((state, f"{x + gap / 2:.1f}", f"{max(0.0, y):.1f}", f"{step - gap:.1f}", f"{tall:.1f}"))
    drawn = format_html_join("", '<rect data-state="{}" x="{}" y="{}" width="{}" height="{}"/>', parts)
    ground = format_html(
        '<rect class="ql-ground" x="{}" y="0" width="{}" height="{}"/>', f"{x:.1f}", f"{step:.1f}", TALL
    )
    title = format_html("<title>{}</title>", column.title)
    if not column.runs:
        return format_html("<g>{}{}</g>", title, ground)
    return format_html(
        '<a href="{}" aria-label="{}">{}{}{}</a>', column.url, column.title, title, ground, drawn
    )


def ticks(series: Sequence[Column]) -> SafeString:
    """What stands beneath the columns; most have nothing."""
    return format_html_join("", "<span>{}</span>", ((column.tick,) for column in series))


def rows(series: Sequence[Column]) -> SafeString:
    """The same as rows of a table, without hours or days in which nothing ended."""
    cell = '<td class="ql-right ql-num">{}</td>'
    return format_html_join(
        "", '<tr><td><a href="{}">{}</a></td>' + cell * 4 + "</tr>",
        (
            (c.url, c.label, c.good, c.bad, c.stopped, "" if c.mean_ms is None else words.milliseconds(c.mean_ms))
            for c in series
            if c.runs
        ),
    )  # fmt: skip


def line(values: Sequence[int | None]) -> SafeString:
    """A duration over time as a line with gaps; decoration beside the table that says the same."""
    most = max((value for value in values if value is not None), default=0) or 1
    step = WIDTH / max(1, len(values))
    pieces: list[str] = []
    dots: list[tuple[str, str]] = []
    open_line = False
    for at, value in enumerate(values):
        if value is None:
            open_line = False
            continue
        x, y = f"{(at + 0.5) * step:.1f}", f"{38 - value / most * 34:.1f}"
        pieces.append(f"{'L' if open_line else 'M'}{x} {y}")
        if not open_line and (at + 1 == len(values) or values[at + 1] is None):
            dots.append((x, y))
        open_line = True
    return format_html(
        '<svg class="ql-chart ql-line" viewBox="0 0 {} 40" preserveAspectRatio="none" aria-hidden="true">'
        '<path vector-effect="non-scaling-stroke" d="{}"/>{}</svg>',
        WIDTH, "".join(pieces),
        format_html_join("", '<path vector-effect="non-scaling-stroke" d="M{} {}h0.1"/>', dots),
    )  # fmt: skip
