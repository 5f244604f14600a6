"""Whether the places that an op reads or writes are there.

For one that is not PyTorch raises an error. Each call looks at the carry that it begins with. Of later steps a kernel
gives NaN, which whole numbers have not: where these are read, a step must keep the numbers of the carry within bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from bppsa.common.chain import FILLS, HANDED_ON
from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.recording.one_hot import ONE_HOT
from bppsa.fxpasses.spelling.whole import CHOICES, has_whole_numbers, is_number

aten = torch.ops.aten
# What hands its operand's numbers on as they are.
SAME_NUMBERS = {
    *(aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.permute.default, aten.transpose.int),
    *(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.select.int, aten.slice.Tensor),
    *HANDED_ON,
}
NOTHING: Mapping[fx.Node, tuple[int, int]] = {}
BoundedIndices = Iterator[tuple[Any, int, int]]  # an index, and the least and the largest number that it may hold


def check_places(node: fx.Node, carries: Collection[fx.Node]) -> None:
    """Raises `Unsupported` where one of whole numbers or truth values might not be there. What a carry has to hold for
    that, at the start or always, is noted with it."""
    places_of = PLACES.get(node.target)
    if places_of is None:
        return
    always = node.target is ONE_HOT or has_whole_numbers(node.args[0])
    for index, low, high in places_of(node):
        carry = source(index)
        if carry in carries:
            least, largest = bounds_of(carry) or (low, high)
            carry.meta["bounds"] = max(low, least), min(high, largest)
            carry.meta["keeps"] = always or carry.meta.get("keeps", False)
        elif always and not is_within(index, low, high):
            what = f"is given numbers that may not be among its {high + 1}"
            raise Unsupported(what, op=str(node.target), mend=f"clamp(0, {high}) them, or use torch.where")


def check_kept(carries: Sequence[fx.Node], nexts: Sequence[fx.Node], refused: dict[fx.Node, Reason] | None) -> None:
    """Raises `Unsupported` where a step might not keep the bounds that are noted with a carry, or tells `refused`."""
    held = {carry: bounds for carry in carries if (bounds := bounds_of(carry)) is not None and carry.meta["keeps"]}
    for carry, made in zip(carries, nexts, strict=True):
        if carry in held and not is_within(made, *held[carry], held):
            low, high = held[carry]
            what = f"carries numbers that a step may take out of {low} to {high}, where they are read as places"
            reason = Reason(what, mend=f"clamp({low}, {high}) them")
            if refused is None:
                raise Unsupported(reason)
            refused[made] = reason


def bounds_of(carry: fx.Node) -> tuple[int, int] | None:
    return carry.meta.get("bounds")


def source(number: Any) -> Any:
    """What the number comes from as it is."""
    while isinstance(number, fx.Node) and number.target in SAME_NUMBERS:
        number = number.args[0]
    return number


def is_within(number: Any, low: int, high: int, held: Mapping[fx.Node, tuple[int, int]] = NOTHING) -> bool:
    """Whether the code bounds the number. held: what is taken to keep the bounds that it has."""
    number = source(number)
    if not isinstance(number, fx.Node):
        return isinstance(number, (int, float)) and low <= number <= high
    if number in held:
        least, largest = held[number]
        return low <= least and largest <= high
    if number.target in CHOICES:
        return all(is_within(option, low, high, held) for option in number.args[1:])
    if number.target is aten.remainder.Scalar:
        divisor = number.args[1]
        return isinstance(divisor, int) and low <= 0 < divisor <= high + 1
    if number.target in FILLS:
        return low <= FILLS[number.target](number.args) <= high
    if number.target is not aten.clamp.default or len(number.args) != 3:
        return False
    least, largest = number.args[1:]
    return least is not None and largest is not None and low <= least and largest <= high


def along_dimension(node: fx.Node) -> BoundedIndices:
    value, dim, index = node.args[:3]
    yield index, 0, value.meta["val"].shape[dim] - 1


def filled(node: fx.Node) -> BoundedIndices:
    """A negative place counts from the end."""
    for index, low, high in along_dimension(node):
        yield index, low - high - 1, high


def indexed(node: fx.Node) -> BoundedIndices:
    value, indices = node.args[:2]
    for index, n in zip(indices, value.meta["val"].shape, strict=False):
        if index is not None and is_number(index):
            yield index, -n, n - 1


def classes(node: fx.Node) -> BoundedIndices:
    yield node.args[1], 0, node.args[0].meta["val"].shape[1] - 1


PLACES: dict[Any, Callable[[fx.Node], BoundedIndices]] = {
    ONE_HOT: lambda node: iter([(node.args[0], 0, node.args[1] - 1)]),
    aten.embedding.default: lambda node: iter([(node.args[1], 0, len(node.args[0].meta["val"]) - 1)]),
    **dict.fromkeys((aten.nll_loss_forward.default, aten.nll_loss2d_forward.default), classes),
    **dict.fromkeys((aten.gather.default, aten.index_select.default), along_dimension),
    **dict.fromkeys((aten.scatter.value, aten.scatter.src, aten.scatter_add.default), along_dimension),
    **dict.fromkeys((aten.index_add.default, aten.index_copy.default), along_dimension),
    **dict.fromkeys((aten.index_fill.int_Scalar, aten.index_fill.int_Tensor), filled),
    **dict.fromkeys((aten.index.Tensor, aten.index_put.default), indexed),
}
