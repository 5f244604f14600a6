"""Which tensors of a logged call share memory, and which value each of them stands for.

A tensor is known by its geometry. Places of one memory are a tree: a view hangs on what it is a view of. A write makes
a new value of its place; what it covers, and what else meets it, is stale, and is viewed anew when it is read. What
holds the place remembers the write, and joins all such writes when it is read: `out[:, t] = h` for all t is one stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa.errors import Unsupported
from bppsa.fxpasses.recording.aliases import EXPANDED, RETURN_NEW, Geometry, is_expanded, marked_geometry
from bppsa.fxpasses.reroll.log.ops import Like, LoggedOp, LoggedValue, stack_spec
from bppsa.fxpasses.reroll.log.places import MemoryPlace, whole_of
from bppsa.fxpasses.reroll.log.put_back import PUT_BACK, Emit, emit_shaped, put_between
from bppsa.fxpasses.theirs import raise_if_ours

aten = torch.ops.aten
LIVES_ON = "changes a tensor in place that it was given or holds, as a batch norm or spectral norm in training does"
WINDOW = 32  # steps of a slice that may be read in each step


class TensorMemory:
    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self.places: dict[Geometry, MemoryPlace] = {}
        self.begun: dict[int, Tensor] = {}  # in which the call has a gradient end, by identity
        # Arguments, of which one may be a view of another: as they are seen, by identity.
        self.given: dict[int, tuple[Tensor, Geometry, LoggedValue]] = {}
        self.alive: list[Tensor] = []  # a geometry is an address: it must not be given away again

    def find(self, tensor: Tensor, returned: bool = False) -> LoggedValue | None:
        """returned: whether its strides count, which are those of a view."""
        here = marked_geometry(tensor)
        argument, seen, given = self.given.get(id(tensor), (None, None, None))
        if argument is tensor and seen == here:
            return given
        place = self.places.get(here)
        if place is None:
            return None
        value = self.read(place, windows=not returned)
        if not place.divided or self.has_gradient(tensor):
            return value
        if place.detached is None:
            raise Unsupported("reads a detached view of what was changed in place", mend="detach a copy")
        return place.detached

    def holds(self, tensor: Tensor) -> bool:
        """Whether the call itself has made the memory."""
        place = self.places.get(marked_geometry(tensor))
        return place is not None and not place.given

    def is_detached(self, tensor: Tensor) -> bool:
        """Whether it has no gradient, in memory that others see with one."""
        place = self.places.get(marked_geometry(tensor))
        return place is not None and place.divided and not self.has_gradient(tensor)

    def has_gradient(self, tensor: Tensor) -> bool:
        """Whether autograd knows a way from it to what its memory holds: not beyond a tensor in which a gradient ends,
        as in `h.detach().requires_grad_()`. A view made without gradients says that it requires one where its base
        does."""
        whole = tensor if tensor._base is None else tensor._base
        return tensor.requires_grad and id(whole) not in self.begun and not is_unseen(tensor)

    def postpone(self, tensor: Tensor, source: Tensor, view: LoggedOp) -> None:
        """`tensor` is a view of `source`, which is an op once it is read."""
        here = marked_geometry(tensor)
        self.alive.append(tensor)
        known = self.places.get(here)
        if known is None or known.value is known.detached:  # nobody has seen it with its gradient
            self.places[here] = place = MemoryPlace(LoggedValue(tensor), self.places[marked_geometry(source)], view)
            place.stale = True
            if known is not None:
                place.detached, place.divided = known.detached, known.divided

    def put(self, tensor: Tensor, value: LoggedValue, source: Geometry | None, detached: bool) -> None:
        """source: what `tensor` is a view of. detached: whether autograd knows no way from it to what the memory holds,
        which other views have."""
        here = marked_geometry(tensor)
        self.alive.append(tensor)
        known = self.places.get(here)
        if known is None:
            parent = self.places[source] if source is not None else None
            self.places[here] = known = MemoryPlace(value, parent, value.op if parent is not None else None, value.item)
            known.detached = value if detached and parent is not None else None
        elif detached:
            if known.value is known.detached:  # nobody has seen it with its gradient: the latest stands for both
                known.value = value
            known.detached = value
        elif known.stale or known.value is known.detached or not self.is_within(source, known):
            known.value, known.stale = value, False
            known.written.clear()
        known.divided = known.divided or known.detached is not None

    def is_within(self, source: Geometry | None, whole: MemoryPlace) -> bool:
        """Whether it is the whole, or a view of it: what gives the whole again gives nothing new."""
        place = self.places.get(source) if source is not None else None
        while place is not None and place is not whole:
            place = place.parent
        return place is whole

    def write(self, tensor: Tensor, value: LoggedValue, op: str) -> None:
        """`value` is what stands at the place of `tensor` from here on."""
        if is_expanded(tensor):
            raise Unsupported(EXPANDED, op=op, mend=RETURN_NEW)
        place = self.places.get(marked_geometry(tensor))
        if place is None or place.given:
            raise Unsupported(LIVES_ON, op=op, mend="do it outside of the loop")
        for held in place.lineage():
            if any(other in held.parent.written for other in held.meeting()):
                self.read(held.parent)  # with what was written to them, before they are spoiled
        place.spoil()
        place.value, place.stale = value, False
        for held in place.lineage():
            held.parent.detached = None
            for other in held.meeting():
                other.spoil()
            held.parent.written.pop(held, None)
            held.parent.written[held] = None

    def read(self, place: MemoryPlace, windows: bool = True) -> LoggedValue:
        if place.stale:
            assert place.parent is not None
            if windows and self.is_untouched(place, place.parent):
                place.value = self.viewed(place, place.parent.value)
            else:
                window = self.window(place, place.parent) if windows else None
                place.value = window if window is not None else self.viewed(place, self.read(place.parent))
            place.stale = False
        if place.written:
            written = list(place.written)
            place.written.clear()
            place.value = self.joined(place, written)
        return place.value

    def is_untouched(self, place: MemoryPlace, whole: MemoryPlace) -> bool:
        """Whether what was written to the whole is elsewhere, as in `out[:, t] += h`: it shows the value before."""
        return not whole.stale and not any(other in whole.written for other in place.meeting())

    def window(self, place: MemoryPlace, whole: MemoryPlace) -> LoggedValue | None:
        """What a slice shows of steps that are written one by one, as `out[:, t - 3 : t]` does: a stack of them, which
        is the same in each step. None where it is another view, or its steps are too many."""
        written = {child.index: child for child in whole.written}
        if place.span is None or whole.stale or not written or any(index is None for index in written):
            return None
        dim, first, last = place.span
        if not 0 < last - first <= WINDOW or any(index[0] != dim for index in written if index is not None):
            return None
        items = [self.step_of(whole, written.get((dim, at)), dim, at) for at in range(first, last)]
        return self.emit(aten.stack.default, [*items, dim], (stack_spec(len(items)), place.like))

    def step_of(self, whole: MemoryPlace, written: MemoryPlace | None, dim: int, at: int) -> LoggedValue:
        """What stands at one step; where nothing was written since, it is that of the value before."""
        if written is not None:
            return self.read(written)
        shape = torch.Size([*whole.like.shape[:dim], *whole.like.shape[dim + 1 :]])
        return self.emit(aten.select.int, [whole.value, dim, at], (((None,) * 3, ()), Like(shape, whole.like.dtype)))

    def viewed(self, place: MemoryPlace, source: LoggedValue) -> LoggedValue:
        view = place.view
        assert view is not None
        if not view.single:
            raise Unsupported("reads a view of what was changed in place", str(view.target), RETURN_NEW)
        return self.emit(view.target, [source, *view.leaves[1:]], (view.spec, place.like))

    def joined(self, place: MemoryPlace, written: list[MemoryPlace]) -> LoggedValue:
        at = [child.index for child in written]
        dims = {index[0] for index in at if index is not None}
        if None not in at and len(dims) == 1:
            by_index = {index[1]: child for index, child in zip(at, written, strict=True) if index is not None}
            if len(by_index) == max(by_index) + 1 - min(by_index):
                return self.run_of(place, dims.pop(), by_index)
        whole = whole_of(written, place)
        if whole:
            items = [self.read(child) for child in whole]
            return self.emit(aten.cat.default, [*items, whole[0].span[0]], (stack_spec(len(items)), place.like))
        value = place.value
        for child in written:
            value = self.scattered(value, self.read(child), child, place)
        return value

    def run_of(self, place: MemoryPlace, dim: int, steps: Mapping[int, MemoryPlace]) -> LoggedValue:
        """The value where steps that follow one another were written, by their index."""
        first, last = min(steps), max(steps) + 1
        shape = torch.Size([*place.like.shape[:dim], last - first, *place.like.shape[dim + 1 :]])
        items = [self.read(steps[i]) for i in range(first, last)]
        like = place.like if shape == place.like.shape else Like(shape, place.like.dtype)
        emit = self.emitting(steps[last - 1])
        made = emit(aten.stack.default, [*items, dim], (stack_spec(len(items)), like))
        return made if like is place.like else put_between(emit, place.value, made, dim, first, last, place.like)

    def emitting(self, written: MemoryPlace) -> Emit:
        """Emits ops that have the line in which the user wrote to a place, and not that of who reads it."""

        def emit(target: Any, leaves: Sequence[Any], described: Any) -> LoggedValue:
            value = self.emit(target, leaves, described)
            if value.op is not None and written.view is not None:
                value.op.lines = written.view.lines
            return value

        return emit

    def scattered(self, value: LoggedValue, piece: LoggedValue, child: MemoryPlace, place: MemoryPlace) -> LoggedValue:
        """`value` with `piece` where `child` is a view of it."""
        view, emit = child.view, self.emitting(child)
        assert view is not None
        if child.index is not None:
            dim, at = child.index
            wide = emit_shaped(emit, aten.unsqueeze.default, [piece, dim], place.like, dim, 1)
            return put_between(emit, value, wide, dim, at, at + 1, place.like)
        scatter = PUT_BACK.get(view.target)
        if scatter is None:
            raise Unsupported("changes a view in place, and reads the whole", str(view.target), RETURN_NEW)
        return scatter(emit, value, piece, view, child.item, place.like)


def is_unseen(tensor: Tensor) -> bool:
    """Whether it is a view, made without gradients, of what has one."""
    base = tensor._base
    return base is not None and base.requires_grad and tensor.is_leaf and function_of(tensor) is None


def function_of(tensor: Tensor) -> Any:
    """Its grad_fn; None too of a view made without gradients and changed since, for which PyTorch raises an error."""
    try:
        return tensor.grad_fn
    except RuntimeError as error:
        raise_if_ours(error)
        return None
