"""Large tensors between ranks of one machine: through memory that both map, in the place of the loopback network.

A block is an anonymous file of the sender's, which the receiver opens under /proc: a process that is killed leaves
nothing behind. Its first byte says whether it is taken: the sender sets it, and the receiver clears it once it has what
was in the block. So blocks are used again without a word between the two.
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

_HEAD = 64  # bytes before the data, which keep it aligned
_FREE, _TAKEN = 0, 1


class Place(NamedTuple):
    """Of one tensor: the sender's file, the size of that, and the bytes in it."""

    file: int
    size: int
    bytes: int


class _Block:
    def __init__(self, file: int, size: int) -> None:
        self.file, self.size = file, size
        memory = torch.frombuffer(mmap.mmap(file, _HEAD + size), dtype=torch.uint8)
        self.state, self.data = memory[:1], memory[_HEAD:]

    @property
    def is_free(self) -> bool:
        return self.state.item() == _FREE


class Outgoing:
    """Blocks that this rank fills, for all its peers. They are kept for as long as it lives."""

    def __init__(self) -> None:
        self._name = f"bppsa-{secrets.token_hex(16)}"
        self._blocks: list[_Block] = []
        self._lock = threading.Lock()

    def offer(self) -> tuple[int, int, str] | None:
        """What a peer has to know: this process, a file of it and its name. None where there are no such files."""
        return (os.getpid(), self._new(1).file, self._name) if hasattr(os, "memfd_create") else None

    def put(self, tensor: Tensor) -> Place:
        """tensor: uint8 [N], N > 0."""
        with self._lock:
            fits = (block for block in self._blocks if tensor.numel() <= block.size <= 2 * tensor.numel())
            block = next((block for block in fits if block.is_free), None) or self._new(tensor.numel())
            block.state.fill_(_TAKEN)
        block.data[: tensor.numel()].copy_(tensor)
        return Place(block.file, block.size, tensor.numel())

    def close(self) -> None:
        """What a peer has mapped stays until it lets go of it."""
        for block in self._blocks:
            os.close(block.file)
        self._blocks.clear()

    def _new(self, size: int) -> _Block:
        file = os.memfd_create(self._name)
        os.ftruncate(file, _HEAD + size)
        self._blocks.append(_Block(file, size))
        return self._blocks[-1]


class Incoming:
    """Blocks that one peer fills."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._blocks: dict[int, _Block] = {}

    def view(self, place: Place) -> Tensor:
        """What is there, uint8 [N], until it is given back."""
        return self._block(place).data[: place.bytes]

    def give_back(self, place: Place) -> None:
        self._block(place).state.fill_(_FREE)

    def _block(self, place: Place) -> _Block:
        if place.file not in self._blocks:
            file = os.open(_path(self._process, place.file), os.O_RDWR)
            try:
                self._blocks[place.file] = _Block(file, place.size)
            finally:
                os.close(file)
        return self._blocks[place.file]


class Memory(NamedTuple):
    """readers: the peers that can open `outgoing`; incoming: by peer, where this rank can open the peer's."""

    outgoing: Outgoing
    readers: frozenset[int]
    incoming: dict[int, Incoming]

    def put(self, peer: int, tensors: Sequence[Tensor]) -> tuple[Place, ...]:
        """Where the peer finds them; nowhere where it shares no memory."""
        return tuple(map(self.outgoing.put, tensors)) if peer in self.readers else ()

    def take(self, peer: int, places: Sequence[Place], into: Sequence[Tensor]) -> None:
        """Copies what the peer has put there, and gives the blocks back."""
        for place, tensor in zip(places, into, strict=True):
            tensor.copy_(self.incoming[peer].view(place))
            self.incoming[peer].give_back(place)


def meet(group: dist.ProcessGroup, wire: torch.device) -> Memory:
    """Finds out who shares memory with whom. Every rank calls it. Ranks on other machines do not, nor those in
    containers that hide their processes from each other, nor any where the system has no anonymous files."""
    rank, outgoing = dist.get_rank(group), Outgoing()
    offers = _exchange(outgoing.offer() if wire.type == "cpu" else None, group)
    opened = [peer for peer, offer in enumerate(offers) if peer != rank and offer is not None and _is_there(*offer)]
    readers = frozenset(peer for peer, can in enumerate(_exchange(opened, group)) if rank in can)
    return Memory(outgoing, readers, {peer: Incoming(offers[peer][0]) for peer in opened})


def _exchange(mine: object, group: dist.ProcessGroup) -> list:
    everyone: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    return everyone


def _path(process: int, file: int) -> str:
    return f"/proc/{process}/fd/{file}"


def _is_there(process: int, file: int, name: str) -> bool:
    """Whether this rank may open it, and it is that file and not another process's of the same number."""
    try:
        return os.readlink(_path(process, file)).startswith(f"/memfd:{name}") and os.access(
            _path(process, file), os.R_OK | os.W_OK
        )
    except OSError:
        return False
