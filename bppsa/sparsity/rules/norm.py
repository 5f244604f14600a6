"""Normalisations. Over elements of a row J^T is block-diagonal, with the running statistics it is diagonal; with the
statistics of the batch it mixes the rows, and stays a VJP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Size, Tensor, ops

from bppsa.errors import Unsupported
from bppsa.sparsity.operators.across import AcrossRows
from bppsa.sparsity.operators.implicit import Implicit
from bppsa.sparsity.operators.simple import Diagonal
from bppsa.sparsity.patterns.flat import as_held
from bppsa.sparsity.patterns.pattern import Pattern
from bppsa.sparsity.rules.registry import rule

aten = ops.aten


def blocks(x: Tensor, out: Tensor, hat: Tensor, scale: Tensor, w: Tensor | None) -> Implicit:
    """Runs of a row's elements are normalised one by one, then multiplied by w.

    J^T of a run is (I - 1 1^T / n - hat hat^T / n) diag(w) scale.

    Args:
        hat: what is normalised, [B, count, n].
        scale: the inverse deviations, [B, count, 1].
        w: broadcasts to x, or None.
    """
    count, n = hat.shape[1:]

    def vjp(g: Tensor) -> Tensor:
        v = (g if w is None else g * w).reshape(g.shape[0], count, n)
        inner = v - v.mean(2, keepdim=True) - hat * (v * hat).mean(2, keepdim=True)
        return (inner * scale).reshape(g.shape).to(g.dtype)

    def values() -> Tensor:
        eye = torch.eye(n, dtype=hat.dtype, device=hat.device)
        inner = (eye - 1 / n - hat.unsqueeze(3) * hat.unsqueeze(2) / n) * scale.unsqueeze(3)
        if w is not None:
            inner = inner * w.expand(1, *x.shape[1:]).reshape(1, count, 1, n)
        return as_held(inner.flatten(1))

    def links() -> Pattern:
        return Pattern.block_diagonal(count, n, n)

    return Implicit(x, out, vjp, links, "dense" if count == 1 else "block-diagonal", values=values)


def normalised(x: Tensor, count: int, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """x as `count` runs, normalised [B, count, n], and the inverse deviations [B, count, 1]."""
    runs, scale = x.reshape(x.shape[0], count, -1), rstd.reshape(x.shape[0], count, 1)
    return (runs - mean.reshape(x.shape[0], count, 1)) * scale, scale


def of_parameters(hat: Tensor, w: Tensor | None, b: Tensor | None, shape: Sequence[int]) -> list[AcrossRows]:
    """The operators of weight and bias, as far as they are there; with `shape` they broadcast to hat, [B, *n]."""

    def summed(times: Callable[[Tensor], Tensor], parameter: Tensor) -> AcrossRows:
        return AcrossRows(lambda g: times(g).sum_to_size(shape).reshape(parameter.shape).to(g.dtype))

    ways = ((lambda g: g * hat, w), (lambda g: g, b))
    return [summed(times, parameter) for times, parameter in ways if parameter is not None]


def first_only(operators: Sequence[Any], outputs: int) -> tuple[tuple[Any, ...], ...]:
    """The operators of an op whose other outputs are PyTorch's own notes for its backward."""
    return (tuple(operators), *(((None,) * len(operators),) * (outputs - 1)))


