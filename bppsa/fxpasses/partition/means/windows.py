"""Whether an op that is told no dimension mixes rows: windows over the last dimensions, and ops that nobody listed."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import fx

from bppsa.fxpasses.partition.means.sizes import argument, is_tensor, is_torchs, name_of, size_of

# They treat rows one by one wherever these are. PyTorch's tag of what works value by value says so of most others.
ANYWHERE = frozenset(
    (
        *("matmul", "mm", "bmm", "addmm", "baddbmm", "linear", "einsum", "tensordot", "bilinear", "outer", "cdist"),
        *("type_as", "detach", "detach_", "lift_fresh_copy", "lift_fresh", "repeat", "tile", "broadcast_to", "ravel"),
        *("expand_copy", "squeeze_", "t", "mT", "mH", "adjoint", "real", "imag", "complex", "conj", "view_as_real"),
        *("view_as_complex", "one_hot", "bucketize", "searchsorted", "copy", "copy_", "fill", "fill_", "zero_"),
        *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like"),
        *("zeros", "ones", "full", "empty", "rand", "randn", "randint", "new_zeros", "new_ones", "new_full"),
        *("new_empty", "dropout", "dropout_", "native_dropout", "alpha_dropout", "bernoulli", "bernoulli_", "normal_"),
        *("uniform_", "log_sigmoid", "hardswish", "hardswish_", "prelu", "_prelu_kernel", "rsub", "__and__", "__or__"),
        *("__xor__", "broadcast_tensors", "not_equal", "clip", "isclose", "isreal", "where", "view_as", "rrelu_"),
        *("masked_select", "special_expit", "floor_divide"),
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "poisson_nll_loss", "soft_margin_loss"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits", "margin_ranking_loss", "hinge_embedding_loss"),
    )
)
# They take what is in dimension 0 one by one.
IN_FRONT = frozenset(
    (
        *("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "multi_margin_loss", "multilabel_margin_loss"),
        *("cosine_embedding_loss", "triplet_margin_loss", "pairwise_distance", "multinomial", "feature_dropout"),
        *("group_norm", "native_group_norm", "instance_norm", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
        *("grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "affine_grid_generator", "im2col", "col2im"),
    )
)
WINDOW = re.compile(r"(?:pool|upsample|_pad).*?([123])d")  # and over how many of the last dimensions
CONVOLUTION = re.compile(r"^_?(?:conv\d?d?|convolution|conv_transpose\dd|conv_tbc)$")
PADS = ("pad", "constant_pad_nd")


def mixes_unasked(node: fx.Node, source: fx.Node, at: int) -> bool | None:
    """Whether it mixes the rows that are at a dimension of its first tensor, where no argument tells a dimension; None
    for ops that nobody listed."""
    name, count = name_of(node), len(size_of(source))
    if not is_torchs(node):
        return None
    if CONVOLUTION.match(name):
        return at > 0 or not is_batch(node, count)
    if name in PADS:
        return moves(argument(node, "pad", ()), count - 1 - at)
    window = WINDOW.search(name)
    if window:
        return at >= count - int(window[1])
    if name in ANYWHERE or torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return False
    return at > 0 if name in IN_FRONT else None


def is_batch(node: fx.Node, count: int) -> bool:
    """Whether the input of a convolution, with so many dimensions, has one for a batch."""
    weight: Any = argument(node, "weight", None)
    return isinstance(weight, fx.Node) and is_tensor(weight) and count == len(size_of(weight))


def moves(pad: Any, last: int) -> bool:
    """Whether anything is put before or behind along a dimension, counted from the last one."""
    return any(n != 0 for n in pad[2 * last : 2 * last + 2])
