"""The ops that are left, as a program: a function of the call's tensors and of those that it closes over."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from bppsa.fxpasses.recording.aliases import is_expanded
from bppsa.fxpasses.reroll.log.ops import Log, LoggedOp, LoggedValue, draws

aten = torch.ops.aten
MemoryLayout = tuple[Callable[[Tensor, Sequence[int]], Tensor], tuple[int, ...]]


@dataclass(frozen=True)
class LoopProgram:
    """run: of the arguments in `arguments`, the captured tensors, the literals and the numbers, which are terms and
    their dtypes; gives what stands in the result for tensors."""

    run: fx.GraphModule
    given: tuple[LoggedValue, ...]  # what it takes
    arguments: tuple[int, ...]
    captured: tuple[Tensor, ...]
    literals: tuple[Tensor, ...]
    numbers: tuple[tuple[int, torch.dtype], ...]


def living(ops: Sequence[LoggedOp], result: Sequence[LoggedValue]) -> list[LoggedOp]:
    """Without ops that nothing reads; what draws random numbers is done, as it moves the generator on."""
    read = set(result)
    found = []
    for op in reversed(ops):
        if draws(op) or any(value in read for value in op.outs):
            read.update(op.operands)
            found.append(op)
    return found[::-1]


def program_of(
    log: Log,
    ops: Sequence[LoggedOp],
    result: Sequence[LoggedValue],
    layouts: Mapping[LoggedValue, MemoryLayout] = {},
) -> LoopProgram:
    """Ops that were done without gradients, in a call with them, are detached. layouts: of what has to have memory of
    its own, as it has without a scan."""
    gradients = torch.is_grad_enabled()
    alive = living([*log.prologue, *ops], result)
    read = {*result, *(value for op in alive for value in op.operands)}
    given = [v for group in (log.arguments, log.captured, log.literals, log.numbers) for v in group if v in read]
    graph = fx.Graph()
    nodes = {value: graph.placeholder(f"given{i}") for i, value in enumerate(given)}
    for op in alive:
        args, kwargs = op.call(nodes)
        node = graph.call_function(op.target, tuple(args), kwargs)
        for value in op.outs:
            out = node if op.single else graph.call_function(operator.getitem, (node, value.item))
            detached = gradients and not op.grad
            out = graph.call_function(aten.detach.default, (out,)) if detached else out
            if value in layouts:
                lay, how = layouts[value]
                out = graph.call_function(lay, (out, how))
            nodes[value] = out
    graph.output(tuple(nodes[value] for value in result))
    whole = [value.given for value in given if value.given is not None]
    return LoopProgram(
        fx.GraphModule({}, graph),
        tuple(given),
        tuple(each.argument for each in whole if each.argument >= 0),
        tuple(each.captured for each in whole if each.captured is not None),
        tuple(each.literal for each in whole if each.literal is not None),
        tuple((value.given.number, value.dtype) for value in given if value.given and value.given.number >= 0),
    )


def layout_of(tensor: Tensor) -> MemoryLayout:
    """How it lies in memory: its dimensions in that order, the one of the longest strides first; or its strides, where
    other numbers lie between its own."""
    order = tuple(sorted(range(tensor.dim()), key=lambda d: -tensor.stride()[d]))
    if is_expanded(tensor) or tensor.permute(order).is_contiguous():
        return in_order, order
    return with_gaps, tensor.stride()


def in_order(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """It or a copy, which is no view: a view may not be detached in place."""
    if tensor.permute(tuple(order)).is_contiguous():
        return tensor.clone() if tensor._is_view() else tensor
    strides, size = [0] * tensor.dim(), 1
    for d in reversed(order):
        strides[d], size = size, size * tensor.shape[d]
    return with_gaps(tensor, strides)


def with_gaps(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    return tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)
