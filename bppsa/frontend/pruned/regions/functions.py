"""Functions and methods without parameters as steps on blocked images: one function a kind, in two tables.

Each takes the growing region and the arguments of its node: a tensor is a `RegionValue`, everything else is as it is.
What a kernel cannot do raises Unsupported, and the region ends before that node.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from bppsa.codegen.sparse_conv.window import Window
from bppsa.frontend.pruned.regions.draft import Draft, RegionValue
from bppsa.frontend.pruned.regions.layers import image, own, pair, refuse
from bppsa.frontend.pruned.regions.nodes import format_of
from bppsa.frontend.pruned.regions.pointwise import pointwise
from bppsa.runtime.sparse_conv.pointwise import Dropout
from bppsa.runtime.sparse_conv.pooling import MaxPool, MeanPool, adaptive, average
from bppsa.runtime.sparse_conv.sums import Flatten, ImageSum

LARGEST_POOL = 255  # places of a window, a byte each


def relu(draft: Draft, x: Any, inplace: bool = False) -> RegionValue:
    return draft.rectify(own(x), inplace)


def dropout(draft: Draft, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or p == 0:
        return x
    return drop(draft, x, p, inplace, channels=False)


def dropout2d(draft: Draft, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return drop(draft, image(x), p, inplace, channels=True) if training and p > 0 else x


def drop(draft: Draft, x: Any, p: float, inplace: bool, *, channels: bool) -> RegionValue:
    x = own(x)
    refuse(not 0 < p < 1, f"dropout with p={p}")
    refuse(inplace and not draft.is_own(x), "a change in place of what others read")
    assert draft.node is not None
    layout = torch.contiguous_format if channels else format_of(draft.node)  # PyTorch draws as the tensor lies
    made = draft.node.meta.get("example_value")
    lies_otherwise = not (isinstance(made, Tensor) and made.is_contiguous(memory_format=layout))
    refuse(not channels and lies_otherwise, "dropout of a tensor that is laid out in an order of its own")
    return draft.add(Dropout(p, channels, x.shape.sizes(x.dims), layout), (x,))


def max_pool(
    draft: Draft,
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> RegionValue:
    x = image(x)
    refuse(ceil_mode or return_indices, "ceil_mode or return_indices")
    refuse(math.prod(pair(kernel_size)) > LARGEST_POOL, f"a window of more than {LARGEST_POOL} places")
    return draft.max_pool(x, MaxPool(pooling(x, kernel_size, stride, padding, dilation)))


def pooling(x: RegionValue, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> Window:
    size, sides = (x.shape.height, x.shape.width), (pair(kernel), pair(stride or kernel), pair(padding))
    window = Window(size, *sides, pair(dilation))
    refuse(min(window.out) < 1 or any(2 * p > k for k, _, p in zip(*sides, strict=True)), "a window beyond")
    return window


def avg_pool(
    draft: Draft,
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> RegionValue:
    x = image(x)
    refuse(ceil_mode or divisor_override is not None, "ceil_mode or divisor_override")
    w = pooling(x, kernel_size, stride, padding)
    sides = zip(w.size, w.kernel, w.stride, w.padding, strict=True)
    down, across = (average(*side, count_include_pad) for side in sides)
    return draft.add(MeanPool(w.size, down, across), (x,))


def adaptive_avg_pool(draft: Draft, x: Any, output_size: Any) -> RegionValue:
    x = image(x)
    size = x.shape.height, x.shape.width
    given = (output_size, output_size) if isinstance(output_size, int) or output_size is None else output_size
    down, across = (adaptive(n, n if out is None else out) for n, out in zip(size, given, strict=True))
    return draft.add(MeanPool(size, down, across), (x,))


def mean(draft: Draft, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> RegionValue:
    """Of all places of each channel, which is a pool too."""
    x = image(x)
    dims = dim if isinstance(dim, (tuple, list)) else (dim,)
    of_places = dtype is None and all(isinstance(d, int) for d in dims) and sorted(d % 4 for d in dims) == [2, 3]
    refuse(not of_places, "a mean over other dimensions than height and width")
    pooled = adaptive_avg_pool(draft, x, 1)
    return pooled if keepdim else flatten(draft, pooled, 1)


def add(draft: Draft, a: Any, b: Any, alpha: float = 1) -> RegionValue:
    if not isinstance(a, RegionValue) or not isinstance(b, RegionValue) or alpha != 1:
        return pointwise(draft, "add", torch.add, (a, b), {"alpha": alpha})
    refuse(a.shape != b.shape or a.dims != b.dims, "no sum of two images of one shape")
    return draft.add(ImageSum(relu=False), (a, b))


def add_in_place(draft: Draft, a: Any, b: Any, alpha: float = 1) -> RegionValue:
    refuse(not draft.is_own(a), "a change in place of what others read")
    return add(draft, a, b, alpha)


def flatten(draft: Draft, x: Any, start_dim: int = 0, end_dim: int = -1) -> RegionValue:
    refuse(not isinstance(x, RegionValue) or start_dim != 1 or end_dim not in (-1, x.dims - 1), "not flatten(1)")
    if x.dims == 2:
        return x
    refuse(not draft.reads_alone(x), "a view of what others read")  # who changes one in place changes the other
    out = draft.add(Flatten(), (x,), dims=2)
    if x.number in draft.inputs:  # the caller's
        draft.shared.add(out.number)
    return out


def view(draft: Draft, x: Any, *sizes: Any) -> RegionValue:
    x = own(x)
    sizes = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    flat = x.shape.flat()
    refuse(len(sizes) != 2 or sizes == (-1, -1), "not a view as [B, C * H * W]")
    fits = all(size in (-1, own) for size, own in zip(sizes, (flat.samples, flat.channels), strict=True))
    refuse(not fits, "not a view as [B, C * H * W]")
    return flatten(draft, x, 1)


def contiguous(draft: Draft, x: Any) -> RegionValue:
    """Returns the image itself, since a region lays it out for whoever reads it. Raises where PyTorch would make a copy
    of an image that others read too: they could tell the two apart."""
    copies = not isinstance(draft.source, fx.Node) or not draft.source.meta["example_value"].is_contiguous()
    refuse(copies and not draft.is_own(own(x)), "a copy, in another layout, of what others read")
    return own(x)


def size(draft: Draft, x: Any, dim: int | None = None) -> Any:
    refuse(not isinstance(x, RegionValue), "the size of what is no image")
    sizes = x.shape.sizes(x.dims)
    return sizes if dim is None else sizes[dim]


def attribute(draft: Draft, x: Any, name: str) -> Any:
    refuse(name != "shape", f"the attribute {name}")
    return size(draft, x)


def item(draft: Draft, x: Any, index: Any) -> Any:
    refuse(not isinstance(x, tuple) or not isinstance(index, int), "an index into a tensor")
    return x[index]


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    F.relu: relu,
    F.relu_: lambda draft, x: relu(draft, x, True),
    torch.relu: relu,
    torch.relu_: lambda draft, x: relu(draft, x, True),
    F.dropout: dropout,
    torch.dropout: lambda draft, x, p, train: dropout(draft, x, p, train),
    F.dropout2d: dropout2d,
    F.max_pool2d: max_pool,
    torch.max_pool2d: max_pool,
    F.avg_pool2d: avg_pool,
    F.adaptive_avg_pool2d: adaptive_avg_pool,
    torch.mean: mean,
    operator.add: add,
    torch.add: add,
    operator.iadd: add_in_place,
    torch.flatten: flatten,
    getattr: attribute,
    operator.getitem: item,
}
METHODS: dict[str, Callable[..., Any]] = {
    "contiguous": contiguous,
    "mean": mean,
    "relu": relu,
    "relu_": lambda draft, x: relu(draft, x, True),
    "add": add,
    "add_": add_in_place,
    "flatten": flatten,
    "view": view,
    "reshape": view,
    "size": size,
}
