"""Where a rank says that others reach it."""

from __future__ import annotations

import socket

import pytest

from bppsa.runtime.transport.connections import _addresses


def test_the_stores_host_tells_more_than_its_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """As /etc/hosts often maps a machine's own name to 127.0.1.1."""

    class Probe(socket.socket):
        def connect(self, place: tuple[str, int]) -> None:
            self.own = "127.0.0.1" if place[0] == "head" else "10.0.0.5"

        def getsockname(self) -> tuple[str, int]:
            return self.own, 1

    monkeypatch.setenv("MASTER_ADDR", "head")
    monkeypatch.setattr(socket, "socket", Probe)
    monkeypatch.setattr(socket, "gethostbyname_ex", lambda name: (name, [], ["127.0.1.1", "10.0.0.5"]))
    assert _addresses() == ["10.0.0.5", "127.0.0.1", "127.0.1.1"]
    monkeypatch.delenv("MASTER_ADDR")
    assert _addresses() == ["10.0.0.5", "127.0.1.1"]
