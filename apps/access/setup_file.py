"""The set-up token that `up` keeps while nobody owns the instance: `run/setup` in the home folder (0600)."""

from __future__ import annotations

import hmac
import os
import re
import secrets
from pathlib import Path

from django.conf import settings

from apps.core import clock
from apps.projects.errors import BootstrapChallengeActive, BootstrapClaimRejected
from apps.projects.queries import DEFAULT_PROJECT, is_claimable, latest_challenge
from apps.projects.services import console_issuer, issue_owner_bootstrap
from apps.projects.services.bootstrap import token_digest

_TEXT = re.compile(r"([A-Za-z0-9_-]{22})\.([A-Za-z0-9_-]{43})")


def split(text: str) -> tuple[str, str]:
    """Challenge id and token of `<challenge_id>.<token>`; raises BootstrapClaimRejected for other text."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise BootstrapClaimRejected
    return found[1], found[2]


def ensure() -> str | None:
    """The text of the token that is good now, issued where there is none.

    None where an owner exists (the file is removed), and while a challenge is pending whose token only the
    console that issued it knows. Safe to call again and again; raises what `issue_owner_bootstrap` raises and
    OSError.
    """
    if not is_claimable():
        remove()
        return None
    try:
        return require()
    except BootstrapChallengeActive:
        remove()
        return None


def require() -> str:
    """The text of the file, issued and written where it is not good now; for who refuses rather than waits.

    Raises what `issue_owner_bootstrap` raises, and OSError.
    """
    known = read()
    if known is not None:
        return known
    issued = issue_owner_bootstrap(DEFAULT_PROJECT, console_issuer())
    text = f"{issued.challenge_id}.{issued.token}"
    _write(text)
    return text


def read() -> str | None:
    """The text of the file while its challenge can be claimed, else None."""
    try:
        text = _path().read_text(encoding="ascii").strip()
        challenge_id, token = split(text)
    except (OSError, UnicodeDecodeError, BootstrapClaimRejected):
        return None
    latest = latest_challenge()
    if latest is None or latest.consumed_at is not None or latest.expires_at <= clock.now():
        return None
    digest = token_digest(DEFAULT_PROJECT, challenge_id, token)
    return text if hmac.compare_digest(latest.token_digest, digest) else None


def remove() -> None:
    """Deletes the file; one that is not there is fine."""
    _path().unlink(missing_ok=True)


def _write(text: str) -> None:
    path = _path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    temporary = path.with_name(f".setup.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _path() -> Path:
    return Path(settings.RUN_DIR) / "setup"
