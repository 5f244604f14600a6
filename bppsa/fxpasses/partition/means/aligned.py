"""Whether a loss that reduces pairs each row with itself: PyTorch broadcasts [n, 1] against [n] to n times n pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx, nn

from bppsa.fxpasses.partition.means.sizes import dtype, is_tensor, name_of, size_of

# The dimension of rows in each input, None in what has none, and the inputs themselves -> whether they fit.
Alignment = Callable[[Sequence[int | None], Sequence[fx.Node]], bool]


def elementwise(at: Sequence[int | None], inputs: Sequence[fx.Node]) -> bool:
    """The dimensions are counted from the last, as for broadcasting."""
    return len({axis - len(size_of(x)) for axis, x in zip(at, inputs, strict=True) if axis is not None}) == 1


def in_front(at: Sequence[int | None], inputs: Sequence[fx.Node]) -> bool:
    """What is taken apart along dimension 0, if there is another one."""
    return set(at) <= {0, None} and len(size_of(inputs[0])) > 1


def of_classes(at: Sequence[int | None], inputs: Sequence[fx.Node]) -> bool:
    """Classes are in dimension 1 of the outputs, and there is none of them among targets that are their numbers."""
    out, target = at[0], at[1]
    if out is None or target is None or any(axis is not None for axis in at[2:]) or len(size_of(inputs[0])) < 2:
        return False
    gone = 0 if dtype(inputs[1]).is_floating_point or out == 0 else 1
    return out != 1 and target == out - gone


def of_alignments(at: Sequence[int | None], inputs: Sequence[fx.Node]) -> bool:
    """ctc_loss has steps in front."""
    return len(size_of(inputs[0])) == 3 and at[0] == 1 and set(at[1:]) <= {0, None}


RULES: Mapping[Any, Alignment] = {
    **dict.fromkeys(("cross_entropy_loss", "nll_loss_nd", "nll_loss", "nll_loss2d"), of_classes),
    **dict.fromkeys((nn.CrossEntropyLoss, nn.NLLLoss), of_classes),
    **dict.fromkeys(("multi_margin_loss", "multilabel_margin_loss", "cosine_embedding_loss"), in_front),
    **dict.fromkeys(("triplet_margin_loss", nn.MultiMarginLoss, nn.MultiLabelMarginLoss), in_front),
    **dict.fromkeys((nn.MultiLabelSoftMarginLoss, nn.CosineEmbeddingLoss, nn.TripletMarginLoss), in_front),
    **dict.fromkeys((nn.TripletMarginWithDistanceLoss,), in_front),
    **dict.fromkeys(("ctc_loss", nn.CTCLoss), of_alignments),
}


def is_aligned(node: fx.Node, axis: Callable[[fx.Node], int | None], module: nn.Module | None) -> bool:
    """axis: of rows. module: whose call it is, if any."""
    inputs = [arg for arg in (*node.args, *node.kwargs.values()) if isinstance(arg, fx.Node) and is_tensor(arg)]
    at = [axis(x) for x in inputs]
    batched = getattr(module, "reduction", "") != "batchmean" or at[0] == 0
    rule = RULES.get(name_of(node) if module is None else type(module), elementwise)
    return len(inputs) > 0 and batched and rule(at, inputs)
