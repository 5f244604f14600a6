"""Which tensors of a function that is being recorded share memory, and what each of them stands for.

A tensor is known by its geometry: where its memory is, and how it looks at it. A change in place puts another value at
one geometry, and at those that it is a part of (`parts`); all others that meet the same bytes become stale, since the
graph has no node for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from bppsa.errors import Unsupported
from bppsa.fxpasses.lines import mend_in_place
from bppsa.fxpasses.recording.parts import Part

RETURN_NEW = "use the form that returns a new one"
EXPANDED = "changes in place what was expanded"
STALE = "changes in place what is read again through another view (as one of other columns)"
Geometry = tuple


def is_expanded(tensor: Tensor) -> bool:
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def geometry(tensor: Tensor) -> Geometry:
    """What a tensor is a view of, and how. Equal geometry means equal values; autograd may hand back another Python
    object for one view, so identity would not do."""
    if tensor.is_conj() or tensor.is_neg():
        raise Unsupported("a lazily conjugated or negated tensor", mend="call resolve_conj() or resolve_neg()")
    return marked_geometry(tensor)[:-2]


def marked_geometry(tensor: Tensor) -> Geometry:
    """The same of a tensor that may be marked as conjugated or negated, with these marks, the last two."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        layout = "nested" if tensor.is_nested else tensor.layout
        raise Unsupported(f"a tensor of layout {layout}", mend="use dense tensors")
    place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
    return (*place, tensor.is_conj(), tensor.is_neg())


@dataclass(frozen=True)
class Stale:
    """Stands where the node was of what has been changed since. by, line: the op that did it, and the user's line."""

    by: str
    line: str


class Aliases:
    """The nodes of the tensors a function holds. Tensors that it closes over are known by whether they take a gradient
    too: W and W.detach() share a geometry, but not that."""

    def __init__(self) -> None:
        self.nodes: dict[Geometry, fx.Node | Stale] = {}
        self.closed_over: dict[tuple[Geometry, bool], fx.Node] = {}
        self.alive: list[Tensor] = []  # a geometry is an address: it must not be given away again
        self.parts: dict[Geometry, tuple[Part, Geometry]] = {}  # views, and the geometry of what they are part of
        self.unsure: dict[int, str] = {}  # memory that may be shared with other memory, and why that is not known

    def __contains__(self, tensor: Tensor) -> bool:
        return geometry(tensor) in self.nodes

    def put(self, tensor: Tensor, node: fx.Node) -> None:
        self.alive.append(tensor)
        self.nodes[geometry(tensor)] = node

    def put_part(self, tensor: Tensor, part: Part | None) -> None:
        """`tensor` is a view at a place that nobody has seen before: what gives a known place again, as the transposed
        of a transposed one does, is no part of its own part."""
        if part is not None:
            self.parts[geometry(tensor)] = part, geometry(part.whole)

    def wholes(self, tensor: Tensor) -> Iterator[Part]:
        """Gives it as a part of its whole, that as a part of the next one, and so on: as far as autograd has them as
        views too, unlike the results of unsafe_split, as their numbers are known, and as none has been turned in place
        since."""
        base, place = base_of(tensor), geometry(tensor)
        while place in self.parts:
            part, place = self.parts[place]
            known = geometry(part.whole) == place and isinstance(self.find(part.whole), fx.Node)
            if not known or base_of(part.whole) is not base:
                return
            yield part

    def close_over(self, tensor: Tensor, node: fx.Node) -> None:
        self.closed_over[geometry(tensor), tensor.requires_grad] = node

    def find(self, tensor: Tensor) -> fx.Node | Stale | None:
        place = geometry(tensor)
        return self.nodes.get(place) or self.closed_over.get((place, tensor.requires_grad))

    def may_share(self, why: str, *tensors: Tensor) -> None:
        """From now on nobody may write to the memory of any of them."""
        for tensor in tensors:
            while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                tensor = torch._C._functorch.get_unwrapped(tensor)
            self.unsure.setdefault(tensor.untyped_storage()._cdata, why)

    def check_writable(self, changed: Tensor, others: list[Tensor], op: str) -> None:
        """Raise `Unsupported` for a change in place that PyTorch refuses, or of which it is not known what it changes.
        others: what else the op reads."""
        place, meets = geometry(changed), met_by(changed)
        what = self.unsure.get(place[0])
        if any(geometry(other) != place and meets(geometry(other)) for other in others):
            what = "reads what it changes in place through another view"
        if is_expanded(changed):
            what = EXPANDED
        if what:
            raise Unsupported(what, op=op, mend=RETURN_NEW)

    def change(self, changed: Tensor, node: fx.Node, op: str, line: str) -> None:
        """The node is what `changed` stands for from here on. line: the user's, of the change. Raises `Unsupported`
        where an input shares its memory."""
        meets = met_by(changed)
        captured = [(place, node) for (place, _), node in self.closed_over.items()]
        for place, known in [*self.nodes.items(), *captured]:
            if isinstance(known, fx.Node) and meets(place):
                if known.op == "placeholder":
                    raise Unsupported("changes an input in place", op=op, mend=mend_in_place(RETURN_NEW))
                self.nodes[place] = Stale(op, line)
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
