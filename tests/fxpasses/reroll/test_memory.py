"""What a log knows of one memory: programs that write and read its steps, run again op by op on other numbers."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx

from bppsa.errors import Unsupported
from bppsa.fxpasses.recording.capture import record
from bppsa.fxpasses.reroll.log.record import Logger
from bppsa.fxpasses.reroll.log.replay import Replay
from tests.breadth import examples

STEPS = 6
STEP = st.integers(0, STEPS - 1)
ENDS = st.tuples(STEP, STEP).map(sorted).map(lambda ends: (ends[0], ends[1] + 1))


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    one = st.one_of(
        st.tuples(st.just("write step"), STEP),
        st.tuples(st.just("write steps"), ENDS),
        st.tuples(st.just("change step"), STEP),
        st.tuples(st.just("change steps"), ENDS),
        st.tuples(st.just("read step"), STEP),
        st.tuples(st.just("read steps"), ENDS),
        st.tuples(st.just("read every other"), STEP),
        st.tuples(st.just("read all")),
    )
    return draw(st.lists(one, min_size=3, max_size=14))


def run(program: list[tuple[Any, ...]], x: Tensor, dim: int) -> list[Tensor]:
    """x: [2, 3]. The buffer's steps are along `dim`; each write is of something else."""
    shape = [2, 3]
    shape.insert(dim, STEPS)
    buffer, h, seen = x.new_zeros(shape), x * 1.0, []
    for number, (do, *at) in enumerate(program, 2):
        if do == "write step":
            buffer.select(dim, at[0]).copy_(h * number)
        elif do == "write steps":
            first, last = at[0]
            buffer.narrow(dim, first, last - first).copy_((h * number).unsqueeze(dim))
        elif do == "change step":
            buffer.select(dim, at[0]).mul_(0.5).add_(number)
        elif do == "change steps":
            first, last = at[0]
            buffer[(slice(None),) * dim + (slice(first, last),)].add_(number)
        elif do == "read step":
            h = h + buffer.select(dim, at[0])
        elif do == "read steps":
            first, last = at[0]
            h = h + buffer[(slice(None),) * dim + (slice(first, last),)].sum(dim)
        elif do == "read every other":
            h = h - buffer[(slice(None),) * dim + (slice(at[0], None, 2),)].sum(dim)
        else:
            h = h + buffer.sum(dim) * 0.1
        seen.append(h)
    return [*seen, buffer * 1.0, buffer[(slice(None),) * dim + (slice(2, None),)] * 1.0]


@given(program=programs(), dim=st.integers(0, 2), gradients=st.booleans())
@examples(60)
def test_a_log_runs_again_as_the_program(program: list[tuple[Any, ...]], dim: int, gradients: bool) -> None:
    x, other = torch.randn(2, 2, 3, dtype=torch.float64).unbind()
    with torch.set_grad_enabled(gradients):
        x.requires_grad_(gradients)
        with Logger([x]) as logger:
            results = run(program, x, dim)
        if logger.log.refusal is not None:
            return
        try:
            values = [logger.memory.find(result) for result in results]
        except Unsupported:
            return
        made = Replay(logger.log).run({logger.log.arguments[0]: other})
        for value, expected in zip(values, run(program, other, dim), strict=True):
            assert value is not None
            assert torch.equal(made[value], expected)


@given(program=programs(), dim=st.integers(0, 2))
@examples(60)
def test_a_recording_runs_as_the_program(program: list[tuple[Any, ...]], dim: int) -> None:
    """Cells are recorded, and what they change in place is known there by other means."""
    x, other = torch.randn(2, 2, 3, dtype=torch.float64).unbind()
    try:
        recording = record(lambda x: run(program, x, dim), (x,))
    except Unsupported:
        return
    recording.graph.output(recording.result)
    assert not recording.captured
    found = fx.GraphModule({}, recording.graph)(other)
    for value, expected in zip(found, run(program, other, dim), strict=True):
        assert torch.equal(value, expected)
