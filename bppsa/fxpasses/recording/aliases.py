"""Which tensors of a function that is being recorded share memory, and what each of them stands for.

A tensor is known by its geometry: where its memory is, and how it looks at it. A change in place puts another value at
one geometry, and at those that it is a slice of; all others that meet the same bytes become stale, since the graph has
no node for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.recording.pieces import slice_scatter

RETURN_NEW = "use the form that returns a new one"
STALE = "no rule for what reads a view of what was changed in place (as of a transposed one)"
Geometry = tuple


def geometry(tensor: Tensor) -> Geometry:
    """What a tensor is a view of, and how. Equal geometry means equal values; autograd may hand back another Python
    object for one view, so identity would not do."""
    if tensor.is_conj() or tensor.is_neg():
        raise Unsupported(Reason("a lazily conjugated or negated tensor", mend="call resolve_conj() or resolve_neg()"))
    return marked_geometry(tensor)[:-2]


def marked_geometry(tensor: Tensor) -> Geometry:
    """The same of a tensor that may be marked as conjugated or negated, with these marks, the last two."""
    if tensor.layout is not torch.strided:
        raise Unsupported(Reason(f"a tensor of layout {tensor.layout}", mend="use dense tensors"))
    place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
    return (*place, tensor.is_conj(), tensor.is_neg())


@dataclass(frozen=True)
class Stale:
    """Stands where the node was of what has been changed since. by: the op that did it."""

    by: str


@dataclass(frozen=True)
class TensorSlice:
    """Columns `start` to `end` of a tensor along `dim`, every `step`th; where one of them may have lost that
    dimension."""

    whole: Tensor
    dim: int
    start: int
    end: int
    selected: bool
    step: int = 1

    def replaced(self, new: Tensor) -> Tensor:
        """The whole with other numbers in this part, as new memory."""
        if self.step > 1:
            return slice_scatter(self.whole, new, self.dim, self.start, self.end, self.step)
        size = self.whole.shape[self.dim]
        middle = new.unsqueeze(self.dim) if self.selected else new
        around = self.whole.narrow(self.dim, 0, self.start), self.whole.narrow(self.dim, self.end, size - self.end)
        return torch.cat([piece for piece in (around[0], middle, around[1]) if piece.shape[self.dim]], self.dim)


def selected(whole: Tensor, dim: int, index: int) -> TensorSlice:
    start = index % whole.shape[dim]
    return TensorSlice(whole, dim % whole.dim(), start, start + 1, True)


def sliced(
    whole: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> TensorSlice | None:
    at = slice(start, end, step).indices(whole.shape[dim])
    return TensorSlice(whole, dim % whole.dim(), at[0], at[1], False, step) if at[0] < at[1] else None


# Views of one whole, whose numbers are known again after a change of the view in place.
PARTS: dict[Any, Callable[..., TensorSlice | None]] = {
    torch.ops.aten.select.int: selected,
    torch.ops.aten.slice.Tensor: sliced,
}


class Aliases:
    """The nodes of the tensors a function holds. Tensors that it closes over are known by whether they take a gradient
    too: W and W.detach() share a geometry, but not that."""

    def __init__(self) -> None:
        self.nodes: dict[Geometry, fx.Node | Stale] = {}
        self.closed_over: dict[tuple[Geometry, bool], fx.Node] = {}
        self.alive: list[Tensor] = []  # a geometry is an address: it must not be given away again
        self.parts: dict[Geometry, TensorSlice] = {}
        self.unsure: dict[int, str] = {}  # memory that may be shared with other memory, and why that is not known

    def __contains__(self, tensor: Tensor) -> bool:
        return geometry(tensor) in self.nodes

    def put(self, tensor: Tensor, node: fx.Node) -> None:
        self.alive.append(tensor)
        self.nodes[geometry(tensor)] = node

    def put_part(self, tensor: Tensor, part: TensorSlice | None) -> None:
        if part is not None and geometry(tensor) != geometry(part.whole):
            self.parts[geometry(tensor)] = part

    def wholes(self, tensor: Tensor) -> Iterator[TensorSlice]:
        """Of what it is a part, of what that is one, and so on, as far as autograd has them as views too, unlike the
        results of unsafe_split, and their numbers are known."""
        base, place = base_of(tensor), geometry(tensor)
        while (part := self.parts.get(place)) and base_of(part.whole) is base:
            if not isinstance(self.find(part.whole), fx.Node):
                return
            yield part
            place = geometry(part.whole)

    def close_over(self, tensor: Tensor, node: fx.Node) -> None:
        self.closed_over[geometry(tensor), tensor.requires_grad] = node

    def find(self, tensor: Tensor) -> fx.Node | Stale | None:
        place = geometry(tensor)
        return self.nodes.get(place) or self.closed_over.get((place, tensor.requires_grad))

    def may_share(self, why: str, *tensors: Tensor) -> None:
        """From now on nobody may write to the memory of any of them."""
        for tensor in tensors:
            self.unsure.setdefault(tensor.untyped_storage()._cdata, why)

    def check_writable(self, changed: Tensor, others: list[Tensor], op: str) -> None:
        """Raise `Unsupported` for a change in place that PyTorch refuses, or of which it is not known what it changes.
        others: what else the op reads."""
        place, meets = geometry(changed), met_by(changed)
        what = self.unsure.get(place[0])
        if any(geometry(other) != place and meets(geometry(other)) for other in others):
            what = "reads what it changes in place through another view"
        if any(size > 1 and stride == 0 for size, stride in zip(changed.shape, changed.stride(), strict=True)):
            what = "changes in place what was expanded"
        if what:
            raise Unsupported(Reason(what, op=op, mend=RETURN_NEW))

    def change(self, changed: Tensor, node: fx.Node, op: str) -> None:
        """The node is what `changed` stands for from here on. Raises `Unsupported` where an input shares its memory."""
        meets = met_by(changed)
        captured = [(place, node) for (place, _), node in self.closed_over.items()]
        for place, known in [*self.nodes.items(), *captured]:
            if isinstance(known, fx.Node) and meets(place):
                if known.op == "placeholder":
                    raise Unsupported(Reason("changes an input in place", op=op, mend=RETURN_NEW))
                self.nodes[place] = Stale(op)
        self.nodes[geometry(changed)] = node


def base_of(tensor: Tensor) -> Tensor:
    return tensor._base if tensor._base is not None else tensor


def met_by(tensor: Tensor) -> Callable[[Geometry], bool]:
    """Whether a tensor of some geometry has a byte in common with this one."""
    storage = tensor.untyped_storage()
    touched = torch.zeros(storage.nbytes(), dtype=torch.bool)

    def of_bytes(place: Geometry) -> Tensor:
        _, offset, shape, stride, dtype = place
        size = dtype.itemsize
        return touched.as_strided((*shape, size), (*(size * s for s in stride), 1), size * offset)

    of_bytes(geometry(tensor)).fill_(True)
    return lambda place: place[0] == storage._cdata and bool(of_bytes(place).any())
