"""Any pointwise function or module of torch as a step: recorded once on stand-ins, with its J^T by the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map_only

from bppsa.codegen.sparse_conv.elementwise import Elementwise, values_of
from bppsa.common.chain import HANDED_ON, Recurrence, Role, Stream
from bppsa.errors import Unsupported, first_line
from bppsa.frontend.pruned.regions.draft import Draft, RegionValue
from bppsa.fxpasses.network.jacobian import differentiable, transpose
from bppsa.fxpasses.recording.capture import record
from bppsa.fxpasses.recording.decompose import DECOMPOSE
from bppsa.fxpasses.recording.recorder import Recorder
from bppsa.fxpasses.theirs import raise_if_ours, theirs
from bppsa.runtime.sparse_conv.pointwise import Pointwise

aten = torch.ops.aten
DECOMPOSED = {
    aten.addcmul.default: DECOMPOSE[aten.addcmul.default],  # the others are not pointwise
    aten.log_sigmoid_forward.default: lambda x: (-F.softplus(-x, threshold=torch.inf), x),
}


class WithoutViews(Recorder):
    """Whether a view is more than what it views depends on the shape, and the stand-ins' is none of an image."""

    def write_down(self, func: Any, args: Sequence[Any], kwargs: dict) -> Any:
        if func.is_view and func not in HANDED_ON:
            raise Unsupported("is a view", op=str(func))
        return super().write_down(func, args, kwargs)


def pointwise(draft: Draft, name: str, fn: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> RegionValue:
    """The value of fn(*args, **kwargs). Raises Unsupported where it is more than a pointwise function of images."""
    values = list(dict.fromkeys(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, RegionValue)))
    if not values or any((v.shape, v.dims) != (values[0].shape, values[0].dims) for v in values):
        raise no_kernel(name, "its inputs are not images of one shape")
    call = of_images(fn, values, args, kwargs)
    function, changed = recorded(name, call, values, draft.dtype)
    if any(changed[1:]) or (changed[0] and not (args and args[0] is values[0] and draft.is_own(values[0]))):
        raise Unsupported("a change in place of what others read", mend="use the form that returns a new one")
    return draft.add(Pointwise(function, flat(name, call, function, draft.dtype)), values)


def of_images(
    fn: Callable[..., Any], values: list[RegionValue], args: Any, kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """fn(*args, **kwargs) of tensors for `values`, and what these are after it."""

    def call(*images: Tensor) -> Any:
        own = [image.clone() for image in images]  # which may be changed
        given = dict(zip(values, own, strict=True))
        replaced = tree_map_only(RegionValue, given.__getitem__, (tuple(args), kwargs))
        return theirs(fn, *replaced[0], **replaced[1]), own

    return call


def no_kernel(name: str, why: object) -> Unsupported:
    return Unsupported(f"no kernel for {name}: {why}")


def flat(name: str, call: Callable[..., Any], function: Elementwise, dtype: torch.dtype | None) -> list[int]:
    """The images to which autograd gives a gradient although it is always zero: asked of PyTorch, as a comparison or a
    detach gives none. Raises Unsupported where PyTorch has no derivative."""
    if len(function.reached) == len(function.operands):
        return []
    with torch.inference_mode(False), torch.enable_grad():
        images = [torch.ones(2, 3, dtype=dtype, requires_grad=True) for _ in function.operands]
        result, _ = call(*images)
        if not result.requires_grad:
            return []
        try:
            found = theirs(torch.autograd.grad, result, images, torch.ones_like(result), allow_unused=True)
        except RuntimeError as error:  # it says so in the backward, as does the user's
            raise_if_ours(error)
            raise no_kernel(name, first_line(error)) from error
    return [i for i, g in enumerate(found) if g is not None and i not in function.reached]


def recorded(
    name: str, call: Callable[..., Any], values: list[RegionValue], dtype: torch.dtype | None
) -> tuple[Elementwise, list[bool]]:
    """The function, and of each image whether it is changed in place. call: `of_images`."""
    stand_ins = [torch.zeros(2, 3, dtype=dtype) for _ in values]
    try:  # whatever torch says to shapes that the function was not meant for
        recording = record(call, stand_ins, recorder=WithoutViews(DECOMPOSED))
    except Unsupported as error:
        raise no_kernel(name, error.reason) from error
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise_if_ours(error)
        raise no_kernel(name, "it is more than a function of each number alone") from error
    result, own = recording.result
    changed = [node.args[:1] != (argument,) for node, argument in zip(own, recording.arguments, strict=True)]
    if not isinstance(result, fx.Node) or result not in differentiable(recording.graph) or recording.captured:
        raise no_kernel(name, "it is no function of images alone")
    if result in recording.arguments:
        raise no_kernel(name, "it changes how its input is seen, and no number")
    for i, node in enumerate(recording.arguments):
        node.meta["role"] = Role("stream", i)
    recording.graph.output(((), (result,)))
    recording.graph.eliminate_dead_code()
    streams = tuple(Stream(i, None, 1, 1) for i in range(len(values)))
    body = Recurrence(None, recording.graph, None, streams, (), (1,))
    try:
        ahead = values_of(body)  # the rule of an op that has no kernel is not asked: it may be none of numbers
        function = Elementwise(body, ahead, transpose(body))
        function.forward(1), function.backward(1)
    except Unsupported as error:
        raise no_kernel(name, error.reason) from error
    return function, changed