@rule(aten.native_layer_norm.default)
def layer_norm(
    x: Tensor, shape: Sequence[int], w: Tensor | None, b: Tensor | None, eps: float, *, out: Sequence[Tensor]
) -> tuple[tuple[Any, ...], ...]:
    if x.dim() == len(shape):
        raise Unsupported("normalises over the batch", op="aten.native_layer_norm", mend="kept as a VJP")
    hat, scale = normalised(x, x[0].numel() // Size(shape).numel(), out[1], out[2])
    operator = blocks(x, out[0], hat, scale, w)
    return first_only([operator, *of_parameters(hat.reshape(x.shape), w, b, shape)], len(out))


@rule(aten.native_group_norm.default)
def group_norm(
    x: Tensor,
    w: Tensor | None,
    b: Tensor | None,
    rows: int,
    channels: int,
    places: int,
    groups: int,
    eps: float,
    *,
    out: Sequence[Tensor],
) -> tuple[tuple[Any, ...], ...]:
    shape = a_channel(x)
    hat, scale = normalised(x, groups, out[1], out[2])
    operator = blocks(x, out[0], hat, scale, None if w is None else w.reshape(shape))
    return first_only([operator, *of_parameters(hat.reshape(x.shape), w, b, shape)], len(out))


def a_channel(x: Tensor) -> list[int]:
    """The shape in which one number a channel broadcasts to x [B, C, *grid]."""
    return [1, x.shape[1], *(1 for _ in x.shape[2:])]


@rule(aten._native_batch_norm_legit_no_training.default)
def batch_norm(
    x: Tensor,
    w: Tensor | None,
    b: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    eps: float,
    *,
    out: Sequence[Tensor],
) -> tuple[tuple[Any, ...], ...]:
    """With the running statistics it is an affine function of each channel, of which they are constants."""
    shape = a_channel(x)
    scale = torch.rsqrt(variance + eps)
    hat = (x - mean.reshape(shape)) * scale.reshape(shape)
    d = (scale if w is None else scale * w).reshape(shape).expand(1, *x.shape[1:])
    return first_only([Diagonal(d, like=x), *of_parameters(hat, w, b, shape), None, None], len(out))


@rule(aten.native_batch_norm.default)
def native_batch_norm(
    x: Tensor,
    w: Tensor | None,
    b: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    *,
    out: Sequence[Tensor],
) -> tuple[tuple[Any, ...], ...]:
    if not training and mean is not None and variance is not None:
        return batch_norm(x, w, b, mean, variance, momentum, eps, out=out)

    def backward(which: int) -> Callable[[Tensor], Tensor]:
        wanted = [i == which for i in range(3)]
        return lambda g: aten.native_batch_norm_backward(
            g, x, w, mean, variance, out[1], out[2], training, eps, wanted
        )[which]

    given = [i for i, argument in enumerate((x, w, b)) if argument is not None]
    statistics = [None for argument in (mean, variance) if argument is not None]
    return first_only([*(AcrossRows(backward(i)) for i in given), *statistics], len(out))


@rule(aten.instance_norm.default)
def instance_norm(
    x: Tensor,
    w: Tensor | None,
    b: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
    *,
    out: Tensor,
) -> tuple[Any, ...]:
    if not use_input_stats or mean is not None or variance is not None:
        raise Unsupported("keeps running statistics", op="aten.instance_norm", mend="kept as a VJP")
    return tuple(of_instances(x, w, b, eps, out))


@rule(aten._native_batch_norm_legit.no_stats)
def batch_norm_of_one(
    x: Tensor, w: Tensor | None, b: Tensor | None, training: bool, momentum: float, eps: float, *, out: Sequence[Tensor]
) -> tuple[tuple[Any, ...], ...]:
    """What an instance norm of a batch of one is."""
    if len(x) > 1:
        return native_batch_norm(x, w, b, None, None, True, momentum, eps, out=out)
    return first_only(of_instances(x, w, b, eps, out[0]), len(out))


def of_instances(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float, out: Tensor) -> list[Implicit | AcrossRows]:
    """Every channel of a sample by itself."""
    shape, runs = a_channel(x), x.flatten(2)
    rstd = torch.rsqrt(runs.var(2, correction=0) + eps)
    hat, scale = normalised(x, x.shape[1], runs.mean(2), rstd)
    operator = blocks(x, out, hat, scale, None if w is None else w.reshape(shape))
    return [operator, *of_parameters(hat.reshape(x.shape), w, b, shape)]
