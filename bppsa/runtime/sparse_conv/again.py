"""A region by PyTorch's own differentiable ops, for gradients that will be differentiated themselves, or that something
watches: from what its forward was given, and without changing buffers a second time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from bppsa.common.graph import run
from bppsa.common.leaves import gradients_through
from bppsa.runtime.sparse_conv.conv import Conv
from bppsa.runtime.sparse_conv.norm import BatchNorm
from bppsa.runtime.sparse_conv.pointwise import Dropout, Pointwise
from bppsa.runtime.sparse_conv.pooling import MaxPool, MeanPool, Means
from bppsa.runtime.sparse_conv.region import Region
from bppsa.runtime.sparse_conv.sums import Flatten, ImageSum

Operands = Sequence[Any]  # tensors, None where a parameter is not there


def gradients(
    region: Region,
    tensors: Operands,
    grads: Operands,
    needs: Sequence[bool],
    depends: Sequence[Any],
    brought: Sequence[Sequence[Tensor]],
) -> list[Tensor | None]:
    """The gradients of inputs and parameters, `tensors`, that are needed. depends, brought: of each step, in that
    forward."""
    again = partial(forward, region, depends, brought)
    return gradients_through(again, tensors, grads, needs, create_graph=torch.is_grad_enabled())


def forward(
    region: Region, depends: Sequence[Any], brought: Sequence[Sequence[Tensor]], tensors: Operands
) -> list[Tensor]:
    inputs, params = tensors[: len(region.inputs)], tensors[len(region.inputs) :]
    values = {v: t.view(*t.shape, *(1,) * (4 - t.dim())) for v, t in zip(region.inputs, inputs, strict=True)}
    for node, of, extra in zip(region.nodes, depends, brought, strict=True):
        chosen = [None if i is None else params[i] for i in node.params]
        values[node.output] = AGAIN[type(node.step)](node.step, [values[v] for v in node.inputs], chosen, of, extra)
    return [values[v].view(values[v].shape[: region.dims[v]]) for v in region.outputs]


# Steps: images are [B, C, H, W] --------------------------------------------------------------------------------------


def conv(step: Conv, inputs: Sequence[Tensor], params: Operands, of: Any, brought: Sequence[Tensor]) -> Tensor:
    (x,), (weight, bias), w = inputs, params, step.window
    assert weight is not None
    kept = torch.zeros(weight.numel(), dtype=weight.dtype).index_fill_(0, of.places.long(), 1)
    weight = (weight * kept.view(weight.shape)).view(*weight.shape[:2], *w.kernel)
    y = F.conv2d(x, weight, bias, w.stride, w.padding, w.dilation, x.shape[1] // weight.shape[1])
    y = max_pool(step.pool, (y,)) if step.pool else y
    return torch.relu(y) if step.relu else y


def batch_norm(
    step: BatchNorm, inputs: Sequence[Tensor], params: Operands, of: Any, brought: Sequence[Tensor]
) -> Tensor:
    (x,), (weight, bias), eps = inputs, params, float(brought[0][0])
    mean, variance = (None, None) if step.of_batch else brought[1:]
    y = F.batch_norm(x, mean, variance, weight, bias, step.of_batch, 0.0, eps)
    return torch.relu(y) if step.relu else y


def max_pool(step: MaxPool, inputs: Sequence[Tensor], *_: Any) -> Tensor:
    (x,), w = inputs, step.window
    return F.max_pool2d(x, w.kernel, w.stride, w.padding, w.dilation)


def mean_pool(step: MeanPool, inputs: Sequence[Tensor], *_: Any) -> Tensor:
    (x,) = inputs
    down, across = (matrix(m, size).to(x.dtype) for m, size in zip(step.means, step.size, strict=True))
    return torch.einsum("yh,bchw,xw->bcyx", down, x, across)


def matrix(means: Means, size: int) -> Tensor:
    """[outputs, size]"""
    rows = torch.zeros(len(means.bounds), size, dtype=torch.float64)
    for row, (begin, end), share in zip(rows, means.bounds, means.shares, strict=True):
        row[begin:end] = share
    return rows


def add(step: ImageSum, inputs: Sequence[Tensor], *_: Any) -> Tensor:
    total = inputs[0] if len(inputs) == 1 else inputs[0] + inputs[1]
    return torch.relu(total) if step.relu else total


def flatten(step: Flatten, inputs: Sequence[Tensor], *_: Any) -> Tensor:
    return inputs[0].flatten(1)[..., None, None]


def pointwise(step: Pointwise, inputs: Sequence[Tensor], *_: Any) -> Tensor:
    recurrence = step.function.body
    found: dict[fx.Node, Tensor] = dict(zip(recurrence.body.find_nodes(op="placeholder"), inputs, strict=True))
    run(recurrence.body, found)
    return found[recurrence.output_nodes[0]]


def dropout(step: Dropout, inputs: Sequence[Tensor], params: Operands, of: Any, brought: Sequence[Tensor]) -> Tensor:
    return inputs[0] * brought[0].view(inputs[0].shape)


AGAIN: dict[type, Callable[..., Tensor]] = {
    Conv: conv,
    BatchNorm: batch_norm,
    MaxPool: max_pool,
    MeanPool: mean_pool,
    ImageSum: add,
    Flatten: flatten,
    Pointwise: pointwise,
    Dropout: dropout,
}
