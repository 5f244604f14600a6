"""One row an op: arguments to try a rule on, and the structure of J^T expected for each tensor argument."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bppsa.sparsity.rules.matrix_ops import CHECKED
from bppsa.sparsity.rules.own_gradient import ATTACHED

aten = torch.ops.aten
ID, DIAG, DENSE, BLOCK, SPARSE, ACROSS = "identity", "diagonal", "dense", "block-diagonal", "sparse", "across rows"
B = 3
PLAIN = (None, None, True, 0.1, 1e-5, False)  # an instance norm without running statistics


class Random:
    """r(*shape) is normal, r.positive(*shape) at least 0.1, r.mask(*shape) bool; all float64, from a seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def positive(self, *shape: int) -> Tensor:
        return self(*shape).abs() + 0.1

    def mask(self, *shape: int) -> Tensor:
        return self(*shape) > 0


@dataclass
class Sample:
    op: Any
    make: Any  # Random -> arguments
    structures: str | tuple[Any, ...]  # for each output, each tensor argument: a structure, or None for no gradient
    kwargs: dict[str, Any] = field(default_factory=dict)
    rtol: float = 1e-12
    narrow: torch.dtype = torch.bfloat16  # that PyTorch has it in

    def __str__(self) -> str:
        return str(self.op)

    def expected(self) -> list[str | None]:
        return [self.structures] if isinstance(self.structures, str) else list(self.structures)


def pointwise(name, make=lambda r: (r(B, 5),), structures=DIAG, overload="default", rtol=1e-12, **kwargs) -> Sample:
    return Sample(getattr(getattr(aten, name), overload), make, structures, kwargs, rtol)


def two(r):
    return r(B, 2, 3), r(B, 2, 3)


def one_and_number(r):
    return r(B, 5), 1.7


def three(r):
    return r(B, 5), r(B, 5), r(B, 5)


def masks(r):
    return r.mask(B, 5), r.mask(B, 5)


def conv(
    x, weight, stride=(1,), padding=(0,), dilation=(1,), transposed=False, output_padding=(0,), groups=1, bias=True
) -> Sample:
    """x and weight are shapes; the rest as ATen takes it."""
    outs = weight[1] * groups if transposed else weight[0]
    rest = [*map(list, (stride, padding, dilation)), transposed, list(output_padding), groups]

    def make(r):
        return r(B, *x), r(*weight), r(outs) if bias else None, *rest

    return Sample(aten.convolution.default, make, (SPARSE, ACROSS, *((ACROSS,) if bias else ())))


