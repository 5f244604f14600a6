"""Memory that ranks share: blocks are used again once they are given back, and never before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bppsa.errors import WorkerError
from bppsa.runtime.worker.group import GroupTransport
from bppsa.runtime.worker.shared import Incoming, Memory, Outgoing
from tests.runtime.worker.ranks import message, run

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no anonymous files")


def numbers(first: int, count: int) -> Tensor:
    return ((torch.arange(count) + first) % 251).to(torch.uint8)


def test_a_block_is_used_again_when_it_is_given_back() -> None:
    outgoing, incoming = Outgoing(), Incoming(os.getpid())
    first = outgoing.put(numbers(1, 1000))
    second = outgoing.put(numbers(2, 1000))
    assert first.file != second.file, "the first is not given back"
    assert torch.equal(incoming.view(first), numbers(1, 1000))
    assert torch.equal(incoming.view(second), numbers(2, 1000))

    incoming.give_back(first)
    third = outgoing.put(numbers(3, 900))
    assert third.file == first.file
    assert torch.equal(incoming.view(third), numbers(3, 900))
    assert torch.equal(incoming.view(second), numbers(2, 1000)), "not given back"
    incoming.give_back(third)
    assert outgoing.put(numbers(4, 100)).file not in (first.file, second.file), "a small one takes no large block"
    outgoing.close()


def test_no_file_is_left_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    outgoing, incoming = Outgoing(), Incoming(os.getpid())
    for count in (10, 100, 1000):
        incoming.give_back(outgoing.put(numbers(0, count)))
    outgoing.close()
    del outgoing, incoming
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def blocks(transport: GroupTransport) -> tuple[list[int], int, int]:
    """Of two ranks of one machine: who shares, and how many blocks it takes to send the same message in each step. In
    two steps it is sent and not received."""
    memory: Memory = transport._memory
    for step in range(6):
        transport.begin(step)
        if transport.rank == 0:
            transport.send(message(0, 0, 1), torch.full((50_000,), float(step)))
            if step in (1, 3):
                transport.share("sent")
                with pytest.raises(WorkerError, match="on purpose"):
                    transport.finish()
                continue
        elif step in (1, 3):
            transport.expect(message(0, 0, 1))
            transport.share("there")
            transport.fail("a job", ValueError("on purpose"))
            continue
        else:
            assert bool((transport.receive(message(0, 0, 1)) == step).all())
        transport.finish()
    return sorted(memory.readers), len(memory.incoming), len(memory.outgoing._blocks)


def test_ranks_of_one_machine_share() -> None:
    (readers, peers, sender), (others, _, receiver) = run(2, blocks)
    assert (readers, others, peers) == ([1], [0], 1)
    assert receiver == 1, "its offer"
    assert sender <= 3, (
        "its offer, a block, and one where the first was not given back yet; those of failed steps come back"
    )


def without_memory(transport: GroupTransport, *args: Any) -> list[bool]:
    """As ranks of two machines."""
    transport._memory = Memory(Outgoing(), frozenset(), {})
    values = [torch.randn(50_000, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    same = []
    for step in range(2):
        transport.begin(step)
        if transport.rank == 0:
            for n, value in enumerate(values):
                transport.send(message(n, 0, 1), [value, n, value.double()])
        else:
            transport.expect(*(message(n, 0, 1) for n in range(3)))
            for n, value in reversed(list(enumerate(values))):
                got, number, wide = transport.receive(message(n, 0, 1))
                same.append(torch.equal(got, value) and torch.equal(wide, value.double()) and number == n)
        transport.finish()
    return same


def test_ranks_that_share_nothing_use_the_group() -> None:
    assert run(2, without_memory) == [[], [True] * 6]
