"""Messages over a gloo group: every kind of value, any order, two threads, and steps after a step that failed."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import pytest
import torch

from bppsa.errors import ScheduleError, WorkerError
from bppsa.runtime.transport.group import GroupTransport
from bppsa.runtime.transport.layout import COPIED, INLINE
from tests.runtime.worker.ranks import LIMIT, message, run
from tests.workers.ranks import run_ranks

MEDIUM = COPIED  # elements: it travels with its announcement, and is not copied before
LARGE = INLINE // 4 + 1  # elements: it does not


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def values() -> list[Any]:
    torch.manual_seed(0)
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool]
    return [
        None,
        3.5,
        {"text": "a", "none": None, "pair": (1, [2, torch.ones(2)])},
        torch.zeros(0, 4),
        torch.tensor(2.0, dtype=torch.float64),
        *[(torch.randn(size) * 3).to(dtype) for dtype in (*dtypes, torch.complex64) for size in (3, MEDIUM, LARGE)],
        torch.randn(400, 300).t(),
        torch.randn(1, 5).expand(LARGE, 5),
        torch.randn(LARGE, dtype=torch.complex64).conj(),
        [torch.randn(LARGE), torch.randn(3), "between", torch.randn(2 * LARGE), None],
        [torch.randn(1000) for _ in range(30)],
    ]


def every_kind(transport: GroupTransport) -> int:
    right = 0
    for step in range(1, 4):
        transport.begin(step)
        for number, value in enumerate(values()):
            if transport.rank == 0:
                transport.send(message(number, 0, 1), value)
        for number, value in reversed(list(enumerate(values()))):
            if transport.rank == 1:
                right += same(transport.receive(message(number, 0, 1)), value)
        transport.finish()
    return right


def test_values_of_every_kind_in_any_order() -> None:
    assert run(2, every_kind) == [0, 3 * len(values())]


def one_layout(transport: GroupTransport) -> Any:
    """Other shapes in a later step, and the tensors of a message given by the receiver."""
    seen = []
    for step, size in enumerate((LARGE, LARGE, LARGE + 1, 5), 1):
        transport.begin(step)
        if transport.rank == 0:
            transport.send(message(0, 0, 1), (torch.full((size,), float(step)), "objects change", step))
        else:
            room = torch.empty(size)
            got, _, number = transport.receive(message(0, 0, 1), into=[room])
            seen.append((got is room, room.shape == (size,), bool((room == step).all()), number))
        transport.finish()
    return seen


def test_shapes_may_change_and_the_receiver_may_give_the_room() -> None:
    assert run(2, one_layout)[1] == [(True, True, True, step) for step in range(1, 5)]


def two_lanes(transport: GroupTransport) -> bool:
    """Two threads a rank, all four ways at once, each with its own order."""
    other, failures = 1 - transport.rank, []

    def lane(number: int) -> None:
        for index in range(100):
            size = (3, MEDIUM, LARGE)[index % 3]
            base = 4 * index + 2 * number
            out, back = base + transport.rank, base + other
            transport.expect(message(back, other, transport.rank))
            transport.send(message(out, transport.rank, other), torch.full((size,), float(out)))
            got = transport.receive(message(back, other, transport.rank))
            if got.shape != (size,) or not bool((got == back).all()):
                failures.append(index)

    for step in (1, 2):
        transport.begin(step)
        threads = [threading.Thread(target=lane, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        transport.finish()
    return not failures


def test_two_threads_of_a_rank() -> None:
    assert run(2, two_lanes) == [True, True]


def late(transport: GroupTransport) -> float:
    """The sender does not wait for a receiver that sleeps."""
    transport.begin(1)
    start = time.monotonic()
    if transport.rank == 0:
        for number in range(50):
            transport.send(message(number, 0, 1), torch.ones(LARGE))
    else:
        time.sleep(1)
        for number in range(50):
            transport.receive(message(number, 0, 1))
    spent = time.monotonic() - start
    transport.finish()
    return spent


def test_send_does_not_wait() -> None:
    sending, receiving = run(2, late)
    assert sending < 0.9 < receiving


def agreement(transport: GroupTransport) -> list[str]:
    transport.agree({"model": "same", "stages": 4})
    texts = []
    for fingerprint in ({"model": transport.rank == 1}, {"model": "same", f"only on {transport.rank}": 1}):
        try:
            transport.agree(fingerprint)
        except ScheduleError as error:
            texts.append(str(error))
    transport.begin(1)
    transport.finish()
    return texts


def test_differing_fingerprints_are_named() -> None:
    texts = run(3, agreement)
    assert texts[0] == texts[1] == texts[2]
    whole, keys = texts[0]
    assert "model: False on worker 0 and 2, True on worker 1" in whole
    assert "model:" not in keys
    assert "only on 2: nothing on worker 0 and 1, 1 on worker 2" in keys


def ping(transport: GroupTransport) -> None:
    if transport.rank == 0:
        transport.send(message(0, 0, 1), torch.ones(3))
        transport.receive(message(1, 1, 0))
    else:
        transport.receive(message(0, 0, 1))


def other_rows(transport: GroupTransport) -> None:
    """The first and the last rank send each other nothing."""
    transport.begin(1)
    transport.sign({"rows": "8" if transport.rank else "9", "modes": "train"})
    if transport.rank < 2:
        ping(transport)
    transport.finish()


def other_rows_then_the_same(transport: GroupTransport) -> str:
    with pytest.raises(WorkerError) as caught:
        other_rows(transport)
    transport.begin(2)
    transport.sign({"rows": "8", "modes": "train"})
    transport.finish()
    return str(caught.value)


def test_ranks_with_different_batches() -> None:
    for text in run(3, other_rows_then_the_same):
        assert "different work; rows: 9 on worker 0, 8 on worker" in text


def let_go(rank: int) -> bool:
    """Whether the transport is closed without the garbage collector, when its threads have ended what they were at."""
    gc.disable()
    transport = GroupTransport()
    transport.begin(1)
    if rank == 0:
        transport.send(message(0, 0, 1), torch.ones(LARGE))
    else:
        transport.receive(message(0, 0, 1))
    transport.finish()
    alive, close = weakref.ref(transport), transport.close
    del transport
    for _ in range(100):
        if alive() is None and not close.still_active():
            return True
        time.sleep(0.1)
    return False


def test_a_transport_that_is_let_go_is_closed() -> None:
    assert run_ranks(let_go, 2, timeout=LIMIT) == [True, True]
