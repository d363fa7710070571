"""Clients that never finish what they begin."""

from __future__ import annotations

import socket

import pytest

from apps.dispatch.supervisor import web
from tests.e2e.person import House
from tests.e2e.up_kit import eventually

pytestmark = pytest.mark.one_engine


def test_requests_that_never_end_hold_no_thread_for_ever(house: House) -> None:
    begun = b"POST /panel/login/ HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
    clients = [socket.create_connection(("127.0.0.1", house.up.port)) for _ in range(4 * web.THREADS)]
    try:
        for number, client in enumerate(clients):
            # Half of them stop within their headers, half within their body.
            client.sendall(begun if number % 2 else begun + b"\r\nusername=")
        assert house.up.status("/livez") == 0
        eventually(lambda: house.up.status("/livez") == 200, "a thread for others", web.REQUEST_S + 10)
    finally:
        for client in clients:
            client.close()
