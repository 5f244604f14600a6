"""Modules and functions as steps on blocked images: one function a kind, in three tables.

Each takes the growing region, the node and its arguments; a tensor is a `Value`, everything else is as it is. What a
kernel cannot do raises Unsupported, and the region ends before that node.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from bppsa._pruned.draft import Draft, Value
from bppsa._pruned.pointwise import pointwise
from bppsa._pruned.rewritten import kind_of
from bppsa._pruned.tracing import has_only_pruning_hooks, has_own_forward
from bppsa.codegen.blocked.window import Pair, Window
from bppsa.errors import Reason, Unsupported
from bppsa.runtime.blocked.norm import BatchNorm
from bppsa.runtime.blocked.pointwise import Dropout
from bppsa.runtime.blocked.pooling import MaxPool, MeanPool, adaptive, average
from bppsa.runtime.blocked.sums import Flatten, Sum

LARGEST_POOL = 255  # places of a window, a byte each


def refuse(condition: bool, what: str, mend: str = "") -> None:
    if condition:
        raise Unsupported(Reason(what, mend=mend))


def pair(value: int | Sequence[int]) -> Pair:
    if isinstance(value, int):
        return value, value
    refuse(len(value) not in (1, 2), f"a size of {len(value)} dimensions")
    return int(value[0]), int(value[-1])


def image(x: Any) -> Value:
    refuse(not isinstance(x, Value) or x.dims != 4, "its input is no batch of images [B, C, H, W]")
    return x


def rows(x: Any) -> Value:
    refuse(not isinstance(x, Value) or x.dims != 2, "its input is not [B, C]")
    return x


# Modules -------------------------------------------------------------------------------------------------------------


def conv(draft: Draft, module: nn.Conv2d, path: str, x: Any) -> Value:
    x = image(x)
    refuse(module.padding_mode != "zeros", f"padding_mode={module.padding_mode!r}")
    padding = padding_of(module)
    size = x.shape.height, x.shape.width
    window = Window(size, pair(module.kernel_size), pair(module.stride), padding, pair(module.dilation))
    refuse(min(window.out) < 1, "the kernel is larger than its input")
    refuse(x.shape.channels != module.in_channels, f"{x.shape.channels} channels come in, not {module.in_channels}")
    return draft.layer("conv2d", path, window, module.out_channels, module.groups, x)


def padding_of(module: nn.Conv2d) -> Pair:
    if not isinstance(module.padding, str):
        return pair(module.padding)
    if module.padding == "valid":
        return 0, 0
    down, across = (d * (k - 1) for d, k in zip(pair(module.dilation), pair(module.kernel_size), strict=True))
    refuse(down % 2 == 1 or across % 2 == 1, "padding='same' that is not the same on both sides")
    return down // 2, across // 2


def linear(draft: Draft, module: nn.Linear, path: str, x: Any) -> Value:
    x = rows(x)
    refuse(x.shape.channels != module.in_features, f"{x.shape.channels} features come in, not {module.in_features}")
    return draft.layer("linear", path, Window((1, 1), (1, 1)), module.out_features, 1, x)


def batch_norm(draft: Draft, module: nn.BatchNorm2d | nn.BatchNorm1d, path: str, x: Any) -> Value:
    x = image(x) if isinstance(module, nn.BatchNorm2d) else rows(x)
    refuse(x.shape.channels != module.num_features, f"{x.shape.channels} channels, not {module.num_features}")
    tracks = module.running_mean is not None
    refuse(tracks != (module.running_var is not None), "one running statistic without the other")
    refuse(tracks and module.training and not module.track_running_stats, "statistics that it does not track")
    return draft.add(BatchNorm(module, path, relu=False), (x,), params=((path, "weight"), (path, "bias")))


def max_pool_module(draft: Draft, module: nn.MaxPool2d, path: str, x: Any) -> Value:
    m = module
    return max_pool(draft, x, m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices)


def avg_pool_module(draft: Draft, module: nn.AvgPool2d, path: str, x: Any) -> Value:
    m = module
    return avg_pool(draft, x, m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, m.divisor_override)


# Functions -----------------------------------------------------------------------------------------------------------


def relu(draft: Draft, x: Any, inplace: bool = False) -> Value:
    refuse(not isinstance(x, Value), "its input is no image")
    return draft.rectify(x, inplace)


def dropout(draft: Draft, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or p == 0:
        return x
    return drop(draft, x, p, inplace, channels=False)


def dropout2d(draft: Draft, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return drop(draft, image(x), p, inplace, channels=True) if training and p > 0 else x


def drop(draft: Draft, x: Any, p: float, inplace: bool, *, channels: bool) -> Value:
    refuse(not isinstance(x, Value), "its input is no image")
    refuse(not 0 < p < 1, f"dropout with p={p}")
    refuse(inplace and not draft.is_own(x), "a change in place of what others read")
    s = x.shape
    return draft.add(Dropout(p, channels, (s.samples, s.channels, s.height, s.width)[: x.dims]), (x,))


def max_pool(
    draft: Draft,
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Value:
    x = image(x)
    refuse(ceil_mode or return_indices, "ceil_mode or return_indices")
    kernel = pair(kernel_size)
    refuse(kernel[0] * kernel[1] > LARGEST_POOL, f"a window of more than {LARGEST_POOL} places")
    size = x.shape.height, x.shape.width
    window = Window(size, kernel, pair(stride or kernel_size), pair(padding), pair(dilation))
    refuse(min(window.out) < 1 or any(2 * p > k for p, k in zip(pair(padding), kernel, strict=True)), "a window beyond")
    return draft.max_pool(x, MaxPool(window))


def avg_pool(
    draft: Draft,
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    x = image(x)
    refuse(ceil_mode or divisor_override is not None, "ceil_mode or divisor_override")
    size, sides = (x.shape.height, x.shape.width), (pair(kernel_size), pair(stride or kernel_size), pair(padding))
    window = Window(size, *sides)
    refuse(min(window.out) < 1 or any(2 * p > k for p, k in zip(sides[2], sides[0], strict=True)), "a window beyond")
    down, across = (average(n, k, s, p, count_include_pad) for n, k, s, p in zip(size, *sides, strict=True))
    return draft.add(MeanPool(size, down, across), (x,))


def adaptive_avg_pool(draft: Draft, x: Any, output_size: Any) -> Value:
    x = image(x)
    size = x.shape.height, x.shape.width
    given = (output_size, output_size) if isinstance(output_size, int) or output_size is None else output_size
    down, across = (adaptive(n, n if out is None else out) for n, out in zip(size, given, strict=True))
    return draft.add(MeanPool(size, down, across), (x,))


def add(draft: Draft, a: Any, b: Any, alpha: float = 1) -> Value:
    if not isinstance(a, Value) or not isinstance(b, Value) or alpha != 1:
        return pointwise(draft, "add", torch.add, (a, b), {"alpha": alpha})
    refuse(a.shape != b.shape or a.dims != b.dims, "no sum of two images of one shape")
    return draft.add(Sum(relu=False), (a, b))


def add_in_place(draft: Draft, a: Any, b: Any, alpha: float = 1) -> Value:
    refuse(not draft.is_own(a), "a change in place of what others read")
    return add(draft, a, b, alpha)


def flatten(draft: Draft, x: Any, start_dim: int = 0, end_dim: int = -1) -> Value:
    refuse(not isinstance(x, Value) or start_dim != 1 or end_dim not in (-1, x.dims - 1), "not flatten(1)")
    if x.dims == 2:
        return x
    refuse(not draft.reads_alone(x), "a view of what others read")  # who changes one in place changes the other
    out = draft.add(Flatten(), (x,), dims=2)
    if x.number in draft.inputs:  # the caller's
        draft.shared.add(out.number)
    return out


def view(draft: Draft, x: Any, *sizes: Any) -> Value:
    refuse(not isinstance(x, Value), "its input is no image")
    sizes = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    flat = x.shape.flat()
    refuse(len(sizes) != 2 or sizes == (-1, -1), "not a view as [B, C * H * W]")
    fits = all(size in (-1, own) for size, own in zip(sizes, (flat.samples, flat.channels), strict=True))
    refuse(not fits, "not a view as [B, C * H * W]")
    return flatten(draft, x, 1)


def size(draft: Draft, x: Any, dim: int | None = None) -> Any:
    refuse(not isinstance(x, Value), "the size of what is no image")
    sizes = torch.Size((x.shape.samples, x.shape.channels, x.shape.height, x.shape.width)[: x.dims])
    return sizes if dim is None else sizes[dim]


def attribute(draft: Draft, x: Any, name: str) -> Any:
    refuse(name != "shape", f"the attribute {name}")
    return size(draft, x)


def item(draft: Draft, x: Any, index: Any) -> Any:
    refuse(not isinstance(x, tuple) or not isinstance(index, int), "an index into a tensor")
    return x[index]


MODULES: dict[type, Callable[..., Any]] = {
    nn.Conv2d: conv,
    nn.Linear: linear,
    nn.BatchNorm2d: batch_norm,
    nn.BatchNorm1d: batch_norm,
    nn.ReLU: lambda draft, module, path, x: relu(draft, x, module.inplace),
    nn.MaxPool2d: max_pool_module,
    nn.AvgPool2d: avg_pool_module,
    nn.AdaptiveAvgPool2d: lambda draft, module, path, x: adaptive_avg_pool(draft, x, module.output_size),
    nn.Flatten: lambda draft, module, path, x: flatten(draft, x, module.start_dim, module.end_dim),
    nn.Identity: lambda draft, module, path, x: x,
    nn.Dropout: lambda draft, module, path, x: dropout(draft, x, module.p, module.training, module.inplace),
    nn.Dropout2d: lambda draft, module, path, x: dropout2d(draft, x, module.p, module.training, module.inplace),
}
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
    operator.add: add,
    torch.add: add,
    operator.iadd: add_in_place,
    torch.flatten: flatten,
    getattr: attribute,
    operator.getitem: item,
}
METHODS: dict[str, Callable[..., Any]] = {
    "relu": relu,
    "relu_": lambda draft, x: relu(draft, x, True),
    "add": add,
    "add_": add_in_place,
    "flatten": flatten,
    "view": view,
    "reshape": view,
    "size": size,
}


def lay(draft: Draft, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The value of `node`, with the step that computes it added to the draft. Raises Unsupported."""
    if node.op == "call_module":
        path = str(node.target)
        module = draft.root.get_submodule(path)
        kind = kind_of(module)
        refuse(module is not draft.root and not has_only_pruning_hooks(module), "it has hooks")
        refuse(module is not draft.root and has_own_forward(module), "it has a forward that its class has not")
        if kind in MODULES:
            return MODULES[kind](draft, module, path, *args, **kwargs)
        refuse(not is_torchs(kind), f"no kernel for {kind.__name__}")
        return pointwise(draft, kind.__name__, module.forward, args, kwargs)
    table: Any = {"call_function": FUNCTIONS, "call_method": METHODS}.get(node.op, {})
    name = str(getattr(node.target, "__name__", node.target))
    if node.target not in table:
        fn: Any = getattr(Tensor, name, None) if node.op == "call_method" else node.target
        refuse(not callable(fn) or (node.op == "call_function" and not is_torchs(fn)), f"no kernel for {name}")
        return pointwise(draft, name, fn, args, kwargs)
    try:
        return table[node.target](draft, *args, **kwargs)
    except TypeError as error:  # arguments of a form that the table's function does not know
        raise Unsupported(Reason(str(error))) from error


def is_torchs(fn: Any) -> bool:
    """And no function or class of the user's, which may do more than it returns."""
    return str(fn.__module__).split(".")[0] in ("torch", "_operator")
