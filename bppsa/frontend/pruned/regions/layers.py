"""Nodes of layers with parameters as steps on blocked images: one function a kind, in a table.

Each takes the growing region and its node. What a kernel cannot do raises Unsupported, and the region ends before that
node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import fx
from torch.fx.node import map_arg

from bppsa.codegen.sparse_conv.window import IntPair, Window
from bppsa.errors import Unsupported
from bppsa.frontend.pruned.regions.draft import Draft, RegionValue
from bppsa.frontend.pruned.regions.nodes import argument
from bppsa.frontend.pruned.regions.products import masked_conv2d, masked_linear
from bppsa.runtime.sparse_conv.norm import BatchNorm


def refuse(condition: bool, what: str) -> None:
    if condition:
        raise Unsupported(what)


def pair(value: int | Sequence[int]) -> IntPair:
    if isinstance(value, int):
        return value, value
    refuse(len(value) not in (1, 2), f"a size of {len(value)} dimensions")
    return int(value[0]), int(value[-1])


def own(x: Any) -> RegionValue:
    """A value of the region, of any dimensions."""
    refuse(not isinstance(x, RegionValue), "its input is no image")
    return x


def image(x: Any) -> RegionValue:
    refuse(not isinstance(x, RegionValue) or x.dims != 4, "its input is no batch of images [B, C, H, W]")
    return x


def rows(x: Any) -> RegionValue:
    refuse(not isinstance(x, RegionValue) or x.dims != 2, "its input is not [B, C]")
    return x


def conv(draft: Draft, node: fx.Node) -> RegionValue:
    x, weight, masks, bias, *geometry = node.args
    stride, padding, dilation, groups = map_arg(tuple(geometry), draft.value_of)
    value = image(draft.value_of(x))
    outputs, inner, *kernel = draft.known[weight].shape
    sides = pair(stride), padding_of(padding, pair(dilation), kernel), pair(dilation)
    window = Window((value.shape.height, value.shape.width), tuple(kernel), *sides)
    refuse(min(window.out) < 1, "the kernel is larger than its input")
    refuse(value.shape.channels != inner * groups, f"{value.shape.channels} channels come in, not {inner * groups}")
    refuse(outputs % groups != 0, f"{outputs} channels in {groups} groups")
    return draft.layer("conv2d", window, groups, value, (weight, masks, bias))


def padding_of(padding: Any, dilation: IntPair, kernel: Sequence[int]) -> IntPair:
    if not isinstance(padding, str):
        return pair(padding)
    if padding == "valid":
        return 0, 0
    down, across = (d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    refuse(down % 2 == 1 or across % 2 == 1, "padding='same' that is not the same on both sides")
    return down // 2, across // 2


def linear(draft: Draft, node: fx.Node) -> RegionValue:
    x, weight, masks, bias = node.args
    value, size = rows(draft.value_of(x)), draft.known[weight].shape
    refuse(len(size) != 2 or value.shape.channels != size[1], f"{value.shape.channels} features come to {list(size)}")
    return draft.layer("linear", Window((1, 1), (1, 1)), 1, value, (weight, masks, bias))


def batch_norm(draft: Draft, node: fx.Node) -> RegionValue:
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    defaults = (None, None, None, None, None, False, 0.1, 1e-5)
    x, *given = (argument(node, i, *of) for i, of in enumerate(zip(names, defaults, strict=True)))
    mean, variance, weight, bias, training, *numbers = given
    momentum, eps = (draft.found.get(number, number) for number in numbers)  # what follows from sizes has one value
    value = own(draft.value_of(x))
    tracks = mean is not None
    refuse(tracks != (variance is not None), "one running statistic without the other")
    refuse(not isinstance(training, bool) or not (training or tracks), "neither this batch's statistics nor others")
    refuse(tracks and reads_and_follows(mean), "its statistics are used in one call and changed by another")
    tensors = [draft.tensor_of(p) for p in (mean, variance, weight, bias)]
    channels = value.shape.channels
    refuse(any(t is not None and (t.shape != (channels,) or not t.is_contiguous()) for t in tensors), "odd statistics")
    step = BatchNorm(of_batch=training, follow=training and tracks)
    if step.follow:
        draft.changes(mean, variance)
    return draft.add(step, (value,), (weight, bias), (mean, variance, momentum, eps))


def reads_and_follows(mean: fx.Node) -> bool:
    """Whether some calls with these statistics are in evaluation and some in training: PyTorch's backward of the one
    reads what the other has made of them."""
    return len({argument(user, 5, "training", False) for user in mean.users if user.target is F.batch_norm}) > 1


LAYERS: dict[Any, Callable[[Draft, fx.Node], RegionValue]] = {
    masked_conv2d: conv,
    masked_linear: linear,
    F.batch_norm: batch_norm,
}
