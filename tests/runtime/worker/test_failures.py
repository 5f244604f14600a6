"""A failure on one rank is an error on all, in time; the next step works after an exception, none after a death."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref

import pytest
import torch

from bppsa.errors import WorkerError
from bppsa.runtime.transport.group import GroupTransport
from bppsa.runtime.transport.layout import INLINE
from tests.runtime.worker.ranks import message, run

LARGE = INLINE // 4 + 1  # elements: more than what travels with its announcement
LINGERS = 20.0  # seconds that a child lives where nobody ends it


def chain(transport: GroupTransport, step: int) -> None:
    """A large tensor from rank to rank; the first and the last rank share no edge."""
    transport.begin(step)
    value = torch.full((LARGE,), 1.0)
    if transport.rank > 0:
        value = transport.receive(message(transport.rank, transport.rank - 1, transport.rank)) + 1
    if transport.rank < transport.size - 1:
        transport.send(message(transport.rank + 1, transport.rank, transport.rank + 1), value)
    transport.finish()


def everything_left_over(transport: GroupTransport, step: int) -> None:
    """Some messages sent and not received, some received and not sent, some both; rank 1 fails."""
    transport.begin(step)
    for other in range(transport.size):
        if other != transport.rank:
            transport.expect(message(10 * other + transport.rank, other, transport.rank))
            transport.send(message(10 * transport.rank + other, transport.rank, other), torch.ones(LARGE))
    if transport.rank == 1:
        try:
            raise ZeroDivisionError(f"of step {step}")
        except ZeroDivisionError as error:
            transport.fail("2F0", error)
    transport.receive(message(99, (transport.rank + 1) % transport.size, transport.rank))


def failing_now_and_then(transport: GroupTransport) -> list[tuple[str, float]]:
    texts = []
    for step in range(1, 9, 2):
        chain(transport, step)
        start = time.monotonic()
        with pytest.raises(WorkerError) as caught:
            everything_left_over(transport, step + 1)
        texts.append((str(caught.value), time.monotonic() - start))
    return texts


def test_an_exception_is_raised_on_all_ranks_and_the_next_step_works() -> None:
    for texts in run(4, failing_now_and_then):
        for step, (text, seconds) in zip(range(1, 9, 2), texts, strict=True):
            assert f"worker 1 failed in 2F0: ZeroDivisionError: of step {step + 1}" in text
            assert "in everything_left_over" in text
            assert seconds < 10


def kill(transport: GroupTransport, where: str) -> None:
    if where == "sending":
        for other in range(transport.size):
            if other != transport.rank:
                transport.send(message(other, transport.rank, other), torch.ones(50 * LARGE))
    transport.doing("2F0")
    os.kill(os.getpid(), signal.SIGKILL)


def waiting(transport: GroupTransport, victim: int, where: str) -> None:
    if where == "sending":
        transport.receive(message(transport.rank, victim, transport.rank))
    elif where == "receiving":
        others = [rank for rank in range(transport.size) if rank not in (victim, transport.rank)]
        transport.receive(message(100, others[0], transport.rank))
    transport.finish()


def killed(transport: GroupTransport, victim: int, where: str) -> tuple[str, str, float]:
    chain(transport, 1)
    transport.begin(2)
    if transport.rank == victim:
        kill(transport, where)
    start = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        waiting(transport, victim, where)
    spent = time.monotonic() - start
    with pytest.raises(WorkerError) as later:
        transport.begin(3)
    return str(caught.value), str(later.value), spent


@pytest.mark.parametrize("where", ["receiving", "finishing"])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_process_is_noticed_by_all(victim: int, where: str) -> None:
    results = run(4, killed, victim, where, dies=[victim])
    assert results.pop(victim) is None
    for first, second, seconds in results:
        assert f"worker {victim} died in 2F0" in first
        assert "must be rebuilt" in first
        assert f"worker {victim} died" in second
        assert seconds < 10


def die_soon() -> None:
    """Within a transfer that has begun, as the name of the carrier's thread and a moment later tell."""
    while not any(thread.name.startswith(("bppsa-to", "bppsa-from")) for thread in threading.enumerate()):
        time.sleep(0.001)
    time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def transfer(transport: GroupTransport, victim: int, heir: bool) -> tuple[str, float]:
    """400 MB from rank 0 to rank 1, which is killed meanwhile, or the sender. heir: whether every rank has a child
    process, which has copies of the process group's connections."""
    children = [os.fork()] if heir else []
    if children == [0]:
        time.sleep(LINGERS)
        os._exit(0)
    transport.begin(1)
    value = torch.ones(100 * 1024 * 1024)
    if transport.rank == victim:
        threading.Thread(target=die_soon).start()
    start = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        one_way(transport, value)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return str(caught.value), time.monotonic() - start


def one_way(transport: GroupTransport, value: torch.Tensor) -> None:
    transport.doing(f"job {transport.rank}F0")
    if transport.rank == 0:
        transport.send(message(0, 0, 1), value)
    elif transport.rank == 1:
        transport.receive(message(0, 0, 1))
    transport.finish()


@pytest.mark.parametrize("heir", [False, True])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_killed_within_a_transfer_is_noticed_by_all(victim: int, heir: bool) -> None:
    results = run(3, transfer, victim, heir, dies=[victim])
    results.pop(victim)
    for text, seconds in results:
        assert f"worker {victim} died" in text
        assert seconds < 10


def pending(transport: GroupTransport) -> list[int]:
    """How many tensors live on after a message was sent, and received."""
    alive = []
    for step in (1, 2):
        transport.begin(step)
        if transport.rank == 0:
            value = torch.ones(LARGE)
            gone = weakref.ref(value)
            transport.send(message(0, 0, 1), value)
            del value
            transport.receive(message(1, 1, 0))
            end = time.monotonic() + 5
            while gone() is not None and time.monotonic() < end:
                time.sleep(0.01)
            alive.append(gone() is not None)
        else:
            transport.receive(message(0, 0, 1))
            transport.send(message(1, 1, 0), None)
        transport.finish()
    return alive


def test_what_was_sent_is_not_held() -> None:
    """As the memory that a schedule says would grow by every activation that was ever sent."""
    assert run(2, pending)[0] == [False, False]
