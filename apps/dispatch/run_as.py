"""The user that scripts run as (QINGLONG_RUN_AS): found, tried out, and let in as far as its scripts must come.

The panel keeps its own user, who must hold what `confine.may_switch` asks for; nothing of it is that user's but the
folders of tasks and one folder of each attempt. On the way there lie gates, which only that user's group may pass
and nobody may read; all else beside them is the panel's alone.
"""

from __future__ import annotations

import os
import pwd
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import django
from django.conf import settings
from django.utils.translation import gettext as _

from apps.dispatch.launcher import confine
from apps.dispatch.launcher.homes import GATE
from qinglong.environment import ConfigurationError

HOMES = "homes"
ATTEMPTS = "attempts"
_ANSWER_MAX = 8192


@dataclass(frozen=True)
class Identity:
    """An OS user as the node knows it; `groups` are all it belongs to."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]


def wanted() -> Identity | None:
    """The user of the setting; raises ConfigurationError where it is none that scripts could be given."""
    name = settings.RUN_AS
    if name is None:
        return None
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise ConfigurationError("run_as_unknown", _("The user of QINGLONG_RUN_AS does not exist.")) from None
    if found.pw_uid in (0, os.geteuid()):
        raise ConfigurationError(
            "run_as_no_other",
            _("QINGLONG_RUN_AS must name an ordinary user, and not the one that the panel has."),
        )
    groups = tuple(sorted(set(os.getgrouplist(name, found.pw_gid))))
    return Identity(name, found.pw_uid, found.pw_gid, groups)


def arrange() -> None:
    """Opens the way for the scripts' user, or closes it where there is none; raises ConfigurationError.

    For whoever starts a node's launcher. Scripts that run already keep their way as long as the user stays.
    """
    identity = _permitted()
    if identity is None:
        _close()
        return
    home, node = Path(settings.HOME), Path(settings.NODE_DIR)
    gates = [home, node, node / ATTEMPTS, home / HOMES]
    try:
        for gate in gates:
            gate.mkdir(mode=0o700, exist_ok=True)
        for path in [*home.iterdir(), *node.iterdir()]:
            _make_private(path, gates)
        for gate in gates:
            _open(gate, identity.gid)
    except OSError as error:
        raise ConfigurationError(
            "run_as_home_unusable",
            _("%(path)s cannot be shared with the user of QINGLONG_RUN_AS: %(reason)s.")
            % {"path": error.filename, "reason": error.strerror},
        ) from error
    _try_out(identity)


def check() -> None:
    """Whether scripts could have their user; changes nothing. Raises ConfigurationError."""
    identity = _permitted()
    if identity is not None and stat.S_IMODE(Path(settings.HOME).stat().st_mode) == GATE:
        _try_out(identity)


def _permitted() -> Identity | None:
    identity = wanted()
    if identity is not None and not confine.may_switch():
        raise ConfigurationError(
            "run_as_not_permitted",
            _("QINGLONG_RUN_AS needs a panel started as root, or one that holds the capabilities for it."),
        )
    return identity


def _try_out(identity: Identity) -> None:
    """Becomes that user in a child and looks what it can reach; raises ConfigurationError."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(write, "\0".join(_look_around(identity)).encode("utf-8", "surrogateescape"))
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        found, _nul, path = answer.read(_ANSWER_MAX).decode("utf-8", "replace").partition("\0")
    ended = os.waitpid(child, 0)[1]
    sentences = {
        "run_as_not_permitted": _("The panel cannot become the user of QINGLONG_RUN_AS."),
        "run_as_home_unreachable": _(
            "The user of QINGLONG_RUN_AS cannot pass %(path)s to reach its folders."
        ),
        "run_as_home_exposed": _(
            "The user of QINGLONG_RUN_AS can change %(path)s, on the way to the panel's files or programs."
        ),
        "run_as_can_read": _("The user of QINGLONG_RUN_AS can reach into %(path)s, which is the panel's."),
    }
    if ended or found:
        code = found or "run_as_not_permitted"
        raise ConfigurationError(code, sentences[code] % {"path": path})


def _look_around(identity: Identity) -> tuple[str, str]:
    """In the child: what is wrong, and where; nothing where all is well."""
    try:
        confine.become(identity.uid, identity.gid, identity.groups)
    except OSError:
        return "run_as_not_permitted", ""
    home = Path(settings.HOME)
    for folder in _way_to(home / HOMES):
        if not os.access(folder, os.X_OK):
            return "run_as_home_unreachable", str(folder)
    code = [Path(__file__), Path(django.__file__), Path(sys.executable)]
    for path in (folder for end in (home / HOMES, *code) for folder in _way_to(end)):
        try:
            found = path.stat()
        except PermissionError:  # what lies there is as good as locked
            continue
        sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_uid == identity.uid or (os.access(path, os.W_OK) and not sticky):
            return "run_as_home_exposed", str(path)
    node = Path(settings.NODE_DIR)
    private = [
        settings.KEYRING_PATH, settings.LOG_ROOT, settings.RUN_DIR, home / "db.sqlite3", home,
        home / "secret_key", node, node / ATTEMPTS, node / "receipts", node / "id",
    ]  # fmt: skip
    for path in private:
        if os.access(path, os.R_OK) or os.access(path, os.W_OK):
            return "run_as_can_read", str(path)
    return "", ""


def _open(gate: Path, gid: int) -> None:
    folder = os.open(gate, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(folder, -1, gid)
        os.fchmod(folder, GATE)
    finally:
        os.close(folder)


def _way_to(end: Path) -> list[Path]:
    real = Path(os.path.realpath(end))
    return [*reversed(real.parents), real]


def _make_private(path: Path, gates: list[Path]) -> None:
    """So far the folder around it kept others out."""
    mode = path.lstat().st_mode
    if path not in gates and not stat.S_ISLNK(mode) and mode & 0o077:
        path.chmod(stat.S_IMODE(mode) & ~0o077)


def _close() -> None:
    """Without another user: nobody passes, and folders of tasks are the panel's again, where it may take them."""
    home = Path(settings.HOME)
    try:
        if stat.S_IMODE(home.stat().st_mode) == GATE:
            home.chmod(0o700)
        if not confine.may_switch() or not (home / HOMES).is_dir():
            return
        for folder in (home / HOMES).glob("*/*"):
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid != os.geteuid():
                os.chown(folder, os.geteuid(), -1, follow_symlinks=False)
    except OSError as error:
        raise ConfigurationError(
            "home_not_writable", f"Nothing can be changed in {home}: {error.strerror}."
        ) from error
