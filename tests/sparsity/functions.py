"""Rows of samples for the long tail of pointwise ops."""

import torch

from tests.sparsity.samples import ACROSS, DIAG, B, pointwise

aten = torch.ops.aten

REAL = [
    "asinh",
    "atan",
    "celu",
    "cosh",
    "deg2rad",
    "erf",
    "erfc",
    "exp2",
    "frac",
    "hardshrink",
    "i0",
    "mish",
    "nan_to_num",
    "rad2deg",
    "relu6",
    "selu",
    "sinc",
    "sinh",
    "softshrink",
    "special_erfcx",
    "special_i0e",
    "special_i1",
    "special_i1e",
    "special_log_ndtr",
    "square",
    "tan",
]
POSITIVE = ["digamma", "lgamma", "log10", "log2", "special_entr"]
WITHIN_ONE = ["acos", "asin", "atanh", "erfinv", "logit", "special_ndtri"]
TWO = [
    "atan2",
    "clamp_max.Tensor",
    "clamp_min.Tensor",
    "fmax",
    "fmin",
    "hypot",
    "logaddexp",
    "logaddexp2",
    "max.other",
    "min.other",
]
TWO_POSITIVE = ["pow.Tensor_Tensor", "special_xlog1py", "xlogy.Tensor"]


def inside(r):
    """Between 0 and 1."""
    return torch.sigmoid(r(B, 5))


def named(name, make, structures, **kwargs):
    packet, _, overload = name.partition(".")
    return pointwise(packet, make, structures, overload or "default", **kwargs)


FUNCTION_SAMPLES = [
    *(named(name, lambda r: (r(B, 5),), DIAG) for name in REAL),
    *(named(name, lambda r: (r.positive(B, 5),), DIAG) for name in POSITIVE),
    *(named(name, lambda r: (inside(r),), DIAG) for name in WITHIN_ONE),
    named("acosh", lambda r: (r.positive(B, 5) + 1,), DIAG),
    *(named(name, lambda r: (r(B, 5), r(B, 5)), (DIAG, DIAG)) for name in TWO),
    *(named(name, lambda r: (r.positive(B, 5), r.positive(B, 5)), (DIAG, DIAG)) for name in TWO_POSITIVE),
    named("addcdiv", lambda r: (r(B, 5), r(B, 5), r.positive(B, 5)), (DIAG, DIAG, DIAG), value=0.5),
    named("clamp.Tensor", lambda r: (r(B, 5), r(B, 5) - 1, r(B, 5) + 1), (DIAG, DIAG, DIAG)),
    named("copysign.Scalar", lambda r: (r(B, 5), -2.0), DIAG),
    named("div.Tensor_mode", lambda r: (r(B, 5), r.positive(B, 5)), (DIAG, DIAG), rounding_mode=None),
    named("div.Scalar_mode", lambda r: (r(B, 5), 1.7), DIAG, rounding_mode=None),
    *(named(f"{name}.Tensor", lambda r: (r(B, 5), r.positive(B, 5)), (DIAG, DIAG)) for name in ("fmod", "remainder")),
    *(named(f"{name}.Scalar", lambda r: (r(B, 5), 0.7), DIAG) for name in ("fmod", "remainder")),
    named("pow.Scalar", lambda r: (1.7, r(B, 5)), DIAG),
    named("threshold", lambda r: (r(B, 5), 0.1, 2.0), DIAG),
    named("where.ScalarSelf", lambda r: (r.mask(B, 5), 0.5, r(B, 5)), (None, DIAG)),
    named("where.ScalarOther", lambda r: (r.mask(B, 5), r(B, 5), 0.5), (None, DIAG)),
    named("xlogy.Scalar_Other", lambda r: (r(B, 5), 1.7), DIAG),
    named("polygamma", lambda r: (2, r.positive(B, 5)), DIAG),
    named("special_zeta.self_scalar", lambda r: (2.5, r.positive(B, 5)), DIAG),
    named("special_xlog1py.self_scalar", lambda r: (1.7, r.positive(B, 5)), DIAG),
    named("special_xlog1py.other_scalar", lambda r: (r(B, 5), 1.7), DIAG),
    named("xlogy.Scalar_Self", lambda r: (1.7, r.positive(B, 5)), DIAG),
    named("masked_fill.Tensor", lambda r: (r(B, 5), r.mask(B, 5), torch.tensor(0.5).double()), (DIAG, None, ACROSS)),
    named("native_dropout", lambda r: (r(B, 5), 0.4, False), (DIAG, None)),
    named("_prelu_kernel", lambda r: (r(B, 2, 3), r(1, 2, 1)), (DIAG, ACROSS)),
]
