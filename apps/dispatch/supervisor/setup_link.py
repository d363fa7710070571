"""The one-time set-up link: printed while nobody owns the instance, renewed as it expires, gone once claimed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.utils.translation import gettext as _

from apps.access import setup_file

EVERY_S = 30.0


def show(address: str) -> None:
    """Prints the link that is good now, where there is one. Needs the database."""
    _print(address, setup_file.ensure())


def keeper(address: str) -> Callable[[datetime], None]:
    """For the scheduler: prints each link that was not printed before."""
    shown = setup_file.read()

    def keep(_now: datetime) -> None:
        nonlocal shown
        if (text := setup_file.ensure()) != shown:
            shown = text
            _print(address, text)

    return keep


def _print(address: str, text: str | None) -> None:
    if text is not None:
        print(_("Set it up, once: %(link)s") % {"link": f"{address}/setup?token={text}"}, flush=True)
