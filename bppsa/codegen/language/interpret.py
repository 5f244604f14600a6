"""The slow, living definition of the kernel language: every printer is tested against `run`, never against another
printer.

It loops over steps in Python and evaluates a group's expressions on whole `[rows, width]` tensors, in the dtype it is
given; of several axes too the columns are one dimension, row-major.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bppsa.codegen.language.expr import STRUCTURAL, Access, Dot, Expr, Op, Shape
from bppsa.codegen.language.ir import Group, Kernel, Kind, Reduce, Store


def exponent(x: Tensor) -> Tensor:
    """floor(log2 |x|) within the exponents of normal numbers that have a reciprocal, 0 where there is none."""
    limits = torch.finfo(x.dtype)
    most = math.frexp(limits.max)[1] - 2
    normal = x.isfinite() & (x.abs() >= limits.tiny)
    return torch.where(normal, (torch.frexp(x).exponent - 1).clamp(-most, most), 0).to(x.dtype)


EVALUATE: dict[Op, Callable[..., Tensor]] = {
    Op.ADD: torch.add,
    Op.SUB: torch.sub,
    Op.MUL: torch.mul,
    Op.DIV: torch.div,
    Op.MAX: torch.maximum,
    Op.MIN: torch.minimum,
    Op.NEG: torch.neg,
    Op.ABS: torch.abs,
    Op.EXP: torch.exp,
    Op.LOG: torch.log,
    Op.SQRT: torch.sqrt,
    Op.TANH: torch.tanh,
    Op.SIGMOID: torch.sigmoid,
    Op.ERF: torch.erf,
    Op.SIN: torch.sin,
    Op.COS: torch.cos,
    Op.ATAN: torch.atan,
    Op.FLOOR: torch.floor,
    Op.FMOD: torch.fmod,
    Op.EXPONENT: exponent,
    Op.LDEXP: lambda x, n: torch.ldexp(x, n.int()),
    Op.ERFC: torch.erfc,
    Op.ERFCX: torch.special.erfcx,
    Op.ERFINV: torch.erfinv,
    Op.NDTRI: torch.special.ndtri,
    Op.LGAMMA: torch.lgamma,
    Op.DIGAMMA: torch.digamma,
    Op.ZETA: torch.special.zeta,
    Op.I0E: torch.special.i0e,
    Op.I1E: torch.special.i1e,
    Op.LT: lambda a, b: (a < b).to(a.dtype),
    Op.LE: lambda a, b: (a <= b).to(a.dtype),
    Op.EQ: lambda a, b: (a == b).to(a.dtype),
    Op.WHERE: lambda c, a, b: torch.where(c != 0, a, b),
}
assert set(EVALUATE) == set(Op) - STRUCTURAL


def run(
    kernel: Kernel,
    tensors: Sequence[Tensor],
    *,
    steps: int,
    rows: int,
    active: Sequence[int] | None = None,
    reverse: bool = False,
    columns: int = 1,
) -> None:
    """Run `kernel` in place on `tensors`, one for each of `kernel.arguments` and of the shape its `Kind` states; B is
    `rows`, and where B rows are RUNNING, `rows * columns`.

    `active[t] <= rows` rows take part in step t (packed sequences, longest first); the others are neither read nor
    written.
    """
    Interpreter(kernel, tensors, rows * columns, reverse, columns).run(range(steps), active)


class Interpreter:
    """One run of a kernel: its arguments and scratch by name, read and written as the groups say."""

    def __init__(self, kernel: Kernel, tensors: Sequence[Tensor], rows: int, reverse: bool, columns: int) -> None:
        self.kernel, self.rows, self.reverse, self.columns = kernel, rows, reverse, columns
        self.storage = {b.name: t for b, t in zip(kernel.arguments, tensors, strict=True)}
        self.kinds = kernel.kinds
        like = tensors[0]
        for b in kernel.buffers:
            if b.kind is Kind.SCRATCH:
                self.storage[b.name] = like.new_zeros(rows, b.width)
            if b.kind is Kind.COLUMN_SUM:
                self.storage[b.name].zero_()

    def run(self, steps: range, active: Sequence[int] | None) -> None:
        ascending = self.kernel.along != self.reverse
        for t in steps if ascending else reversed(steps):
            before = {name: self.storage[name].clone() for name, kind in self.kinds.items() if kind is Kind.RUNNING}
            rows = self.rows if active is None else active[t] * self.columns
            for group in self.kernel.groups:
                self.run_group(group, t, rows, before)

    def run_group(self, group: Group, t: int, rows: int, before: dict[str, Tensor]) -> None:
        values: dict[Expr, Tensor] = {}
        for node in group.nodes():
            values[node] = self.evaluate(node, [values[a] for a in node.args], group, t, rows, before)
        for store in group.stores:
            if group.shape:
                self.commit_to(store, values[store.value], group.shape, t, rows)
            else:
                self.commit(store, values[store.value], group.width, t, rows)

    def evaluate(
        self, node: Expr, args: list[Tensor], group: Group, t: int, rows: int, before: dict[str, Tensor]
    ) -> Tensor:
        payload, width = node.payload, group.width
        if isinstance(payload, Access):
            source = before.get(payload.buffer, self.storage[payload.buffer])
            if payload.strides:
                return self.rows_of(source, payload, t, rows)[:, places(payload, group.shape)]
            return self.view(source, payload, width, t, rows).clone()  # stores come after all loads
        if isinstance(payload, Dot):
            weight = self.storage[payload.weight]
            source = before.get(payload.source.buffer, self.storage[payload.source.buffer])
            left = self.view(source, payload.source, weight.shape[0], t, rows)
            return left @ weight[:, payload.column : payload.column + width]
        if payload is not None:
            return next(iter(self.storage.values())).new_full((rows, width), payload)
        return EVALUATE[node.op](*args)

    def commit(self, store: Store, value: Tensor, width: int, t: int, rows: int) -> None:
        target = store.target
        if store.reduce is Reduce.COLUMNS:
            self.storage[target.buffer][target.column : target.column + width] += value.sum(0)
            return
        if store.reduce is Reduce.ROWS:
            value, width = value.sum(1, keepdim=True), 1
        if store.reduce is Reduce.MAX:
            value, width = value.amax(1, keepdim=True), 1
        self.view(self.storage[target.buffer], target, width, t, rows).copy_(value)

    def commit_to(self, store: Store, value: Tensor, shape: Shape, t: int, rows: int) -> None:
        """Stores a value of several axes; elements that go to one column are folded."""
        target, at = store.target, places(store.target, shape)
        if store.reduce is Reduce.COLUMNS:
            self.storage[target.buffer].index_add_(0, at, value.sum(0))
            return
        to = self.rows_of(self.storage[target.buffer], target, t, rows)
        if store.reduce is Reduce.NONE:
            to[:, at] = value
        else:
            away = [1 + a for a in range(len(shape)) if not (target.strides and target.strides[a])]
            to[:, at.unique()] = FOLD[store.reduce](value.unflatten(1, shape), away).flatten(1) if away else value

    def view(self, source: Tensor, access: Access, width: int, t: int, rows: int) -> Tensor:
        source = self.rows_of(source, access, t, rows)
        if access.broadcast:
            return source[:, access.column : access.column + 1].expand(-1, width)
        return source[:, access.column : access.column + width]

    def rows_of(self, source: Tensor, access: Access, t: int, rows: int) -> Tensor:
        kind = self.kinds[access.buffer]
        if kind is Kind.STREAM:
            source = source[t]
        elif kind is Kind.STATE:
            source = source[t + (access.after != self.reverse)]
        elif kind is Kind.VECTOR:
            source = source.expand(rows, -1)
        if kind in (Kind.STREAM, Kind.STATE) and self.columns > 1:
            source = source.repeat_interleave(self.columns, 0)
        return source[:rows]


def places(access: Access, shape: Shape) -> Tensor:
    """The column of each element of a group, int64 [width]."""
    at = torch.tensor(access.column)
    for size, stride in zip(shape, access.strides or (0,) * len(shape), strict=True):
        at = at.unsqueeze(-1) + torch.arange(size) * stride
    return at.flatten()


# (values [rows, *shape], dimensions to fold, at least one) -> what is kept
FOLD: dict[Reduce, Callable[[Tensor, list[int]], Tensor]] = {
    Reduce.ROWS: lambda value, away: value.sum(away, keepdim=True),
    Reduce.MAX: lambda value, away: value.amax(away, keepdim=True),
}
