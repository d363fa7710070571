"""What proxies say about a request, whom of them is believed, and the sub-path (lessons D21)."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from qinglong.environment import ConfigurationError, Environment, read
from qinglong.proxy import Proxied

PROXIES = ["10.0.0.1", "10.0.0.2", "192.168.0.0/16", "2001:db8::/32"]


def seen(prefix: str = "", trusted: Iterable[str] = PROXIES, **environ: str) -> dict[str, Any]:
    """What the application behind finds in its environment."""
    found: dict[str, Any] = {}

    def inner(environ: dict[str, Any], _start: Any) -> Iterable[bytes]:
        found.update(environ)
        return []

    asked = {"PATH_INFO": "/", "HTTP_HOST": "inside:5700", "wsgi.url_scheme": "http", **environ}
    Proxied(inner, prefix, [ip_network(one) for one in trusted])(asked, None)
    return found


@pytest.mark.parametrize(
    ("peer", "told", "client"),
    [
        ("10.0.0.1", "198.51.100.9, 203.0.113.5", "203.0.113.5"),
        ("10.0.0.1", "203.0.113.5, 10.0.0.2", "203.0.113.5"),
        ("10.0.0.1", "203.0.113.5, 192.168.7.7, 10.0.0.2", "203.0.113.5"),
        ("10.0.0.1", "192.168.7.7", "192.168.7.7"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "unknown", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.5, nonsense, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "2001:DB8:0::1, 2001:4860::0008", "2001:4860::8"),
        ("::ffff:10.0.0.1", "::ffff:203.0.113.5", "203.0.113.5"),
        ("203.0.113.7", "203.0.113.5", "203.0.113.7"),
        ("", "203.0.113.5", ""),
    ],
)
def test_the_client_is_whom_the_nearest_proxies_of_ours_saw(peer: str, told: str, client: str) -> None:
    assert seen(REMOTE_ADDR=peer, HTTP_X_FORWARDED_FOR=told)["REMOTE_ADDR"] == client


FORWARDED = {
    "HTTP_X_FORWARDED_FOR": "203.0.113.5",
    "HTTP_X_FORWARDED_PROTO": "https",
    "HTTP_X_FORWARDED_HOST": "evil.example, panel.example",
}


def test_scheme_and_host_come_from_a_proxy_of_ours() -> None:
    found = seen(REMOTE_ADDR="10.0.0.1", **FORWARDED)
    assert (found["wsgi.url_scheme"], found["HTTP_HOST"]) == ("https", "panel.example")
    assert not [name for name in found if "FORWARDED" in name]


@pytest.mark.parametrize("trusted", [PROXIES, []])
def test_nobody_else_is_believed_a_word(trusted: list[str]) -> None:
    found = seen(trusted=trusted, REMOTE_ADDR="127.0.0.1", **FORWARDED)
    assert (found["wsgi.url_scheme"], found["HTTP_HOST"]) == ("http", "inside:5700")
    assert found["REMOTE_ADDR"] == "127.0.0.1"
    assert not [name for name in found if "FORWARDED" in name]


def test_a_scheme_is_http_or_https() -> None:
    told = {"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_PROTO": "javascript"}
    assert seen(**told)["wsgi.url_scheme"] == "http"


@pytest.mark.parametrize(
    ("prefix", "path", "inside"),
    [
        ("/ql", "/ql/panel/", "/panel/"),
        ("/ql", "/panel/", "/panel/"),
        ("/ql", "/ql", ""),
        ("/ql", "/ql/", "/"),
        ("/ql", "/qlx/panel/", "/qlx/panel/"),
        ("/a/b", "/a/b/livez", "/livez"),
        ("/panel", "/panel/panel/login/", "/panel/login/"),
        ("", "/panel/", "/panel/"),
    ],
)
def test_the_sub_path_is_taken_off_where_it_stands(prefix: str, path: str, inside: str) -> None:
    assert seen(prefix, PATH_INFO=path)["PATH_INFO"] == inside


def settings(**values: str) -> Environment:
    return read({f"QINGLONG_{name}": value for name, value in values.items()}, Path("/nowhere"))


@pytest.mark.parametrize(
    ("told", "url", "host"),
    [
        ("https://panel.example/ql", "https://panel.example/ql", "panel.example"),
        ("https://panel.example/ql/", "https://panel.example/ql", "panel.example"),
        ("HTTPS://Panel.Example:443/ql", "https://panel.example/ql", "panel.example"),
        ("http://panel.example:443", "http://panel.example:443", "panel.example"),
        ("http://[2001:DB8::1]:80/a/b~c.d/", "http://[2001:db8::1]/a/b~c.d", "[2001:db8::1]"),
    ],
)
def test_an_address_as_a_browser_writes_it(told: str, url: str, host: str) -> None:
    found = settings(BASE_URL=told, ALLOWED_HOSTS="inside")
    assert (found.base_url, found.allowed_hosts) == (url, ["inside", host])


@pytest.mark.parametrize(
    "told",
    [
        "panel.example/ql", "ftp://panel.example", "https://", "https://panel.example:x/", "https://me@panel.example",
        "https://panel.example/ql?x=1", "https://panel.example/#x", "https://panel.example//ql", "https://a b/",
        "https://panel.example/a/../b", "https://panel.example/%71l", "https://panel.example/青龙", "https://[::1",
        "https://panel.example:99999/",
    ],
)  # fmt: skip
def test_an_address_that_cannot_work_stops_the_start(told: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        settings(BASE_URL=told)
    assert refusal.value.code == "base_url_invalid"


def test_proxies_are_addresses_or_networks() -> None:
    assert settings(TRUSTED_PROXIES="127.0.0.1, 10.1.2.3/8").trusted_proxies == [
        ip_network("127.0.0.1/32"),
        ip_network("10.0.0.0/8"),
    ]
    with pytest.raises(ConfigurationError) as refusal:
        settings(TRUSTED_PROXIES="nginx")
    assert refusal.value.code == "trusted_proxies_invalid"


@pytest.mark.parametrize(
    ("said", "days"),
    [
        ({}, 0),
        ({"BASE_URL": "http://panel.example"}, 0),
        ({"BASE_URL": "https://panel.example/ql"}, 30),
        ({"BASE_URL": "https://panel.example", "HSTS_DAYS": "0"}, 0),
        ({"BASE_URL": "https://panel.example", "HSTS_DAYS": "730"}, 730),
        ({"HSTS_DAYS": "1"}, 1),
    ],
)
def test_browsers_are_told_to_stay_with_https_where_the_base_url_has_it(
    said: dict[str, str], days: int
) -> None:
    assert settings(**said).hsts_days == days


@pytest.mark.parametrize("said", ["731", "-1", "a year", "1.5"])
def test_days_that_are_none_stop_the_start(said: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        settings(BASE_URL="https://panel.example", HSTS_DAYS=said)
    assert refusal.value.code == "number_invalid"
