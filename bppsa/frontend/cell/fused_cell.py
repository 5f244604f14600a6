"""A fused cell, and one call of it: what `bppsa.scan` runs once it is decided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.codegen.gpu.triton.sweep_axes import MOST_NUMBERS, has_axes, numbers
from bppsa.common.chain import Recurrence, Role
from bppsa.errors import Reason, Unsupported, first_line
from bppsa.frontend.cell.scan_call import ScanCall
from bppsa.frontend.planning.decided import Runs
from bppsa.frontend.planning.sweeps import compile_recurrence
from bppsa.fxpasses.cell.cell_recorder import Truth
from bppsa.fxpasses.cell.reach import reach
from bppsa.fxpasses.environment.walk import Environment
from bppsa.fxpasses.spelling.whole import Growth
from bppsa.plan.choose import multiply_inline
from bppsa.plan.strategy import Strategy
from bppsa.runtime.recurrent.newton import NewtonHistory, Solver
from bppsa.runtime.recurrent.scan.extent import Extent
from bppsa.sparsity.rules.matrix_ops import LinAlgError

IRREGULAR = Reason(
    "a matrix that is singular or not positive definite, or nearly so, equal numbers that topk, kthvalue or median "
    "chooses among, numbers that are not finite, or whole numbers above 2^20 that are made of real ones",
    mend="PyTorch's own ops decide",
)


@dataclass(frozen=True)
class CellPlan:
    """A cell that was fused, for one structure and one set of shapes (T aside)."""

    recurrence: Recurrence
    dtype: torch.dtype
    hoisted: fx.GraphModule | None
    tail: fx.GraphModule | None
    places: tuple[int | Tensor, ...]  # of each captured tensor in the environment, or a constant made by the cell
    y_spec: Any
    y_shapes: tuple[torch.Size, ...]  # of one step
    carry_shapes: tuple[torch.Size, ...]
    carry_dtypes: tuple[torch.dtype, ...]
    growth: Growth | None  # of whole numbers
    beside: tuple[int, ...] = ()  # where the last of the captured tensors have rows: they are read like x in every step
    truths: tuple[Truth, ...] = ()  # so many of the ys, the last, tell whether they hold
    memory: NewtonHistory = field(default_factory=NewtonHistory, compare=False)
    runs: Runs = field(default_factory=Runs, compare=False)
    elsewhere: dict[torch.device, tuple[fx.GraphModule | None, fx.GraphModule | None]] = field(
        default_factory=dict, compare=False
    )

    @property
    def refuses(self) -> bool:
        """Whether some numbers are left to PyTorch."""
        return self.growth is not None or self.recurrence.checks > 0

    @cached_property
    def reach(self) -> tuple[frozenset[Role], ...]:
        return reach(self.recurrence)

    def captured(self, environment: Environment) -> list[Tensor]:
        return [environment.tensors[at] if isinstance(at, int) else at for at in self.places]

    def run(
        self,
        carry: Sequence[Tensor],
        xs: Sequence[Tensor],
        captured: Sequence[Tensor],
        reverse: bool,
        strategy: Strategy,
        solver: Solver | None = None,
        kept_every: int | None = None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns the last carry and the ys. kept_every: as of `Choice`. Raises `Unsupported` where PyTorch has to run
        the call."""
        steps, rows, carry = xs[0].shape[0], carry[0].shape[0] * self.recurrence.heads, as_real(carry)
        if self.beside:
            first = len(captured) - len(self.beside)
            xs, captured = [*xs, *self.each_step(captured[first:], steps)], captured[:first]
        sources, params = xs, captured
        hoisted, tail = self.around(xs[0].device)
        stacked = [as_one_batch(x) if i in self.batched else x for i, x in enumerate(xs)]
        if hoisted is not None:
            sources, params = outside(hoisted, *stacked, *captured)
        if self.growth is not None:
            self.check_whole(carry, [sources[i] for i in sorted(self.used)], params, steps)
        rows_of = [self.rows(s, (steps, rows, -1)) if i in self.used else None for i, s in enumerate(sources)]
        extent = Extent(steps, rows, reverse, device=xs[0].device)
        inline = multiply_inline(rows, extent.device.type)
        how = extent, len(rows_of), len(carry), strategy, inline, solver, kept_every
        call = ScanCall(self.recurrence, self.dtype, self.reach, *how)
        constants = map(self.constant, params)
        results = call.apply([*rows_of, *(self.rows(c, (rows, -1)) for c in carry), *constants])
        checks = self.recurrence.checks
        count, last = len(results) - len(carry) - checks, len(results) - len(carry)
        if not all(bool(found.isfinite().all()) for found in results[count:last]):
            raise Unsupported(IRREGULAR)
        ys = self.all_ys(results[:count], tail, (*stacked, *captured), steps)
        if self.truths:
            count = len(ys) - len(self.truths)
            self.check_truths(ys[count:], reverse)
            ys = ys[:count]
        return self.as_carried(results[last:]), apart(ys, [*xs, *captured])

    def each_step(self, beside: Sequence[Tensor], steps: int) -> list[Tensor]:
        """Tensors with a row for each of the batch as a leaf of xs each, the same in all steps."""
        in_front = [tensor.transpose(0, dim) for tensor, dim in zip(beside, self.beside, strict=True)]
        return [tensor.expand(steps, *tensor.shape) for tensor in in_front]

    def around(self, device: torch.device) -> tuple[fx.GraphModule | None, fx.GraphModule | None]:
        """What is hoisted, and the tail: they are recorded on the CPU, and make what they make on this device."""
        if device.type == "cpu":
            return self.hoisted, self.tail
        if device not in self.elsewhere:
            self.elsewhere[device] = on_device(self.hoisted, device), on_device(self.tail, device)
        return self.elsewhere[device]

    def all_ys(
        self, outputs: Sequence[Tensor], tail: fx.GraphModule | None, given: Sequence[Tensor], steps: int
    ) -> list[Tensor]:
        """The ys of all steps, made of the sweep's outputs. given: what the tail reads beside them."""
        like = [node.meta["val"] for node in self.recurrence.output_nodes[: len(outputs)]]
        ys = [o if o.dtype is a.dtype else o.to(a.dtype) for o, a in zip(outputs, like, strict=True)]
        if tail is not None:
            flat = [y.reshape(-1, *shape) for y, shape in zip(ys, self.recurrence.output_shapes, strict=False)]
            ys = outside(tail, *flat, *given)
        shaped = zip(ys, self.y_shapes, strict=True)
        return [y if y.shape[1:] == shape else y.reshape(steps, *shape) for y, shape in shaped]

    def check_truths(self, read: Sequence[Tensor], reverse: bool) -> None:
        """read: [T, ...] each. Raises `Missed` where Python decides otherwise."""
        holds = torch.stack([truth.holds(entries) for truth, entries in zip(self.truths, read, strict=True)])
        later = holds[:, :-1] if reverse else holds[:, 1:]
        otherwise = frozenset(i for i, held in enumerate(later) if len(held) and not held.any())
        self.runs.count(bool(holds.all()), otherwise)

    def constant(self, param: Tensor) -> Tensor:
        """The parameter as a sweep takes it, which reads none that is complex."""
        if param.dtype.is_floating_point:
            return param
        return param.new_empty(0, dtype=self.dtype) if param.dtype.is_complex else param.to(self.dtype)

    def as_carried(self, finals: Sequence[Tensor]) -> list[Tensor]:
        """The last carry, in the dtypes and shapes of the one that was given."""
        parts = iter(finals)
        last = [
            torch.complex(next(parts), next(parts)) if dtype.is_complex else next(parts).to(dtype)
            for dtype in self.carry_dtypes
        ]
        return [f if f.shape == shape else f.reshape(shape) for f, shape in zip(last, self.carry_shapes, strict=True)]

    def check_whole(
        self, carry: Sequence[Tensor], given: Sequence[Tensor], params: Sequence[Tensor], steps: int
    ) -> None:
        """Raise `Unsupported` where whole numbers may become too large for the sweep's dtype, are divided by 0, or are
        read as places at the start and are none."""
        assert self.growth is not None
        start, most = largest_whole(carry), largest_whole([*given, *params])
        if not self.growth.fits(start, most, steps, self.dtype):
            limit = f"{1 / torch.finfo(self.dtype).eps:.0f}, to which {self.dtype} holds them exactly"
            what = f"whole numbers of up to {start} at the start, which {steps} steps may take beyond {limit}"
            raise Unsupported(what, mend="subtract the start before the scan, and add it after")
        if any(bool((params[at] == 0).any()) for at in self.growth.divisors):
            raise Unsupported("divides whole numbers by 0")
        for at, (low, high) in self.growth.starts:
            if carry[at].numel() and not low <= int(carry[at].min()) <= int(carry[at].max()) <= high:
                raise Unsupported(f"carries numbers, read as places, that are not among {low} to {high}")

    @cached_property
    def without_gpu(self) -> Reason | None:
        """Why no kernel of a GPU's holds it."""
        try:
            program = compile_recurrence(self.recurrence, self.dtype, False, "cuda").program
        except Unsupported as unsupported:
            return unsupported.reason
        widest = max(numbers(kernel) if has_axes(kernel) else 0 for kernel in (program.forward, program.backward))
        if widest <= MOST_NUMBERS:
            return None
        what = f"a value of {widest} numbers for each row, more than a GPU's kernel holds of several axes"
        return Reason(what, mend=f"keep to {MOST_NUMBERS}")

    @cached_property
    def batched(self) -> frozenset[int]:
        """The leaves of x that ops outside of the sweep read, for all steps as one batch. The others stay as they are:
        what is the same in all steps would be copied for each."""
        params, found = len(self.places) - len(self.beside), set()
        for part, outputs in ((self.hoisted, 0), (self.tail, len(self.recurrence.outputs) - self.recurrence.checks)):
            given = part.graph.find_nodes(op="placeholder") if part is not None else []
            leaves = given[outputs : len(given) - params]
            found |= {i for i, leaf in enumerate(leaves) if any(user.op != "output" for user in leaf.users)}
        return frozenset(found)

    @cached_property
    def used(self) -> frozenset[int]:
        """The sources that the sweep reads."""
        return frozenset(stream.source for stream in self.recurrence.streams)

    def rows(self, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The tensor as a sweep takes it, without a call of PyTorch's where it is so already."""
        tensor = tensor if tensor.dtype is self.dtype else tensor.to(self.dtype)
        return tensor if tensor.dim() == len(shape) and tensor.shape[:-1] == shape[:-1] else tensor.reshape(shape)


def on_device(part: fx.GraphModule | None, device: torch.device) -> fx.GraphModule | None:
    """The same with its new tensors on the device."""
    if part is None or not any("device" in node.kwargs for node in part.graph.nodes):
        return part
    graph = fx.Graph()
    graph.output(graph.graph_copy(part.graph, {}))
    put_on(graph.nodes, device)
    return fx.GraphModule({}, graph)


def put_on(nodes: Iterable[fx.Node], device: torch.device) -> None:
    """Has them make what they make on the device."""
    for node in nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": device}


def outside(part: fx.GraphModule, *tensors: Tensor) -> Any:
    """What runs for all steps at once, around the sweep. Raises `Unsupported` where one of its ops has an error."""
    try:
        return part(*tensors)
    except LinAlgError as error:  # the loop raises it for the step in which it comes, at the user's line
        raise Unsupported(first_line(error)) from error


def apart(ys: Sequence[Tensor], given: Sequence[Tensor]) -> list[Tensor]:
    """Outputs in memory of their own, as a loop that stacks them has them: a cell may return what it was given."""
    taken, found = {tensor.untyped_storage()._cdata for tensor in given}, []
    for y in ys:
        own = y.clone() if y.untyped_storage()._cdata in taken else y
        taken.add(own.untyped_storage()._cdata)
        found.append(own)
    return found


def largest_whole(tensors: Sequence[Tensor]) -> int:
    """The largest absolute value among tensors of integers."""
    whole = [t for t in tensors if t.numel() and not (t.is_floating_point() or t.is_complex())]
    return max((max(int(t.max()), -int(t.min())) for t in whole if t.dtype is not torch.bool), default=0)


def as_real(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors, each complex one as its real and its imaginary part."""
    found: list[Tensor] = []
    for tensor in tensors:
        found += torch.view_as_real(tensor).unbind(-1) if tensor.dtype.is_complex else [tensor]
    return found


def resolved(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors without marks, since a kernel reads the numbers that are in memory."""
    return [t.resolve_conj().resolve_neg() for t in tensors]


def as_one_batch(x: Tensor) -> Tensor:
    """[T, B, *n] -> [T * B, *n]; without rows it stays [T]."""
    return x.flatten(0, 1) if x.dim() > 1 else x