ROW_SAMPLES = [
    *map(pointwise, ("neg", "abs", "exp", "expm1", "sin", "cos", "tanh", "sigmoid", "silu", "gelu")),
    *map(pointwise, ("relu", "hardtanh", "hardswish", "elu", "leaky_relu", "softplus")),
    *(pointwise(name, lambda r: (r.positive(B, 5),)) for name in ("log", "log1p", "sqrt", "rsqrt", "reciprocal")),
    pointwise("hardsigmoid"),
    pointwise("gelu", approximate="tanh"),
    pointwise("elu", lambda r: (r(B, 5), 1.3, 0.7, 1.1)),
    pointwise("leaky_relu", lambda r: (r(B, 5), 0.3)),
    pointwise("softplus", lambda r: (r(B, 5) * 3, 2.0, 1.5)),
    pointwise("hardtanh", lambda r: (r(B, 5), 0.0, 6.0)),
    *(pointwise("pow", lambda r, p=p: (r.positive(B, 5), p), overload="Tensor_Scalar") for p in (1, 2, 3, 0.5, -1.5)),
    pointwise("pow", lambda r: (r(B, 5), 0), (None,), overload="Tensor_Scalar"),
    pointwise("clamp", lambda r: (r(B, 5), -0.5, 0.5)),
    pointwise("clamp", min=-0.5),
    pointwise("clamp", max=0.5),
    pointwise("clamp_min", lambda r: (r(B, 5), -0.5)),
    pointwise("clamp_max", lambda r: (r(B, 5), 0.5)),
    pointwise("log_sigmoid_forward", structures=(DIAG, None)),
    pointwise("add", two, (ID, ID), "Tensor"),
    pointwise("add", two, (ID, DIAG), "Tensor", alpha=2.5),
    pointwise("add", one_and_number, ID, "Tensor"),
    pointwise("add", lambda r: (1.7, r(B, 5)), DIAG, "Tensor", alpha=3),
    pointwise("add", one_and_number, ID, "Scalar"),
    pointwise("sub", two, (ID, DIAG), "Tensor"),
    pointwise("sub", one_and_number, ID, "Scalar"),
    pointwise("rsub", two, (DIAG, ID), "Tensor"),
    pointwise("rsub", one_and_number, DIAG, "Scalar", alpha=2),
    pointwise("mul", two, (DIAG, DIAG), "Tensor"),
    pointwise("mul", one_and_number, DIAG, "Tensor"),
    pointwise("mul", one_and_number, DIAG, "Scalar"),
    pointwise("mul", lambda r: (1.7, r(B, 5)), DIAG, "Tensor"),
    pointwise("div", two, (DIAG, DIAG), "Tensor"),
    pointwise("div", one_and_number, DIAG, "Tensor"),
    pointwise("div", one_and_number, DIAG, "Scalar"),
    pointwise("div", lambda r: (1.7, r(B, 5)), DIAG, "Tensor"),
    pointwise("maximum", two, (DIAG, DIAG)),
    pointwise("minimum", two, (DIAG, DIAG)),
    pointwise("addcmul", three, (ID, DIAG, DIAG)),
    pointwise("addcmul", three, (ID, DIAG, DIAG), value=0.5),
    Sample(ATTACHED, three, (ID, DIAG, None)),
    Sample(CHECKED, lambda r: (r(B, 5),), (ID,)),
    pointwise("lerp", three, (DIAG, DIAG, DIAG), "Tensor"),
    pointwise("lerp", lambda r: (r(B, 5), r(B, 5), 0.3), (DIAG, DIAG), "Scalar"),
    pointwise("where", lambda r: (r.mask(B, 5), r(B, 5), r(B, 5)), (None, DIAG, DIAG), "self"),
    pointwise("masked_fill", lambda r: (r(B, 5), r.mask(B, 5), 0.5), (DIAG, None), "Scalar"),
    *(pointwise(name, two, (None, None), "Tensor") for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(pointwise(name, one_and_number, (None,), "Scalar") for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(pointwise(name, two, (None, None)) for name in ("logical_and", "logical_or", "logical_xor")),
    *(pointwise(name, masks, (None, None), "Tensor") for name in ("bitwise_and", "bitwise_or", "bitwise_xor")),
    pointwise("bitwise_not", lambda r: (r.mask(B, 5),), (None,)),
    *(pointwise(name, structures=(None,)) for name in ("logical_not", "isnan", "sign", "floor", "ceil", "round")),
    *(pointwise(name, structures=(None,)) for name in ("trunc", "zeros_like", "ones_like", "detach")),
    pointwise("full_like", one_and_number, (None,)),
    pointwise("new_zeros", lambda r: (r(B, 5), [B, 2]), (None,)),
    pointwise("new_empty", lambda r: (r(B, 5), [B, 2]), (None,)),
    pointwise("new_ones", lambda r: (r(B, 5), [B, 2]), (None,)),
    pointwise("new_full", lambda r: (r(B, 5), [B, 2], 1.7), (None,)),
    *(pointwise(name, lambda r: ([B, 5],), ()) for name in ("zeros", "ones")),
    pointwise("full", lambda r: ([B, 5], 1.7), ()),
    pointwise("scalar_tensor", lambda r: (1.7,), ()),
    *map(pointwise, ("atan", "sinh", "cosh", "asinh", "exp2")),
    pointwise("atanh", lambda r: (torch.tanh(r(B, 5)),)),
    *(pointwise(name, two, (DIAG, DIAG)) for name in ("fmax", "fmin", "hypot", "atan2", "logaddexp")),
    pointwise("copysign", two, (DIAG, None), "Tensor"),
    pointwise("copysign", lambda r: (r(B, 5), -1.0), DIAG, "Scalar"),
    *(pointwise(name, structures=(None,)) for name in ("isinf", "signbit")),
    # matrix products
    Sample(aten.mm.default, lambda r: (r(B, 5), r(5, 7)), (DENSE, ACROSS)),
    Sample(aten.addmm.default, lambda r: (r(7), r(B, 5), r(5, 7)), (ACROSS, DENSE, ACROSS)),
    Sample(aten.addmm.default, lambda r: (r(B, 7), r(B, 5), r(5, 7)), (ID, DENSE, ACROSS)),
    Sample(aten.addmm.default, lambda r: (r(B, 7), r(B, 5), r(5, 7)), (DIAG, DENSE, ACROSS), {"beta": 0.5, "alpha": 2}),
    Sample(aten.addmm.default, lambda r: (r(1, 7), r(B, 5), r(5, 7)), (ACROSS, DENSE, ACROSS), {"beta": 0.5}),
    Sample(aten.linear.default, lambda r: (r(B, 4, 5), r(7, 5), r(7)), (BLOCK, ACROSS, ACROSS)),
    Sample(aten.linear.default, lambda r: (r(B, 2, 3, 2), r(3, 2)), (BLOCK, ACROSS)),
    Sample(aten.t.default, lambda r: (r(5, 7),), ACROSS),
    Sample(aten.instance_norm.default, lambda r: (r(B, 2, 3), r(2), r(2), *PLAIN), (BLOCK, ACROSS, ACROSS)),
    Sample(
        aten._native_batch_norm_legit.no_stats,
        lambda r: (r(B, 2, 3), r(2), r(2), True, 0.1, 1e-5),
        (*(ACROSS,) * 3, *(None,) * 6),
    ),
    Sample(aten.instance_norm.default, lambda r: (r(B, 2, 2, 2), None, None, *PLAIN), BLOCK),
    # copies and reshapes
    Sample(aten.view.default, lambda r: (r(B, 6), [B, 3, 2]), ID),
    Sample(aten.view.default, lambda r: (r(B, 2, 5), [2 * B, 5]), ACROSS),
    Sample(aten._unsafe_view.default, lambda r: (r(B, 3, 2), [B, 6]), ID),
    Sample(aten.reshape.default, lambda r: (r(B, 3, 2), [B, 6]), ID),
    Sample(aten.unsqueeze.default, lambda r: (r(B, 5), 1), ID),
    Sample(aten.unsqueeze.default, lambda r: (r(B, 5), 0), ACROSS),
    Sample(aten.squeeze.default, lambda r: (r(B, 1, 5),), ID),
    Sample(aten.squeeze.dim, lambda r: (r(B, 1, 5), 1), ID),
    Sample(aten.squeeze.dims, lambda r: (r(B, 1, 5, 1), [1, 3]), ID),
    Sample(aten.clone.default, lambda r: (r(B, 5),), ID),
    Sample(aten.alias.default, lambda r: (r(B, 5),), ID),
    Sample(aten._to_copy.default, lambda r: (r(B, 5),), ID),
    Sample(aten._to_copy.default, lambda r: (r(B, 5),), ID, {"dtype": torch.float32}, rtol=1e-6),
    Sample(aten._to_copy.default, lambda r: (r.mask(B, 5),), (None,), {"dtype": torch.float64}),
    Sample(aten.permute.default, lambda r: (r(B, 2, 3, 5), [0, 3, 1, -2]), SPARSE),
    Sample(aten.permute.default, lambda r: (r(B, 5), [1, 0]), ACROSS),
    Sample(aten.transpose.int, lambda r: (r(B, 2, 3), 1, -1), SPARSE),
    Sample(aten.transpose.int, lambda r: (r(B, 2, 3), 0, 1), ACROSS),
    Sample(aten.expand.default, lambda r: (r(B, 1, 5), [-1, 3, 5]), SPARSE),
    Sample(aten.expand.default, lambda r: (r(B, 1), [B, 5]), SPARSE),
    Sample(aten.expand.default, lambda r: (r(B, 5), [B, 5]), ID),
    Sample(aten.expand.default, lambda r: (r(5), [B, 5]), ACROSS),
    Sample(aten.expand.default, lambda r: (r(), [B, 5]), ACROSS),
    # pieces
    Sample(aten.slice.Tensor, lambda r: (r(B, 7), 1, 2, 5), SPARSE),
    Sample(aten.slice.Tensor, lambda r: (r(B, 7), -1, None, -2), SPARSE),
    Sample(aten.slice.Tensor, lambda r: (r(B, 2, 7), 2, 1, 2**63 - 1, 3), SPARSE),
    Sample(aten.slice.Tensor, lambda r: (r(B, 7), 0, 0, 2**63 - 1), ID),
    Sample(aten.slice.Tensor, lambda r: (r(B, 7), 0, 1, 2), ACROSS),
    Sample(aten.select.int, lambda r: (r(B, 3, 5), 1, -1), SPARSE),
    Sample(aten.select.int, lambda r: (r(B, 3, 5), 0, 1), ACROSS),
    Sample(aten.split.Tensor, lambda r: (r(B, 7), 3, 1), (SPARSE, SPARSE, SPARSE)),
    Sample(aten.split.Tensor, lambda r: (r(B, 7), 2), (ACROSS, ACROSS)),
    Sample(aten.split_with_sizes.default, lambda r: (r(B, 7, 2), [1, 4, 2], 1), (SPARSE, SPARSE, SPARSE)),
    Sample(aten.unbind.int, lambda r: (r(B, 2, 3), -2), (SPARSE, SPARSE)),
    Sample(aten.cat.default, lambda r: ([r(B, 2), r(B, 5), r(B, 1)], -1), (SPARSE, SPARSE, SPARSE)),
    Sample(aten.cat.default, lambda r: ([r(B, 2), r(1, 2)],), (ACROSS, ACROSS)),
    Sample(aten.stack.default, lambda r: ([r(B, 2, 3), r(B, 2, 3)], -2), (SPARSE, SPARSE)),
    Sample(aten.stack.default, lambda r: ([r(B, 2), r(B, 2)],), (ACROSS, ACROSS)),
    # reductions
    Sample(aten.sum.dim_IntList, lambda r: (r(B, 5), [-1]), SPARSE),
    Sample(aten.sum.dim_IntList, lambda r: (r(B, 2, 3, 5), [3, 1], True), SPARSE),
    Sample(aten.sum.dim_IntList, lambda r: (r(B, 5), [0]), ACROSS),
    Sample(aten.sum.default, lambda r: (r(B, 5),), ACROSS),
    Sample(aten.mean.dim, lambda r: (r(B, 2, 5), [1]), SPARSE),
    Sample(aten.mean.dim, lambda r: (r(B, 5), [1], True), SPARSE),
    Sample(aten.mean.default, lambda r: (r(B, 5),), ACROSS),
    Sample(aten.amax.default, lambda r: (r(B, 3), [-1]), SPARSE),
    Sample(aten.amin.default, lambda r: (r(B, 3, 2), [1], True), SPARSE),
    Sample(aten.var.correction, lambda r: (r(B, 5), [1]), SPARSE),
    Sample(aten.var.correction, lambda r: (r(B, 5, 2), [1]), SPARSE, {"correction": 0, "keepdim": True}),
    Sample(aten.std.correction, lambda r: (r(B, 5), [1]), SPARSE, {"correction": 0}),
    Sample(aten.var_mean.correction, lambda r: (r(B, 5), [1]), (SPARSE, SPARSE), {"correction": 0, "keepdim": True}),
    Sample(aten._softmax.default, lambda r: (r(B, 5), -1, False), DENSE),
    Sample(aten._softmax.default, lambda r: (r(B, 2, 5), -1, False), BLOCK),
    Sample(aten._softmax.default, lambda r: (r(B, 2, 5), 1, False), SPARSE),
    Sample(aten._softmax.default, lambda r: (r(B, 5), 0, False), ACROSS),
    Sample(aten._log_softmax.default, lambda r: (r(B, 5), 1, False), DENSE),
    Sample(aten.max.dim, lambda r: (r(B, 3, 2), 1), (SPARSE, None)),
    Sample(aten.min.dim, lambda r: (r(B, 3, 2), -1, True), (SPARSE, None)),
    Sample(aten.max.dim, lambda r: (r(B, 3), 0), (ACROSS, None)),
    Sample(aten.logsumexp.default, lambda r: (r(B, 3, 2), [1], True), SPARSE),
    Sample(aten.linalg_vector_norm.default, lambda r: (r(B, 3, 2), 2, [1]), SPARSE),
    Sample(aten.glu.default, lambda r: (r(B, 4, 2), 1), SPARSE),
    Sample(aten.glu.default, lambda r: (r(4, 3), 0), ACROSS),
    # convolutions
    conv((2, 5, 4), (3, 2, 3, 3), padding=(1,)),
    conv((2, 5, 4), (3, 2, 2, 3), stride=(2, 1), padding=(0, 1), dilation=(2, 1), bias=False),
    conv((4, 5, 5), (6, 2, 3, 3), stride=(2,), padding=(1,), groups=2),
    conv((3, 4, 4), (3, 1, 3, 3), padding=(1, 1), groups=3),
    conv((3, 2, 2), (4, 3, 1, 1), stride=(2,)),
    conv((2, 8), (3, 2, 3), stride=(3,), padding=(2,)),
    conv((1, 3, 3, 4), (2, 1, 2, 3, 2), stride=(1, 1, 2), padding=(0, 1, 0), bias=False),
    conv((2, 3, 3), (2, 3, 3, 2), stride=(2,), padding=(1, 0), transposed=True, output_padding=(1, 0)),
    conv((4, 3, 3), (4, 2, 2, 3), dilation=(2, 1), transposed=True, output_padding=(1, 0), groups=2),
    conv((2, 5), (2, 1, 3), stride=(2,), padding=(1,), transposed=True),
]
