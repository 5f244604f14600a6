"""The recurrences as torch.library ops, for the graphs that Dynamo traces.

Unlike eager calls (`recurrent.autograd`) an op may not return views, so what the backward reads comes back as further
outputs. Schemas have no defaults: the dispatcher drops an argument that equals its default, and the kernels miss it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bppsa.frontend.cell.scan_call import ScanCall
from bppsa.frontend.planning.forward import solver_of, warn_of
from bppsa.frontend.rnn.recurrent import stack
from bppsa.frontend.rnn.spec import Spec
from bppsa.plan.forward import LIBRARY, forward_of
from bppsa.plan.strategy import strategy_of
from bppsa.runtime.recurrent.autograd import RecurrenceCall
from bppsa.runtime.recurrent.newton import NewtonHistory
from bppsa.runtime.recurrent.scan.extent import Extent, Given

# Key of a cell -> its plan; the backend fills it while it compiles. Nothing leaves it: compiled graphs know their cells
# by key alone and may run at any time, and Dynamo bounds how many graphs there are.
SCANS: dict[str, Any] = {}
# Inductor keeps compiled graphs on disk, with the shapes of what our forward saves in them: the version, a checksum of
# our sources, is an argument, so that a graph of another version is not taken for one of ours.
VERSION = zlib.crc32(b"".join(path.read_bytes() for path in sorted(Path(__file__).parents[2].rglob("*.py"))))
MODULE = "str kind, int layers, bool bidirectional, str strategy, str forward, int version"
DEVICES = ("cpu", "cuda")
CELL = "str cell, bool reverse, str strategy, str forward"


def module_call(
    x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], masks: Sequence[Tensor], *flags: Any
) -> RecurrenceCall:
    """The call that `bppsa::recurrence` stands for; the module's sizes are read off its weights.

    Raises RuntimeError, PyTorch's own, where there is no step; a number of steps that may change is never none.
    """
    if isinstance(x.shape[0], int) and not x.shape[0]:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    kind, layers, bidirectional, strategy, forward, _ = flags
    count = len(weights) // (layers * (1 + bidirectional))
    # int: widths are fixed for a graph, also where Dynamo takes every size for a variable (dynamic=True)
    inputs, out, hidden = (int(t.shape[-1]) for t in (x, states[0], states[-1]))
    projection = out if count in (3, 5) else 0
    spec = Spec(kind.upper(), inputs, hidden, projection, layers, count > 3, bidirectional)
    # One program for every batch size: what a graph holds must not depend on a size that changes.
    return stack(
        spec,
        working(x.dtype),
        Extent(x.shape[0], x.shape[1], device=x.device),
        bool(masks),
        strategy_of(strategy),
        solver_of(forward, NewtonHistory()),
        inline=True,
        library=forward_of(forward) == LIBRARY,
    )


def cell_call(
    sources: Sequence[Tensor], carries: Sequence[Tensor], params: Sequence[Tensor], *flags: Any
) -> RecurrenceCall:
    """The call that `bppsa::scan` stands for: one of a cell that the backend has planned."""
    cell, reverse, strategy, forward = flags
    extent = Extent(sources[0].shape[0], sources[0].shape[1], reverse, device=sources[0].device)
    solver = solver_of(forward, NewtonHistory())
    plan = SCANS[cell]
    how = extent, len(sources), len(carries), strategy_of(strategy), True, solver
    return ScanCall(plan.recurrence, plan.dtype, plan.reach, *how)


def working(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def flat(groups: Sequence[Any]) -> list[Tensor]:
    """The tensors of an op's arguments, one after the other."""
    return [t for group in groups for t in ([group] if isinstance(group, Tensor) else group)]


def converted(tensors: Given, dtype: torch.dtype) -> list[Tensor | None]:
    return [t if t is None else t.to(dtype) for t in tensors]


def define(name: str, groups: Sequence[str], flags: str, call_of: Any) -> None:
    """Defines `bppsa::{name}`, whose tensor arguments are `groups`, and its backward. Both give lists of tensors."""
    forward = defined_forward(name, groups, flags, call_of)
    link(forward, defined_backward(name, groups, flags, call_of), len(groups), call_of)


