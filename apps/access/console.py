"""How commands of this app refuse: `code: sentence`, and an exit status by kind."""

from __future__ import annotations

import getpass
import os
import sys

from django.core.management.base import CommandError
from django.utils.translation import gettext as _

from apps.core import health
from apps.core.errors import DomainError, InvalidInput

INVALID = 2
REFUSED = 3


def refuse(error: DomainError) -> CommandError:
    """The command error of a named error: exit status 2 for bad input, 3 for a refusal, 1 for what may pass."""
    if error.status >= 500 and (wrong := health.unusable()) is not None:
        code, sentence = wrong
        return CommandError(f"{code}: {sentence}", returncode=1)
    sentences = [str(error.detail)]
    if isinstance(error, InvalidInput):
        sentences += [f"{name}: {sentence}" for name, found in error.fields.items() for sentence in found]
        status = INVALID
    else:
        status = REFUSED if error.status < 500 else 1
    return CommandError(f"{error.code}: {' '.join(sentences)}", returncode=status)


def read_password(variable: str | None) -> str:
    """The password out of a variable of the environment, else asked for twice; raises CommandError."""
    if variable is not None:
        value = os.environ.get(variable)
        if not value:
            raise CommandError(f"password_missing: {_('The variable is empty or not set.')}", returncode=2)
        return value
    if not sys.stdin.isatty():
        sentence = _("There is no terminal to ask on; use --password-env.")
        raise CommandError(f"password_missing: {sentence}", returncode=2)
    password = getpass.getpass(_("Password: "))
    if password != getpass.getpass(_("Password again: ")):
        raise CommandError(f"password_mismatch: {_('The passwords differ.')}", returncode=2)
    return password
