"""Kernels built by hand, for the tests of everything that reads them. H: width of the state."""

from __future__ import annotations

import torch
from torch import Tensor

from bppsa.codegen.language.expr import Access, Dot, Expr, Op, const, dot, load
from bppsa.codegen.language.ir import Buffer, Group, Kernel, Kind, Reduce, Store

ONE = const(1.0)


def add(a: Expr, b: Expr) -> Expr:
    return Expr(Op.ADD, a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return Expr(Op.SUB, a, b)


def mul(a: Expr, b: Expr) -> Expr:
    return Expr(Op.MUL, a, b)


def negated(a: Expr) -> Expr:
    return Expr(Op.NEG, a)


def at(buffer: str, column: int = 0, **flags: bool) -> Expr:
    return load(Access(buffer, column, **flags))


def gated_forward(H: int) -> Kernel:
    """Three products of one source; activations overwrite their inputs in place; STATE read and then written."""
    product = [dot(Dot(Access("h"), "w", i * H)) for i in range(3)]
    reset = Expr(Op.SIGMOID, add(at("g", H), product[1]))
    update = Expr(Op.SIGMOID, add(at("g", 2 * H), product[2]))
    hidden = add(product[0], at("bias"))
    new = Expr(Op.TANH, add(at("g"), mul(reset, hidden)))
    state = add(new, mul(update, sub(at("h"), new)))
    stores = [Store(Access("g", i * H), v) for i, v in enumerate((new, reset, update, hidden))]
    stores.append(Store(Access("h", after=True), state))
    buffers = (
        Buffer("g", Kind.STREAM, 4 * H),
        Buffer("h", Kind.STATE, H),
        Buffer("w", Kind.WEIGHT, 3 * H, H),
        Buffer("bias", Kind.VECTOR, H),
    )
    return Kernel("gated_forward", buffers, (Group(H, tuple(stores)),))


def gated_backward(H: int) -> Kernel:
    """RUNNING cotangent, column sums, and a second stage whose product reads what the first one stored."""
    new, reset, update, hidden = (at("g", i * H) for i in range(4))
    g = add(at("g_h"), at("g_y"))
    g_new = mul(mul(g, sub(ONE, update)), sub(ONE, mul(new, new)))
    g_update = mul(mul(g, sub(at("h"), new)), mul(update, sub(ONE, update)))
    g_reset = mul(mul(g_new, hidden), mul(reset, sub(ONE, reset)))
    values = (g_new, g_reset, g_update, mul(g_new, reset))
    stores = [Store(Access("d", i * H), v) for i, v in enumerate(values)]
    stores += [Store(Access("db", i * H), v, Reduce.COLUMNS) for i, v in enumerate(values)]
    stores.append(Store(Access("direct"), mul(g, update)))
    carried = add(at("direct"), dot(Dot(Access("d", H), "w")))
    buffers = (
        Buffer("g", Kind.STREAM, 4 * H),
        Buffer("h", Kind.STATE, H),
        Buffer("g_y", Kind.STREAM, H),
        Buffer("d", Kind.STREAM, 4 * H),
        Buffer("g_h", Kind.RUNNING, H),
        Buffer("w", Kind.WEIGHT, H, 3 * H),
        Buffer("db", Kind.COLUMN_SUM, 4 * H),
        Buffer("direct", Kind.SCRATCH, H),
    )
    groups = (Group(H, tuple(stores)), Group(H, (Store(Access("g_h"), carried),)))
    return Kernel("gated_backward", buffers, groups, along=False)


def normalised(H: int) -> Kernel:
    """Products of two sources of different depths, then the rows normalised: row sums, a maximum, broadcasts,
    constants with H."""
    value = add(dot(Dot(Access("h"), "w", H)), dot(Dot(Access("x", 1), "u")))
    mean = mul(at("total", broadcast=True), const(1.0 / H))
    centred = sub(at("value"), mean)
    variance = mul(at("total", 1, broadcast=True), const(1.0 / H))
    scale = Expr(Op.DIV, ONE, Expr(Op.SQRT, add(variance, const(1e-5))))
    below = sub(at("value"), at("total", 2, broadcast=True))
    state = Expr(Op.TANH, add(add(mul(mul(centred, scale), at("gain")), at("gain", 0, broadcast=True)), below))
    folds = (Store(Access("total"), value, Reduce.ROWS), Store(Access("total", 2), value, Reduce.MAX))
    groups = (
        Group(H, (Store(Access("value"), value), *folds)),
        Group(H, (Store(Access("total", 1), mul(centred, centred), Reduce.ROWS),)),
        Group(H, (Store(Access("h", after=True), state), Store(Access("sums", 2), state, Reduce.COLUMNS))),
    )
    buffers = (
        Buffer("h", Kind.STATE, H),
        Buffer("x", Kind.STREAM, 6),
        Buffer("w", Kind.WEIGHT, 2 * H, H),
        Buffer("u", Kind.WEIGHT, H, 5),
        Buffer("gain", Kind.VECTOR, H),
        Buffer("value", Kind.SCRATCH, H),
        Buffer("total", Kind.SCRATCH, 3),
        Buffer("sums", Kind.COLUMN_SUM, H + 3),
    )
    return Kernel("normalised", buffers, groups)


def two_stage(H: int) -> Kernel:
    """A product whose source is another product's result, of another width; a RUNNING state that feeds itself."""
    N = H // 2 + 1
    inner = Expr(Op.MAX, dot(Dot(Access("h"), "w")), at("x"))
    outer = Expr(Op.TANH, add(dot(Dot(Access("inner"), "v")), dot(Dot(Access("h"), "r"))))
    kept = Expr(Op.WHERE, Expr(Op.LT, at("x", broadcast=True), const(0.0)), at("h"), outer)
    groups = (
        Group(N, (Store(Access("inner"), inner),)),
        Group(H, (Store(Access("h"), kept), Store(Access("y"), outer))),
    )
    buffers = (
        Buffer("h", Kind.RUNNING, H),
        Buffer("x", Kind.STREAM, N),
        Buffer("w", Kind.WEIGHT, N, H),
        Buffer("v", Kind.WEIGHT, H, N),
        Buffer("r", Kind.WEIGHT, H, H),
        Buffer("inner", Kind.SCRATCH, N),
        Buffer("y", Kind.STREAM, H),
    )
    return Kernel("two_stage", buffers, groups)


def swapped(H: int) -> Kernel:
    """Stores over what other columns of the group still have to read: halves change places, the state shifts by one."""
    groups = (
        Group(H, (Store(Access("x"), negated(at("x", H))), Store(Access("x", H), negated(at("x"))))),
        Group(H, (Store(Access("x", 1), negated(at("x"))), Store(Access("s"), dot(Dot(Access("s"), "w"))))),
        Group(1, (Store(Access("s"), negated(at("s", H - 1))),)),
    )
    buffers = (Buffer("x", Kind.STREAM, 2 * H), Buffer("s", Kind.RUNNING, H), Buffer("w", Kind.WEIGHT, H, H))
    return Kernel("swapped", buffers, groups)


def delayed(H: int) -> Kernel:
    """Carries that hand their values on: each becomes what the one before it was, and two change places."""
    new = Expr(Op.TANH, add(at("x"), at("oldest")))
    stores = [Store(Access(a, after=True), v) for a, v in (("now", new), ("old", at("now")), ("oldest", at("old")))]
    stores += [Store(Access(a), at(b)) for a, b in (("left", "right"), ("right", "left"))]
    stores.append(Store(Access("y"), add(at("oldest"), at("right"))))
    buffers = (
        *(Buffer(name, Kind.STATE, H) for name in ("now", "old", "oldest")),
        *(Buffer(name, Kind.RUNNING, H) for name in ("left", "right")),
        *(Buffer(name, Kind.STREAM, H) for name in ("x", "y")),
    )
    return Kernel("delayed", buffers, (Group(H, tuple(stores)),))


SHAPES = {
    Kind.STREAM: lambda b, T, B: (T, B, b.width),
    Kind.STATE: lambda b, T, B: (T + 1, B, b.width),
    Kind.RUNNING: lambda b, T, B: (B, b.width),
    Kind.VECTOR: lambda b, T, B: (b.width,),
    Kind.WEIGHT: lambda b, T, B: (b.depth, b.width),
    Kind.COLUMN_SUM: lambda b, T, B: (b.width,),
}


def operands(kernel: Kernel, T: int, B: int, dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """Random tensors for `kernel.arguments`; weights are transposed views, streams and states lie in wider rows."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64).mul_(2).sub_(1).to(dtype)

    tensors = []
    for b in kernel.arguments:
        shape = SHAPES[b.kind](b, T, B)
        if b.kind is Kind.WEIGHT:
            tensors.append(uniform(b.width, b.depth).div_(b.depth**0.5).t())
        elif len(shape) > 1:
            tensors.append(uniform(*shape[:-1], shape[-1] + 5)[..., 2:-3])
        else:
            tensors.append(uniform(*shape))
    return tensors
