"""Time zones: their clock changes, and which moment a wall clock's time means."""

from __future__ import annotations

import contextlib
import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from zoneinfo import ZoneInfo

from django.conf import settings
from django.utils.translation import gettext as _

from apps.core.errors import InvalidInput

# Debian cron follows clock changes shorter than this, and takes longer ones for a clock that was set.
LONGEST_CHANGE = timedelta(hours=3)
_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)
_ZERO = timedelta(0)
# What lies beside the zones: names of this machine only, and the same zones once more, `right/` with leap seconds.
_ASIDE = re.compile(r"(posix|right)/.*|localtime|posixrules|Factory")


@dataclass(frozen=True)
class Change:
    """The clocks of a zone are set at the moment `at`, by `to - before`; positive leaves a gap on the wall."""

    at: datetime
    before: timedelta
    to: timedelta

    @property
    def gap(self) -> bool:
        """Whether times are left out (the clocks go forward); else times come twice."""
        return self.to > self.before

    @property
    def walls(self) -> tuple[datetime, datetime]:
        """The times of the wall clock that are left out or come twice: first, and first behind (naive)."""
        ends = (wall(self.at, self.before), wall(self.at, self.to))
        return min(ends), max(ends)


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def zone(name: object) -> ZoneInfo:
    """The IANA zone of that exact name; raises InvalidInput."""
    try:
        if not isinstance(name, str) or not name or name != name.strip() or name.startswith(("/", ".")):
            raise ValueError
        if _ASIDE.fullmatch(name) and name != settings.TIME_ZONE:
            raise ValueError
        return _zone(name)
    except (ValueError, KeyError, OSError) as error:
        raise InvalidInput.field("timezone", _("A name like Europe/Berlin or Asia/Shanghai.")) from error


@lru_cache(maxsize=1)
def version() -> str:
    """The name of the time zone data that this process uses, for example 2026a."""
    for folder in zoneinfo.TZPATH:
        source = Path(folder) / "tzdata.zi"
        with contextlib.suppress(OSError), source.open(encoding="ascii", errors="replace") as lines:
            return lines.readline().removeprefix("# version").strip()[:32]
    try:
        return metadata.version("tzdata")
    except metadata.PackageNotFoundError:
        return "unknown"


def offset(at: datetime, tz: ZoneInfo) -> timedelta:
    """How far the zone's wall clock is ahead of UTC at a moment."""
    return at.astimezone(tz).utcoffset() or _ZERO


def wall(at: datetime, ahead: timedelta) -> datetime:
    """What a clock that is `ahead` of UTC shows at a moment; naive."""
    return at.replace(tzinfo=None) + ahead


def moment(shown: datetime, ahead: timedelta) -> datetime:
    """The moment at which a clock that is `ahead` of UTC shows this."""
    return (shown - ahead).replace(tzinfo=UTC)


def change_between(tz: ZoneInfo, since: datetime, until: datetime) -> Change | None:
    """The change in (since, until] where the offset differs at both ends; for spans with at most one."""
    before, to = offset(since, tz), offset(until, tz)
    if before == to:
        return None
    low, high = since, until
    while high - low > _SECOND:
        middle = low + (high - low) // 2
        if offset(middle, tz) == before:
            low = middle
        else:
            high = middle
    return Change(high.replace(microsecond=0), before, to)


def changes(tz: ZoneInfo, since: datetime, until: datetime) -> Iterator[Change]:
    """All changes in (since, until], in order."""
    at = since
    while at < until:
        step = min(at + _DAY, until)
        if found := change_between(tz, at, step):
            yield found
        at = step


def resolve(shown: datetime, tz: ZoneInfo) -> tuple[datetime, Change | None, bool]:
    """The moment of a wall clock's time, the change that is in its way, and whether the time comes twice.

    A time that comes twice is its first moment. One that is left out is the moment of the change itself.
    """
    first = shown.replace(tzinfo=tz)
    second = shown.replace(tzinfo=tz, fold=1)
    before, to = first.utcoffset() or _ZERO, second.utcoffset() or _ZERO
    if before == to:
        return moment(shown, before), None, False
    if before > to:
        return moment(shown, before), None, True
    found = change_between(tz, moment(shown, to), moment(shown, before))
    return (found.at, found, False) if found else (moment(shown, before), None, False)
