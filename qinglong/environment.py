"""Settings that come from outside, read once, typed and checked (api.md, "Settings").

An unknown `QINGLONG_*` name stops the start: a typo must not become a silent default.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from zoneinfo import ZoneInfo

from qinglong import retention
from qinglong.retention import Retention

KNOWN = retention.NAMES | frozenset(
    {
        "QINGLONG_HOME", "QINGLONG_BASE_URL", "QINGLONG_ALLOWED_HOSTS", "QINGLONG_TRUSTED_PROXIES",
        "QINGLONG_TIME_ZONE", "QINGLONG_LANGUAGE", "QINGLONG_PATH", "QINGLONG_NODE_LABELS", "QINGLONG_SLOTS",
        "QINGLONG_METRICS_TOKEN", "QINGLONG_ALERT_RUN_WAIT_S", "QINGLONG_ALERT_LATE_S", "QINGLONG_ALERT_SWEEP_S",
        "QINGLONG_ALERT_DISK_DAYS", "QINGLONG_ALERT_DISK_HOURS",
        "QINGLONG_RUN_AS", "QINGLONG_PROFILE", "QINGLONG_LOGS", "QINGLONG_KEYRING", "QINGLONG_DEBUG",
        "QINGLONG_DISK_RESERVE_MB", "QINGLONG_HSTS_DAYS",
        "QINGLONG_SECRET_FILES", "QINGLONG_SECRET_VARIABLES",
    }
)  # fmt: skip
LANGUAGES = ("en", "zh-hans")


class ConfigurationError(Exception):
    """The configuration cannot work; `code` is stable, the sentence says what to do."""

    def __init__(self, code: str, sentence: str) -> None:
        self.code = code
        super().__init__(sentence)


@dataclass(frozen=True)
class Alerts:
    """From when on something is called a problem (core.health)."""

    run_wait_s: int
    late_s: int
    sweep_s: int
    disk_days: int
    disk_hours: int = 24


@dataclass(frozen=True)
class Environment:
    home: Path
    logs: Path
    keyring: Path
    secret_files: Path | None
    secret_variables: str | None
    database: dict[str, Any]
    redis_url: str | None
    base_url: str
    allowed_hosts: list[str]
    trusted_proxies: list[IPv4Network | IPv6Network]
    hsts_days: int
    time_zone: str
    language: str
    path: str
    node_labels: dict[str, str]
    slots: int
    profile: str
    run_as: str | None
    metrics_token: str | None
    alerts: Alerts
    retention: Retention
    disk_reserve_bytes: int
    debug: bool


def read(values: Mapping[str, str], default_home: Path) -> Environment:
    """Checks and types the environment; raises ConfigurationError."""
    for name in sorted(values):
        if name.startswith("QINGLONG_") and name not in KNOWN:
            raise ConfigurationError(
                "unknown_setting", f"{name} is not a setting of QingLong; check the spelling."
            )
    home = Path(values.get("QINGLONG_HOME") or default_home).expanduser().absolute()
    base_url = _base_url(values.get("QINGLONG_BASE_URL") or "")
    return Environment(
        home=home,
        logs=_absolute(values, "QINGLONG_LOGS", home / "logs"),
        keyring=_absolute(values, "QINGLONG_KEYRING", home / "keyring.json"),
        secret_files=_absolute(values, "QINGLONG_SECRET_FILES", home)
        if values.get("QINGLONG_SECRET_FILES")
        else None,
        secret_variables=_prefix(values),
        database=_database(values.get("DATABASE_URL") or "", home),
        redis_url=values.get("REDIS_URL") or None,
        base_url=base_url,
        allowed_hosts=_hosts(values, base_url),
        trusted_proxies=_networks(values.get("QINGLONG_TRUSTED_PROXIES", "")),
        hsts_days=_number(values, "QINGLONG_HSTS_DAYS", 30 if base_url.startswith("https:") else 0, 0, 730),
        time_zone=_time_zone(values),
        language=_language(values),
        path=values.get("QINGLONG_PATH") or "/usr/local/bin:/usr/bin:/bin",
        node_labels=_labels(values),
        slots=_number(values, "QINGLONG_SLOTS", 8, 1, 1024),
        # Its name is checked with the rules of retention.
        profile=values.get("QINGLONG_PROFILE") or "standalone",
        run_as=values.get("QINGLONG_RUN_AS") or None,
        metrics_token=_metrics_token(values),
        alerts=Alerts(
            run_wait_s=_number(values, "QINGLONG_ALERT_RUN_WAIT_S", 600, 10, 86_400),
            late_s=_number(values, "QINGLONG_ALERT_LATE_S", 120, 10, 86_400),
            sweep_s=_number(values, "QINGLONG_ALERT_SWEEP_S", 180, 60, 86_400),
            disk_days=_number(values, "QINGLONG_ALERT_DISK_DAYS", 7, 1, 365),
            disk_hours=_number(values, "QINGLONG_ALERT_DISK_HOURS", 24, 1, 720),
        ),
        retention=_retention(values),
        disk_reserve_bytes=_disk_reserve(values),
        debug=values.get("QINGLONG_DEBUG") == "1",
    )


# A folder that the group of QINGLONG_RUN_AS may pass, and nobody else (apps.dispatch.run_as).
GATE = 0o710


def private_folder(path: Path, code: str = "home_not_writable") -> Path:
    """Makes a folder 0700, parents included, but leaves a gate as it is; raises ConfigurationError with `code`."""
    try:
        for folder in [*reversed(path.parents), path]:
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
        if stat.S_IMODE(path.stat().st_mode) != GATE:
            path.chmod(0o700)
    except OSError as error:
        raise ConfigurationError(
            code, f"The folder {path} cannot be made or is not yours to write: {error.strerror}."
        ) from error
    return path


def only_asks(arguments: Sequence[str]) -> bool:
    """Whether a command line wants to be told something only, so that nothing may be written."""
    command = arguments[1] if len(arguments) > 1 else "help"
    return command in ("help", "version") or not {"-h", "--help", "--version"}.isdisjoint(arguments[1:])


def secret_key(home: Path) -> str:
    """The key that signs sessions and cursors; made once, 0600, in the home folder."""
    path = private_folder(home) / "secret_key"
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigurationError("home_not_readable", f"{path} cannot be read: {error.strerror}.") from error
    temporary = path.with_name(f".secret_key.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(48))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigurationError(
            "home_not_writable", f"Nothing can be written to {home}: {error.strerror}."
        ) from error


def _database(url: str, home: Path) -> dict[str, Any]:
    if not url:
        return {
            "ENGINE": "qinglong.sqlite",
            "NAME": str(home / "db.sqlite3"),
            # Opening the file and setting it up costs more than most requests' queries.
            "CONN_MAX_AGE": None,
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL;PRAGMA synchronous=NORMAL;PRAGMA foreign_keys=ON;"
                "PRAGMA journal_size_limit=67108864;PRAGMA cache_size=-8000;",
            },
        }
    broken = ConfigurationError(
        "database_url_invalid", "DATABASE_URL must be postgresql://user:password@host:port/name."
    )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise broken from error
    if parts.scheme not in ("postgresql", "postgres") or not parts.path.strip("/"):
        raise broken
    options = dict(parse_qsl(parts.query))
    host = options.pop("host", None) or unquote(parts.hostname or "")
    return {
        "ENGINE": "qinglong.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": str(port or ""),
        "CONN_MAX_AGE": 600,
        "CONN_HEALTH_CHECKS": True,
        # Prepared statements are worth a fifth of the dispatch loop's time.
        "OPTIONS": {"server_side_binding": True, "prepare_threshold": 2, **options},
    }


def _absolute(values: Mapping[str, str], name: str, default: Path) -> Path:
    path = Path(values.get(name) or default)
    if not path.is_absolute() or "\0" in str(path):
        raise ConfigurationError("path_not_absolute", f"{name} must be an absolute path.")
    return path


def _prefix(values: Mapping[str, str]) -> str | None:
    prefix = values.get("QINGLONG_SECRET_VARIABLES") or None
    # Not QINGLONG_: an unknown name there stops the start.
    if prefix is not None and (
        not re.fullmatch(r"[A-Z][A-Z0-9_]{0,63}_", prefix) or prefix.startswith("QINGLONG_")
    ):
        raise ConfigurationError(
            "secret_variables_invalid",
            "QINGLONG_SECRET_VARIABLES is how names of variables begin: capital letters, digits and _, the last "
            "one _, and not QINGLONG_.",
        )
    return prefix


def _base_url(text: str) -> str:
    """As a browser writes it: lower-case host, no port that goes without saying, no slash at the end; or empty."""
    if not text:
        return ""
    broken = ConfigurationError(
        "base_url_invalid",
        "QINGLONG_BASE_URL must be http(s)://host[:port][/path], the path of letters, digits and - . _ ~ only.",
    )
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise broken from error
    path = parts.path.rstrip("/")
    if (
        parts.scheme not in ("http", "https")
        or not re.fullmatch(r"[a-z0-9.-]+|[0-9a-f:.]*:[0-9a-f:.]*", host)
        or not re.fullmatch(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)*", path)
        or parts.username is not None
        or parts.query
        or parts.fragment
    ):
        raise broken
    shown = f"[{host}]" if ":" in host else host
    if port not in (None, {"http": 80, "https": 443}[parts.scheme]):
        shown += f":{port}"
    return f"{parts.scheme}://{shown}{path}"


def _networks(text: str) -> list[IPv4Network | IPv6Network]:
    try:
        return [ip_network(item, strict=False) for item in _list(text)]
    except ValueError as error:
        raise ConfigurationError(
            "trusted_proxies_invalid",
            "QINGLONG_TRUSTED_PROXIES is a list of addresses or networks: 127.0.0.1,10.0.0.0/8.",
        ) from error


def _hosts(values: Mapping[str, str], base_url: str) -> list[str]:
    hosts = _list(values.get("QINGLONG_ALLOWED_HOSTS", "")) or ["localhost", "127.0.0.1", "[::1]"]
    own = urlsplit(base_url).hostname if base_url else None
    own = f"[{own}]" if own and ":" in own else own
    return [*hosts, own] if own and own not in hosts else hosts


def _time_zone(values: Mapping[str, str]) -> str:
    name = values.get("QINGLONG_TIME_ZONE") or values.get("TZ", "").lstrip(":") or _system_time_zone()
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise ConfigurationError("time_zone_unknown", f"The time zone {name!r} is not known here.") from error
    return name


def _system_time_zone() -> str:
    try:
        target = str(Path("/etc/localtime").readlink())
    except OSError:
        return "UTC"
    return target.partition("zoneinfo/")[2] or "UTC"


def _language(values: Mapping[str, str]) -> str:
    language = (values.get("QINGLONG_LANGUAGE") or "en").lower()
    language = {"zh": "zh-hans", "zh-cn": "zh-hans"}.get(language, language)
    if language not in LANGUAGES:
        raise ConfigurationError("language_unknown", "QINGLONG_LANGUAGE is en or zh-hans.")
    return language


def _metrics_token(values: Mapping[str, str]) -> str | None:
    token = values.get("QINGLONG_METRICS_TOKEN") or None
    if token is not None and not re.fullmatch(r"[!-~]{16,256}", token):
        raise ConfigurationError(
            "metrics_token_invalid",
            "QINGLONG_METRICS_TOKEN is 16 to 256 letters, digits and signs without spaces.",
        )
    return token


def _retention(values: Mapping[str, str]) -> Retention:
    try:
        return retention.read(values)
    except ValueError as error:
        raise ConfigurationError("retention_invalid", str(error)) from error


def _disk_reserve(values: Mapping[str, str]) -> int:
    """Bytes that a start leaves free beside its own log (secrets-and-artifacts.md §5.2)."""
    usual = 32 if values.get("QINGLONG_PROFILE") == "edge" else 256
    return _number(values, "QINGLONG_DISK_RESERVE_MB", usual, 0, 1_048_576) * 1_048_576


def _labels(values: Mapping[str, str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for item in _list(values.get("QINGLONG_NODE_LABELS", "")):
        name, _, value = item.partition("=")
        if not re.fullmatch(r"[a-z0-9][a-z0-9._/-]{0,127}", name) or len(value) > 256 or len(labels) >= 32:
            raise ConfigurationError("node_labels_invalid", "QINGLONG_NODE_LABELS is name=value,name=value.")
        labels[name] = value
    return labels


def _number(values: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = values.get(name) or str(default)
    if not re.fullmatch(r"[0-9]{1,7}", text) or not least <= int(text) <= most:
        raise ConfigurationError("number_invalid", f"{name} is a whole number from {least} to {most}.")
    return int(text)


def _list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
