"""Words for what became of the files that a script left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from apps.artifacts.collected import BYTES_MAX, FILES_MAX

WORDS: dict[str, Promise] = {
    "symlink": _("links, whose target stays where it is"),
    "special": _("pipes, sockets or devices"),
    "hard_link": _("files with a second name elsewhere"),
    "foreign": _("of another user, or on another disk"),
    "too_deep": _("too many folders deep"),
    "too_many": format_lazy(_("over the limit of {n} files"), n=FILES_MAX),
    "too_large": format_lazy(_("over the limit of {n} MB for all of them"), n=BYTES_MAX // 1_048_576),
    "name_too_long": _("with a name that is too long"),
    "changed": _("still being written when the run ended"),
    "no_space": _("without room on the disk"),
    "unreadable": _("not readable"),
    "unexamined": _("and more that was not looked at"),
}

LOG_WORDS: dict[str, Promise] = {
    "cut": _("the log reached its limit"),
    "incomplete": _("the log has gaps: the disk was full"),
}


def left_out(payload: Mapping[str, Any]) -> dict[str, int]:
    """How much of what a script left was not kept, by code."""
    told = payload.get("files")
    given = told.get("left_out") if isinstance(told, dict) else None
    return {code: int(given[code]) for code in WORDS if code in given} if isinstance(given, dict) else {}


def notes(payload: Mapping[str, Any]) -> list[str]:
    """For the timeline: what is wrong with the log, `3 files kept`, `2 not kept`."""
    log = payload.get("log")
    said = [str(words) for fault, words in LOG_WORDS.items() if isinstance(log, dict) and log.get(fault)]
    told = payload.get("files")
    if not isinstance(told, dict):
        return said
    kept, not_kept = int(told.get("kept", 0)), sum(left_out(payload).values())
    if kept:
        said.append(ngettext("%(n)d file kept", "%(n)d files kept", kept) % {"n": kept})
    if not_kept:
        said.append(ngettext("%(n)d file not kept", "%(n)d files not kept", not_kept) % {"n": not_kept})
    return said
