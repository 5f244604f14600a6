"""The period of a log, its loop unrolled again, and what a log says of memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bppsa.fxpasses.reroll.log.ops import LoggedValue
from bppsa.fxpasses.reroll.log.record import Logger
from bppsa.fxpasses.reroll.log.replay import Replay
from bppsa.fxpasses.reroll.repetition.period import PeriodicRun, colours, longest
from bppsa.fxpasses.reroll.repetition.relate import relate
from bppsa.fxpasses.reroll.repetition.unroll import is_as_logged

aten = torch.ops.aten


def test_longest_period() -> None:
    assert longest([1, 2, 3, 4]) is None
    assert longest([9, *[1, 2, 3] * 9, 8]) == PeriodicRun(1, 28, 3)
    inner = [*[1, 2] * 9, 5]
    assert longest([7, *inner * 8, 8]) == PeriodicRun(1, 153, 19)  # the outer loop, not one of its inner ones
    assert longest([7, *inner * 4, 8]) == PeriodicRun(1, 19, 2)  # too short an outer loop hides no inner one
    rare = [*[1, 2, 3] * 6, 1]  # a fourth colour that is like another
    assert longest(rare * 9) == PeriodicRun(0, 171, 19)


def logged(function: Callable[..., Tensor], *args: Tensor) -> tuple[Logger, LoggedValue]:
    logger = Logger(args)
    with logger:
        result = function(*args)
    value = logger.memory.find(result)
    assert logger.log.refusal is None
    assert value is not None
    return logger, value


def decayed(x: Tensor, h: Tensor) -> Tensor:
    for t in range(10):
        h = torch.tanh(h * 0.5 + x[t])
    return h


def test_loop_unrolled_is_the_log() -> None:
    logger, _ = logged(decayed, torch.randn(10, 2, 3), torch.randn(2, 3))
    ops = logger.log.ops
    run = longest(colours(ops))
    assert run is not None
    loop = relate(ops, run)
    assert (loop.period, loop.steps, len(loop.starts)) == (4, 10, 1)
    assert is_as_logged(loop, ops)
    ops[loop.start + 5 * loop.period].leaves[-1] = 7
    assert not is_as_logged(loop, ops)


def rewritten_in_place(x: Tensor) -> Tensor:
    out = torch.zeros(4, 6, dtype=x.dtype)
    view = out.view(2, 12)
    for t in range(4):
        out[t] = x[t]
    out[:, 1:3] *= 2
    view[0, :3] = 5.0
    part = out[1]
    part.add_(1)
    a, b = out.split(3, 1)
    b.copy_(a)
    return view.t() + part.sum()


def test_log_of_writes_computes_what_the_call_did() -> None:
    x = torch.randn(4, 6, dtype=torch.float64)
    logger, value = logged(rewritten_in_place, x)
    other = torch.randn_like(x)
    replay = Replay(logger.log)
    given = [other if v.given and v.given.argument == 0 else v.given.literal for v in replay.given if v.given]
    found = replay.run(dict(zip(replay.given, given, strict=True)))[value]  # type: ignore[arg-type]
    torch.testing.assert_close(found, rewritten_in_place(other))
    assert not any(op.target._schema.is_mutable for op in logger.log.ops)  # type: ignore[attr-defined]


def test_what_a_log_cannot_tell_is_refused() -> None:
    def writes(x: Tensor) -> Tensor:
        return x.add_(1)

    def reads(x: Tensor) -> Tensor:
        return x * x.sum().item()

    for function, word in ((writes, "in place that it was given"), (reads, "value")):
        logger = Logger([x := torch.randn(2, 3)])
        with logger:
            function(x)
        assert logger.log.refusal is not None
        assert word in str(logger.log.refusal)
