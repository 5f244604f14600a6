"""What a loss function may not read: a gradient flows through its first argument alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction

from bppsa.common.graph import differentiable_in
from bppsa.errors import ArgumentError
from bppsa.fxpasses.partition.call.arguments import named_leaves

NameOf = Callable[[Tensor], str]
LEAF = "torch::autograd::AccumulateGrad"
MEND = "let the forward compute it and return it, or return the loss, with loss_fn=None; or give loss_fn its .detach()"


def unnamed(x: Tensor) -> str:
    return ""


def names_in(model: nn.Module) -> NameOf:
    """A Parameter's name in the model."""

    def name(x: Tensor) -> str:
        return next((name for name, own in model.named_parameters() if own is x), "")

    return name


def check_wants(loss_fn: Any, target: Any) -> None:
    """Raises ArgumentError for Parameters of a loss module, and for targets, that want a gradient."""
    if isinstance(loss_fn, nn.Module):
        for name, parameter in loss_fn.named_parameters():
            if parameter.requires_grad:
                raise refusal(f"the Parameter {name} of loss_fn ({type(loss_fn).__name__})")
    for name, leaf in named_leaves("target", target):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            raise refusal(name)


def edges(output: Any) -> list[Any]:
    """The ends of a loss's graph: what made the output, and the output itself."""
    tensors = differentiable_in(output)
    return [x for x in tensors if x.grad_fn is None] + [x.grad_fn for x in tensors if x.grad_fn is not None]


def check_reads(loss: Tensor, ends: list[Any], names: NameOf) -> None:
    """Raises ArgumentError where a gradient would flow from the loss to a leaf that is not the output's, or through a
    checkpoint that runs a backward of its own."""
    stops = {id(end) for end in ends}
    seen = set[Any]()
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or id(node) in stops:
            continue
        seen.add(node)
        if getattr(type(node), "_forward_cls", None) is CheckpointFunction:
            raise ArgumentError(
                "loss_fn calls torch.utils.checkpoint with use_reentrant=True, whose backward adds to .grad, and a "
                "stage asks for gradients that it hands on; give it use_reentrant=False"
            )
        leaf = node.variable if node.name() == LEAF else None
        if leaf is not None and id(leaf) not in stops:
            raise refusal(of_leaf(leaf, names(leaf)))
        waiting += [source for source, _ in node.next_functions]


def of_leaf(leaf: Tensor, name: str) -> str:
    kind = "Parameter" if isinstance(leaf, nn.Parameter) else "tensor"
    return f"the {kind} {name or list(leaf.shape)}"


def refusal(what: str) -> ArgumentError:
    return ArgumentError(f"loss_fn reads {what}, which requires a gradient and would get none: no stage has it; {MEND}")
