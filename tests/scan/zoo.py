"""Cells of many shapes, each with operands and the tensors it closes over: what scan, the passes and codegen are
tested on.

Letters: B rows, I features of x, H of the carry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from bppsa import cells

T, B, I, H = 5, 3, 4, 6  # noqa: E741


class Example(NamedTuple):
    """`cell(carry, x_t)`; xs: a pytree of [T, B, ...]."""

    cell: Callable[[Any, Any], tuple[Any, Any]]
    carry: Any
    xs: Any
    parameters: list[Tensor]


def example(
    cell: Callable[..., Any], carry: Any, xs: Any, *parameters: Tensor, modules: tuple[nn.Module, ...] = ()
) -> Example:
    return Example(cell, carry, xs, [*parameters, *(p for module in modules for p in module.parameters())])


def random(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = True) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=grad)


def x(width: int = I) -> Tensor:
    return random(T, B, width)


def h(width: int = H) -> Tensor:
    return random(B, width)


def vanilla() -> Example:
    w, u, b = random(I, H), random(H, H), random(H)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x @ w + h @ u + b)
        return h, h

    return example(cell, h(), x(), w, u, b)


def gru() -> Example:
    cell = nn.GRUCell(I, H).double()
    return example(lambda h, x: (cell(x, h),) * 2, h(), x(), modules=(cell,))


def lstm() -> Example:
    module = nn.LSTMCell(I, H).double()

    def cell(state: tuple[Tensor, Tensor], x: Tensor) -> tuple[Any, Tensor]:
        state = module(x, state)
        return state, state[0]

    return example(cell, (h(), h()), x(), modules=(module,))


def joined() -> Example:
    """One product of [x, h], as many write it."""
    linear = nn.Linear(I + H, H).double()

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(linear(torch.cat([x, h], 1)))
        return h, torch.sigmoid(h)

    return example(cell, h(), x(), modules=(linear,))


def two_products() -> Example:
    """The second product waits for the first: two levels."""
    w, u, v = random(I, H), random(H, H), random(H, H)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        reset = torch.sigmoid(x @ w + h @ u)
        new = torch.tanh(x @ w + (reset * h) @ v)
        h = reset * h + (1 - reset) * new
        return h, {"h": h, "reset": reset}

    return example(cell, h(), x(), w, u, v)


def layer_norm() -> Example:
    cell = cells.LayerNormLSTM(I, H).double()
    return example(cell, (h(), h()), x(), modules=(cell,))


def resets() -> Example:
    cell = cells.ResetGRU(I, H).double()
    return example(cell, h(), (x(), torch.rand(T, B) < 0.4), modules=(cell,))


def diagonal() -> Example:
    cell = cells.MinGRU(I, H).double()
    return example(cell, h(), x(), modules=(cell,))


def rectified() -> Example:
    cell = cells.IndRNN(I, H).double()
    return example(cell, h(), x(), modules=(cell,))


def tail() -> Example:
    """Work on the outputs that no next step needs, some of it with x, and none that a kernel could do."""
    w, u = random(I, H), random(H, H)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        new = torch.tanh(h + x @ w)
        return new, (torch.log_softmax(new @ u, 1) + x @ w, h)

    return example(cell, h(), x(), w, u)


def hoisted() -> Example:
    """A layer of its own on x, before the loop, and a normalisation of what it gives."""
    encoder = nn.Sequential(nn.Linear(I, 2 * H), nn.SiLU(), nn.Linear(2 * H, H), nn.LayerNorm(H)).double()

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(0.9 * h + encoder(x))
        return h, h

    return example(cell, h(), x(), modules=(encoder,))


def gathered() -> Example:
    """Containers, slices, a column that meets all others, rows without columns, a carry that is passed on."""
    w, u, gain, scale = (
        random(I, H),
        random(H, 1),
        random(H),
        torch.tensor(0.3, dtype=torch.float64, requires_grad=True),
    )

    def cell(state: dict[str, Tensor], x: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[Tensor]]:
        a, b, count = state["a"], state["b"], state["count"]
        gate = torch.sigmoid(b @ u)
        left, right = a.chunk(2, 1)
        new = gate * torch.cat([right, left], 1) * gain + functional.softplus(x["u"] @ w) * scale
        count = 0.5 * count + new.sum(1)
        return {"a": new, "b": a * torch.tanh(count).unsqueeze(1), "count": count}, [b[:, 1:3], count, x["u"]]

    return example(cell, {"a": h(), "b": h(), "count": random(B)}, {"u": x()}, w, u, gain, scale)


def stopped() -> Example:
    """Gradients stop at a detach and within a no_grad block; a mask that the cell owns."""
    w, u, mask = random(I, H), random(H), torch.arange(H) % 2 == 0

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            gate = torch.sigmoid(h)
        h = torch.where(mask, torch.tanh(h.detach() * 0.5 + h * u + x @ w), gate * h)
        return h, h.detach() * (x @ w)

    return example(cell, h(), x(), w, u)


def clipped() -> Example:
    """Pointwise ops with corners, and comparisons."""
    w, u = random(I, H), random(H, H)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        z = x @ w + functional.leaky_relu(h, 0.2) @ u
        kept = torch.where((z > 0) & ~(h < -0.5), functional.elu(z), torch.clamp(z, -1, 0.5))
        h = torch.maximum(kept, h.abs() - 1) / (1 + z * z)
        return h, functional.hardtanh(z) * torch.minimum(functional.hardswish(h), kept)

    return example(cell, h(), x(), w, u)


def swapped() -> Example:
    """Carries that change places: a state that the next step reads is another's."""
    w = random(I, H)
    return example(lambda s, x: ((s[1], 0.5 * s[0] + x @ w, s[0]), s[2]), (h(), h(), h()), x(), w)


CASES: tuple[Callable[[], Example], ...] = (
    vanilla,
    gru,
    lstm,
    joined,
    two_products,
    layer_norm,
    resets,
    diagonal,
    rectified,
    tail,
    hoisted,
    gathered,
    stopped,
    clipped,
    swapped,
)
# Those that are also compiled: a build takes a second, so as few as cover what kernels are made of.
NATIVE = (gru, lstm, two_products, layer_norm, resets, gathered, clipped)


def make(case: Callable[[], Example], seed: int = 0) -> Example:
    torch.manual_seed(seed)
    return case()