def defined_forward(name: str, groups: Sequence[str], flags: str, call_of: Any) -> Any:
    schema = f"({', '.join(groups)}, {flags}, bool save) -> Tensor[]"
    many = len(groups)

    @torch.library.custom_op(f"bppsa::{name}", mutates_args=(), device_types=DEVICES, schema=schema)
    def forward(*args: Any) -> list[Tensor]:
        tensors, save = flat(args[:many]), args[-1]
        dtype = tensors[0].dtype
        call = call_of(*args[:-1])
        result = call.forward(converted(tensors, working(dtype)), save=save)
        warn_of(call.solver)
        outputs = [output.to(dtype) if output.dtype != dtype else output.clone() for output in result.outputs]
        return [*outputs, *result.exposed, *result.saved]

    @forward.register_fake
    def _(*args: Any) -> list[Tensor]:
        like, save = flat(args[:many])[0], args[-1]
        outputs, private = call_of(*args[:-1]).shapes()
        kept = [like.new_empty(shape, dtype=working(like.dtype)) for shape in private * save]
        return [*(like.new_empty(shape) for shape in outputs), *kept]

    return forward


def defined_backward(name: str, groups: Sequence[str], flags: str, call_of: Any) -> Any:
    schema = f"(Tensor?[] grads, {', '.join(groups)}, Tensor[] private, {flags}, bool[] needs) -> Tensor[]"
    many = len(groups)

    @torch.library.custom_op(f"bppsa::{name}_backward", mutates_args=(), device_types=DEVICES, schema=schema)
    def backward(*args: Any) -> list[Tensor]:
        grads, groups_, private, needs = args[0], args[1 : 1 + many], args[1 + many], args[-1]
        tensors = flat(groups_)
        dtype = working(tensors[0].dtype)
        call = call_of(*groups_, *args[2 + many : -1])
        exposed, saved = private[: call.exposed], private[call.exposed :]
        found = call.backward(converted(tensors, dtype), saved, exposed, converted(grads, dtype), needs)
        pairs = [(t, g) for t, g, need in zip(tensors, found, needs, strict=True) if need]
        return [torch.zeros_like(t) if g is None else g.to(t.dtype).contiguous() for t, g in pairs]

    @backward.register_fake
    def _(*args: Any) -> list[Tensor]:
        return [t.new_empty(t.shape) for t, need in zip(flat(args[1 : 1 + many]), args[-1], strict=True) if need]

    return backward


def link(forward: Any, backward: Any, many: int, call_of: Any) -> None:
    """Has autograd call one op for the gradients of another. many: groups of tensors among their arguments."""

    def setup_context(ctx: Any, inputs: Any, output: Sequence[Tensor]) -> None:
        tensors = flat(inputs[:many])
        ctx.sizes = [None if isinstance(group, Tensor) else len(group) for group in inputs[:many]]
        ctx.flags, ctx.count = inputs[many:-1], len(tensors)
        ctx.outputs = len(call_of(*inputs[:-1]).shapes()[0])
        ctx.save_for_backward(*tensors, *output[ctx.outputs :])
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
        saved = list(ctx.saved_tensors)
        given = regrouped(saved[: ctx.count], ctx.sizes)
        needs = [
            bool(need)
            for group in ctx.needs_input_grad[:many]
            for need in ([group] if isinstance(group, bool) else group)
        ]
        found = iter(backward(list(grads[: ctx.outputs]), *given, saved[ctx.count :], *ctx.flags, needs))
        gradients = regrouped([next(found) if need else None for need in needs], ctx.sizes)
        return (*gradients, *[None] * (len(ctx.flags) + 1))

    forward.register_autograd(differentiate, setup_context=setup_context)


def regrouped(values: Sequence[Any], sizes: Sequence[int | None]) -> list[Any]:
    """The inverse of `flat`: a size for each list, None for a tensor by itself."""
    rest, groups = list(values), []
    for size in sizes:
        groups.append(rest.pop(0) if size is None else [rest.pop(0) for _ in range(size)])
    return groups


define("recurrence", ["Tensor x", "Tensor[] states", "Tensor[] weights", "Tensor[] masks"], MODULE, module_call)
define("scan", ["Tensor[] sources", "Tensor[] carries", "Tensor[] params"], CELL, cell_call)
