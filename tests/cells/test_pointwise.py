"""Every pointwise op of the carry that has a derivative: a cell of it fuses and is differentiated by its own rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.breadth import alternate
from tests.cells.support import H, fuses, h, random, squashed, x

W, V, SLOPE = random(H, H), random(H), torch.full((H,), 0.25, dtype=torch.float64, requires_grad=True)
TARGET = torch.linspace(0.1, 0.9, H, dtype=torch.float64)
PRELU = nn.PReLU(H).double()


# What a researcher may write; the second line of each pair is another spelling of the first.
def classes(h: Tensor) -> Tensor:
    return (h[:, 0] > 0).long() + 1


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "sin": torch.sin,
    "cos": lambda h: h.cos(),
    "tan": torch.tan,
    "asin": lambda h: torch.asin(0.9 * h),
    "acos": lambda h: (0.9 * h).arccos(),
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh,
    "acosh": lambda h: torch.acosh(1.5 + h * h),
    "atanh": lambda h: torch.atanh(0.9 * h),
    "exp2": torch.exp2,
    "exp2, special": torch.special.exp2,
    "2 ** h": lambda h: 2**h,
    "log2": lambda h: torch.log2(1.5 + h),
    "log10": lambda h: torch.log10(1.5 + h),
    "log1p": lambda h: torch.log1p(h * h),
    "expm1": torch.special.expm1,
    "logsigmoid": functional.logsigmoid,
    "logsigmoid, module": nn.LogSigmoid(),
    "erf": torch.erf,
    "gelu": functional.gelu,
    "gelu, tanh": lambda h: functional.gelu(h, approximate="tanh"),
    "quick gelu": lambda h: h * torch.sigmoid(1.702 * h),
    "pow 1.7": lambda h: (2 + h) ** 1.7,
    "pow 4": lambda h: h.pow(4),
    "pow -3": lambda h: (2 + h) ** -3,
    "pow 0": lambda h: h**0 * h,
    "modrelu": lambda h: functional.relu(h.abs() + V) * torch.sign(h),
    "square": torch.square,
    "floor": lambda h: h - torch.floor(3 * h) / 3,
    "ceil": lambda h: h - (3 * h).ceil() / 3,
    "round": lambda h: h + torch.round(3 * h) / 3,
    "trunc": lambda h: h + torch.trunc(3 * h),
    "frac": lambda h: torch.frac(3 * h),
    "straight through": lambda h: h + (torch.round(4 * h) / 4 - h).detach(),
    "fmod": lambda h: torch.fmod(3 * h, 0.7),
    "remainder": lambda h: torch.remainder(3 * h, 0.7),
    "%": lambda h: (3 * h) % 0.7,
    "fmod of two": lambda h: torch.fmod(3 * h, V),
    "remainder of two": lambda h: torch.remainder(3 * h, V),
    "div floor": lambda h: h + torch.div(3 * h, 0.7, rounding_mode="floor"),
    "sign": lambda h: h * torch.sign(h + 0.1),
    "sgn": lambda h: h + torch.sgn(h),
    "clamp by tensors": lambda h: torch.clamp(h, -V.abs(), V.abs()),
    "clamp by tensors, method": lambda h: h.clamp(min=-V.abs()),
    "clip": lambda h: torch.clip(h, -0.5, 0.5),
    "prelu": PRELU,
    "prelu, function": lambda h: functional.prelu(h, SLOPE),
    "celu": functional.celu,
    "selu": functional.selu,
    "softsign": functional.softsign,
    "softsign, written out": lambda h: h / (1 + h.abs()),
    "hardswish": functional.hardswish,
    "relu6": functional.relu6,
    "mish": functional.mish,
    "tanhshrink": functional.tanhshrink,
    "softshrink": functional.softshrink,
    "lerp": lambda h: torch.lerp(h, V, 0.3),
    "lerp by a tensor": lambda h: h.lerp(V.expand_as(h), torch.sigmoid(h)),
    "addcmul": lambda h: torch.addcmul(h, h, V, value=0.5),
    "addcdiv": lambda h: torch.addcdiv(h, h, 2 + h * h),
    "hypot": lambda h: torch.hypot(h, V),
    "atan2": lambda h: torch.atan2(h, V),
    "logaddexp": lambda h: torch.logaddexp(h, V),
    "logaddexp, written out": lambda h: torch.maximum(h, V) + torch.log1p(torch.exp(-(h - V).abs())),
    "pow of two": lambda h: (2 + h) ** V,
    "0.9 to the power of h": lambda h: torch.pow(0.9, h),
    "xlogy": lambda h: torch.xlogy(h, 2 + h),
    "fmax": lambda h: torch.fmax(h, V),
    "max of two": lambda h: torch.max(h, V),
    "copysign": lambda h: torch.copysign(h, V.detach()),
    "nan_to_num": lambda h: torch.nan_to_num(h, 0.0, 1.0, -1.0),
    "sinc-like": lambda h: torch.where(h == 0, 1.0, torch.sin(h) / h),
    "logit": lambda h: torch.logit(torch.sigmoid(h)),
    "rsqrt": lambda h: torch.rsqrt(1 + h * h),
    "isnan": lambda h: torch.where(torch.isnan(h) | torch.isinf(h), 0.0, h),
    "xor": lambda h: torch.where((h > 0) ^ (V > 0), h, -h),
    "rounded to decimals": lambda h: h * torch.round(9 * h, decimals=1) + torch.round(99 * h, decimals=-1),
    "logaddexp2": lambda h: torch.logaddexp2(h, V),
    "angle": lambda h: h + torch.angle(h),
    "entropy": lambda h: torch.special.entr(1.5 + h),
    "erfc and its inverses": lambda h: (
        torch.erfc(h) + torch.special.erfcx(h) + torch.erfinv(0.9 * h) + torch.special.ndtri((2 + h) / 4)
    ),
    "normal distribution": lambda h: torch.special.ndtr(h) - torch.special.log_ndtr(2 * h),
    "gamma functions": lambda h: (
        torch.lgamma(2 + h) + torch.special.psi(2 + h) + torch.special.multigammaln(3 + h, 2) / 9
    ),
    "polygamma": lambda h: torch.polygamma(2, 2 + h) + torch.special.zeta(2.5, 2 + h),
    "bessel": lambda h: (
        torch.special.i0(h) * torch.special.i1(3 * h) + torch.special.i0e(h) - torch.special.i1e(20 * h)
    ),
    "log of the rest": lambda h: torch.special.xlog1py(h, h) + torch.special.xlog1py(0.3, h * h),
    "truth values as numbers in single precision": lambda h: h * (h > 0).float() - (h > 0.5).to(torch.float16) + h,
    "converted and moved": lambda h: h * (h > 0).float().view(-1, 2, H // 2).transpose(1, 2).to(h.dtype).flatten(1),
    "of a row": lambda h: h * (h.sum(1) > 0).float()[:, None] + (h > 0.2).half().to(h).expand(-1, H),
    "what is left of them": lambda h: h * (1 - (h > 0).float()) + V * (2 * (h > 0.3).float() - 1),
    "signbit": lambda h: torch.where(torch.signbit(h), h, 0.5 * h),
    "ldexp": lambda h: torch.ldexp(h, TARGET.sign()) + torch.ldexp(V, h),
    "squared error": lambda h: functional.mse_loss(h, V.expand_as(h), reduction="none"),
    "absolute error": lambda h: functional.l1_loss(h, TARGET.expand_as(h), reduction="none"),
    "smooth error": lambda h: functional.smooth_l1_loss(h, TARGET.expand_as(h), reduction="none", beta=0.4),
    "huber's error": lambda h: functional.huber_loss(h, V.expand_as(h), reduction="none", delta=0.4),
    "cross entropy of two": lambda h: functional.binary_cross_entropy(
        torch.sigmoid(h), torch.sigmoid(V).expand_as(h), TARGET, reduction="none"
    ),
    "cross entropy of two, at its bounds": lambda h: functional.binary_cross_entropy(
        torch.where(h > 0.5, 1.0, torch.sigmoid(h)), TARGET.expand_as(h), reduction="none"
    ),
    "cross entropy of logits": lambda h: functional.binary_cross_entropy_with_logits(
        h, TARGET.expand_as(h), TARGET, reduction="none", pos_weight=2 * TARGET
    ),
    "cross entropy of classes": lambda h: h * functional.cross_entropy(h, classes(h), reduction="none").unsqueeze(1),
    "cross entropy of classes, weighted and smoothed": lambda h: (
        h
        * functional.cross_entropy(
            *(h, classes(h), TARGET), ignore_index=2, label_smoothing=0.1, reduction="none"
        ).unsqueeze(1)
    ),
    "likelihood of classes on a grid": lambda h: (
        h + functional.nll_loss(h.view(-1, 2, 3), (h[:, :3] > 0).long(), reduction="none").repeat(1, 2)
    ),
    "soft margin": lambda h: functional.soft_margin_loss(h, TARGET.sign().expand_as(h), reduction="none"),
    "glu of halves": lambda h: torch.cat([h, h], 1)[:, :H] * torch.sigmoid(h),
}


@pytest.mark.parametrize("name", alternate(UNARY))
def test_of_the_carry(name: str) -> None:
    torch.manual_seed(0)
    f = UNARY[name]
    fuses(squashed(lambda h, x: f(torch.tanh(h @ W + x))), h(), x(H), W, V, SLOPE, *PRELU.parameters())
