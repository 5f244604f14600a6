"""torch.autograd.Functions as users write them, and what makes a scan of them or leaves them to PyTorch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SHARPNESS = 2.0
calls: list[str] = []


def slope(u: Tensor) -> Tensor:
    return 1 / (1 + (math.pi / 2 * SHARPNESS * u).pow_(2))


class Spike(torch.autograd.Function):
    """One where u > 0; others here have another gradient."""

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return (u > 0).to(u.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (u,) = ctx.saved_tensors
        return slope(u) * g.clone() if ctx.needs_input_grad[0] else None


class Written(torch.autograd.Function):
    """As SpyTorch spells a spike: ones are written into zeros, at a mask."""

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        out = torch.zeros_like(u)
        out[u > 0] = 1.0
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (u,) = ctx.saved_tensors
        return g.clone() / (10.0 * torch.abs(u) + 1.0) ** 2


class Chosen(Spike):
    """Of one of several shapes, as a library has them; an unknown one is an error."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * shaped(ctx.saved_tensors[0], 1)


def shaped(u: Tensor, kind: int) -> Tensor:
    if kind == 1:
        return 1 / (1 + (torch.pi * u) ** 2)
    raise ValueError(f"no shape {kind}")


class Boxed(torch.autograd.Function):
    @staticmethod
    def forward(u: Tensor, width: float) -> Tensor:
        return torch.round(u)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.width = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (u,) = ctx.saved_tensors
        return -g.masked_fill(u.abs() > ctx.width, 0.0) / 2, None


class Skewed(torch.autograd.Function):
    """Two inputs, of each another gradient than the product's; the same one twice adds up."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(u, v)
        return u * v

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        u, v = ctx.saved_tensors
        return g * v * 2, torch.where(u > 0, g * u, torch.zeros_like(g)) + g


class Weighted(Skewed):
    """What is no tensor stands before a tensor and behind it, and one of the tensors has no gradient."""

    @staticmethod
    def forward(ctx: Any, weight: float, u: Tensor, name: str, by: Tensor, v: Tensor) -> Tensor:
        ctx.weight, ctx.by = weight, by
        return Skewed.forward(ctx, u, v)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        u, v = ctx.saved_tensors
        return None, g * v * ctx.weight, None, None, g * u * ctx.by


class Masked(Spike):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (u,) = ctx.saved_tensors
        g = g.clone()
        g[u.abs() > 1] = 0
        return g


class Clipped(Spike):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.clamp(-0.01, 0.01)


class Shifted(Spike):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g + ctx.saved_tensors[0]


class OfRow(Spike):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.flip(1)


class Filled(Spike):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.masked_fill(ctx.saved_tensors[0] > 0, 1.0)


class Set(Spike):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        g = g.clone()
        g[ctx.saved_tensors[0].abs() > 1] = 0.5
        return g


class Moved(Spike):
    """Each entry of the gradient goes to another one."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        moved = torch.zeros_like(g)
        moved[:, torch.arange(g.shape[1]).flip(0)] = g
        return moved


class OfItsClass(Spike):
    sharpness = 2.0

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (u,) = ctx.saved_tensors
        return g / (OfItsClass.sharpness * u.abs() + 1.0) ** 2


class NotedByItsClass(Spike):
    calls = calls

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        NotedByItsClass.calls.append("backward")
        return g


class Noted(Spike):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        calls.append("backward")
        return g


class Seeding(Spike):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        torch.manual_seed(3)
        return g


class Writing(Spike):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (u,) = ctx.saved_tensors
        return g * u.detach().mul_(2)


class Noisy(Spike):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * torch.rand_like(g)


class Failing(Spike):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * max(1, 1 // (1 + torch._C._current_graph_task_id()))  # by zero outside of a backward


class Once(Spike):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


class Halved(torch.autograd.Function):
    """What it is given, and half the gradient: the result is its input's memory."""

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        return u

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g / 2


class OfItsResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        y = torch.sigmoid(u)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return g * y * (1 - y)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor) -> tuple[Tensor, Tensor]:
        return u.sin(), u.cos()

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> Any:
        return a + 2 * b


class Scaled(torch.autograd.Function):
    """A parameter's gradient is a sum over the batch."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(u, scale)
        return u * scale

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        u, scale = ctx.saved_tensors
        return g * scale, (g * u).sum(0)


USES: dict[str, Any] = {
    "spike": lambda cell, u: Spike.apply(u),
    "written": lambda cell, u: Written.apply(u),
    "chosen": lambda cell, u: Chosen.apply(u),
    "boxed": lambda cell, u: Boxed.apply(u * 3, 2.0).mul_(0.5),
    "of its class": lambda cell, u: OfItsClass.apply(u),
    "masked": lambda cell, u: Masked.apply(u),
    "skewed": lambda cell, u: Skewed.apply(u, torch.tanh(u)),
    "skewed twice": lambda cell, u: Skewed.apply(u, u),
    "weighted": lambda cell, u: Weighted.apply(0.3, u, "u", u.detach(), torch.tanh(u)),
    "spike of a spike": lambda cell, u: Spike.apply(u - Boxed.apply(u, 1.0)),
    "of one another": lambda cell, u: Boxed.apply(Spike.apply(Skewed.apply(u, u)), 1.5),
    "without gradient": lambda cell, u: Spike.apply(u.detach()) + torch.tanh(u),
}
LEFT: dict[str, tuple[Any, str]] = {
    "clipped": (lambda cell, u: Clipped.apply(u), "no product with that of its result"),
    "shifted": (lambda cell, u: Shifted.apply(u), "no product with that of its result"),
    "of a row": (lambda cell, u: OfRow.apply(u), "no product with that of its result"),
    "filled": (lambda cell, u: Filled.apply(u), "no product with that of its result"),
    "moved": (lambda cell, u: Moved.apply(u), "no product with that of its result"),
    "set": (lambda cell, u: Set.apply(u), "no product with that of its result"),
    "writing": (lambda cell, u: Writing.apply(u * 1.0), "changes a tensor in place"),
    "noisy": (lambda cell, u: Noisy.apply(u), "draws random numbers"),
    "noted by its class": (lambda cell, u: NotedByItsClass.apply(u), "may have effects"),
    "noted": (lambda cell, u: Noted.apply(u), "may have effects"),
    "once": (lambda cell, u: Once.apply(u), "has a gradient of its own"),
    "failing": (lambda cell, u: Failing.apply(u), "raises ZeroDivisionError"),
    "halved": (lambda cell, u: Halved.apply(torch.tanh(u)), "has a gradient of its own"),
    "of its result": (lambda cell, u: OfItsResult.apply(u), "has a gradient of its own that reads its result"),
    "two results": (lambda cell, u: sum(Twice.apply(u)), "has a gradient of its own"),
    "scaled": (lambda cell, u: Scaled.apply(torch.tanh(u), cell.scale), "has a gradient of its own"),
}


@torch.library.custom_op("bppsa_tests::cubed", mutates_args=())
def cubed(x: Tensor) -> Tensor:
    return x**3


cubed.register_fake(torch.empty_like)
cubed.register_autograd(
    lambda ctx, g: 3 * g * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
