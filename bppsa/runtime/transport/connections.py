"""Connections from every rank of a process group to every other: within a machine without its network, which halves
what a message costs."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterable, Set
from typing import NamedTuple

import torch.distributed as dist

from bppsa.errors import WorkerError

_HELLO = struct.Struct("<I16s")  # rank and token of the one who connects
_LIMIT = 120.0  # seconds to wait for the others
_ELSEWHERE = "192.0.2.1"  # of no machine: kept for documents
# An idle connection to a host that has vanished without closing it is closed after 3 s + 3 * 1.5 s of silence.
_KEEP_ALIVE = (("SO_KEEPALIVE", 1), ("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 4))
_ROOM = 1 << 22  # bytes that a connection within the machine takes before its reader has read any
_NEWS = 1 << 14  # bytes of words that wake their reader, who reads the last ones when a connection closes

_Address = bytes | tuple[str, int]  # the name of a socket, or a host and a port


class Connections(NamedTuple):
    """The connections to other ranks, by rank. words: to the neighbours in the ring of ranks, for what is seldom
    read."""

    lines: dict[int, socket.socket]
    words: dict[int, socket.socket]

    def near(self, rank: int) -> bool:
        """Whether the line to it is within the machine."""
        return _is_named(self.lines[rank])


def connect(group: dist.ProcessGroup) -> Connections:
    """Every rank calls it.

    Places and tokens are exchanged over the group; whoever does not know the token of a rank is not let in. Raises
    WorkerError where a rank cannot be reached.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    machine = (socket.gethostname(), _boot())
    machines = _exchange(machine, group)
    here = {peer for peer in range(size) if machines[peer] == machine}
    near = here - {rank} if _has_names() else set[int]()
    far = set(range(size)) - near - {rank}
    lines = {**_joined(group, near, here, named=_has_names()), **_joined(group, far, here)}
    words = _joined(group, {(rank + 1) % size, (rank - 1) % size} - {rank}, here)
    for connection in words.values():
        with contextlib.suppress(OSError):  # of a system that has no such option: each word wakes its reader
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _NEWS)
    return Connections(lines, words)


def _has_names() -> bool:
    """Whether sockets of a machine can have names that are no files."""
    return hasattr(os, "uname") and os.uname().sysname == "Linux"


def _joined(group: dist.ProcessGroup, peers: Set[int], here: Set[int], named: bool = False) -> dict[int, socket.socket]:
    """A connection to each of these peers. here: the ranks of this machine. named: without its network."""
    rank, size, token = dist.get_rank(group), dist.get_world_size(group), secrets.token_bytes(16)
    connections: dict[int, socket.socket] = {}
    with _named_server(size) if named else _server(size, "127.0.0.1" if len(here) == size else "") as server:
        own = server.getsockname() if named else (_addresses(), server.getsockname()[1])
        places = _exchange((own, token), group)
        for peer in sorted(peer for peer in peers if peer < rank):
            place, its_token = places[peer]
            connections[peer] = _reach(peer, [place] if named else _ways(place, peer in here))
            connections[peer].sendall(_HELLO.pack(rank, its_token))
        _accept(server, token, {peer for peer in peers if peer > rank}, connections)
    for connection in connections.values():
        _set(connection)
    return connections


def _server(size: int, host: str) -> socket.socket:
    return socket.create_server((host, 0), backlog=size)


def _named_server(size: int) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind("")  # the system finds a name
    server.listen(size)
    return server


def _ways(place: tuple[list[str], int], here: bool) -> list[_Address]:
    hosts, port = place
    return [(host, port) for host in (["127.0.0.1"] if here else hosts)]


def _set(connection: socket.socket) -> None:
    connection.setblocking(False)
    if _is_named(connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEP_ALIVE:
        level = socket.SOL_SOCKET if name.startswith("SO_") else socket.IPPROTO_TCP
        if hasattr(socket, name):
            connection.setsockopt(level, getattr(socket, name), value)


def _is_named(connection: socket.socket) -> bool:
    return connection.family == getattr(socket, "AF_UNIX", None)


def _accept(server: socket.socket, token: bytes, peers: Set[int], connections: dict[int, socket.socket]) -> None:
    end = time.monotonic() + _LIMIT
    while missing := sorted(peers - set(connections)):
        server.settimeout(max(0.01, end - time.monotonic()))
        try:
            connection, _ = server.accept()
        except TimeoutError:
            raise WorkerError(
                f"no connection from worker {', '.join(map(str, missing))} within {_LIMIT:.0f} s; see whether it still "
                "runs, and whether its machine reaches this one by TCP"
            ) from None
        connection.settimeout(10)
        with contextlib.suppress(OSError, struct.error):
            peer, its_token = _HELLO.unpack(connection.recv(_HELLO.size, socket.MSG_WAITALL))
            if hmac.compare_digest(its_token, token) and peer in missing:
                connections[peer] = connection


def _exchange(mine: object, group: dist.ProcessGroup) -> list:
    everyone: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    return everyone


def _boot() -> str:
    """Tells machines of one name apart."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read()
    except OSError:
        return ""


def _addresses() -> list[str]:
    """Where other machines may reach this one: the interface that leads to the store's host first, and what only this
    machine reaches last. On the store's host its own name may be no more than that, so another way out is asked too."""
    found = []
    for host in (os.environ.get("MASTER_ADDR", _ELSEWHERE), _ELSEWHERE):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # nothing is sent
            found.append(probe.getsockname()[0])
    with contextlib.suppress(OSError):
        found += socket.gethostbyname_ex(socket.gethostname())[2]
    return sorted(dict.fromkeys(found), key=lambda address: address.startswith("127."))


def _reach(peer: int, addresses: Iterable[_Address]) -> socket.socket:
    refused = []
    for address in addresses:
        try:
            return _dialled(address)
        except OSError as error:
            refused.append(f"{_shown(address)} ({error})")
    raise WorkerError(
        f"worker {peer} cannot be reached at {', '.join(refused)}; let the machines reach each other by TCP"
    )


def _dialled(address: _Address) -> socket.socket:
    if isinstance(address, tuple):
        return socket.create_connection(address, timeout=5)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    return connection


def _shown(address: _Address) -> str:
    return ":".join(map(str, address)) if isinstance(address, tuple) else repr(address)
