"""A connection from every rank of a process group to every other."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import struct
import time

import torch.distributed as dist

from bppsa.errors import WorkerError

_HELLO = struct.Struct("<I16s")  # rank and token of the one who connects
_LIMIT = 120.0  # seconds to wait for the others
_ELSEWHERE = "192.0.2.1"  # of no machine: kept for documents
# An idle connection to a host that has vanished without closing it is closed after 3 s + 3 * 1.5 s of silence.
_KEEP_ALIVE = (("SO_KEEPALIVE", 1), ("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 4))


def connect(group: dist.ProcessGroup) -> dict[int, socket.socket]:
    """A connection to each other rank of the group, by rank. Every rank calls it.

    Ports and tokens are exchanged over the group; whoever does not know the token of a rank is not let in. Raises
    WorkerError where a rank cannot be reached.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    machine = (socket.gethostname(), _boot())
    machines = _exchange(machine, group)
    host = "127.0.0.1" if set(machines) == {machine} else ""
    token = secrets.token_bytes(16)
    connections: dict[int, socket.socket] = {}
    with socket.create_server((host, 0), backlog=size) as server:
        places = _exchange((_addresses(), server.getsockname()[1], token), group)
        for peer in range(rank):
            addresses, port, its_token = places[peer]
            addresses = ["127.0.0.1"] if machines[peer] == machine else addresses
            connections[peer] = _reach(peer, addresses, port)
            connections[peer].sendall(_HELLO.pack(rank, its_token))
        _accept(server, token, set(range(rank + 1, size)), connections)
    for connection in connections.values():
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in _KEEP_ALIVE:
            level = socket.SOL_SOCKET if name.startswith("SO_") else socket.IPPROTO_TCP
            if hasattr(socket, name):
                connection.setsockopt(level, getattr(socket, name), value)
    return connections


def _accept(server: socket.socket, token: bytes, peers: set[int], connections: dict[int, socket.socket]) -> None:
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


def _reach(peer: int, addresses: list[str], port: int) -> socket.socket:
    refused = []
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout=5)
        except OSError as error:
            refused.append(f"{address}:{port} ({error})")
    raise WorkerError(
        f"worker {peer} cannot be reached at {', '.join(refused)}; let the machines reach each other by TCP"
    )
