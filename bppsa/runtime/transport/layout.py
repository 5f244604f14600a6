"""A value of a message as tensors and a description: what goes over the wire, and how it is put together again."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bppsa.runtime.transport.frames import Bytes

# Up to these sizes the latency of the process group, and of the threads that wait for it, is more than copying costs.
INLINE = 1 << 20  # bytes: tensors up to this size travel with the description
ALL_INLINE = 1 << 21  # bytes: of all such tensors of a message
COPIED = 1 << 17  # bytes: tensors up to this size, of which a message may have many, are copied when they are packed
LONGEST = 1 << 30  # bytes of the tensors of a letter
ALIGNED = 64  # bytes: where tensors begin in a letter, as in memory of PyTorch's own


@dataclass(frozen=True)
class TensorLayout:
    """One tensor: contiguous on the wire. inline: it travels with the description; device: its type at the source;
    gradient: whether it requires one."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str
    inline: bool
    gradient: bool

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """A value without its numbers: leaves[i] is None where the value holds another object than a plain tensor."""

    tree: pytree.TreeSpec
    leaves: tuple[TensorLayout | None, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        """The containers themselves travel: torch's own way to pickle a TreeSpec raises a warning."""
        return _with_containers, (pytree.tree_unflatten(range(len(self.leaves)), self.tree), self.leaves)


def _with_containers(containers: Any, leaves: tuple[TensorLayout | None, ...]) -> Layout:
    return Layout(pytree.tree_structure(containers), leaves)


@dataclass(frozen=True)
class PackedMessage:
    """small: the bytes of the inline tensors, in pieces, each tensor's filled up; large: the others, each one dimension
    of uint8 on the wire's device; objects: the leaves that are no tensors, pickled."""

    layout: Layout
    small: tuple[Bytes, ...]
    large: tuple[Tensor, ...]
    objects: bytes

    @property
    def fits(self) -> bool:
        """Whether all of it can go in one letter."""
        return sum(len(piece) for piece in (*self.small, *self.large)) < LONGEST

    @property
    def pieces(self) -> tuple[Bytes, ...]:
        """The bytes of all tensors, as they follow each other in a letter."""
        large = [piece for tensor in self.large for piece in filled_up(tensor.numpy().data)]
        return (*self.small, *large)


def pack(value: Any, wire: torch.device) -> PackedMessage:
    """Takes a pytree apart. Large tensors that are contiguous and on the wire's device are not copied."""
    leaves, tree = pytree.tree_flatten(value)
    layouts: list[TensorLayout | None] = []
    small: list[Bytes] = []
    large: list[Tensor] = []
    room = ALL_INLINE
    for leaf in leaves:
        if not _is_plain(leaf):
            layouts.append(None)
            continue
        inline = leaf.nbytes <= min(INLINE, room) and "cpu" in (leaf.device.type, wire.type)
        layouts.append(TensorLayout(tuple(leaf.shape), leaf.dtype, leaf.device.type, inline, leaf.requires_grad))
        if inline:
            room -= leaf.nbytes
            numbers = _as_bytes(leaf, torch.device("cpu")).numpy()
            small += filled_up(numbers.tobytes() if leaf.nbytes <= COPIED else numbers.data)
        else:
            large.append(_as_bytes(leaf, wire))
    objects = tuple(leaf for leaf, layout in zip(leaves, layouts, strict=True) if layout is None)
    pickled = pickle.dumps(objects) if objects else b""
    return PackedMessage(Layout(tree, tuple(layouts)), tuple(small), tuple(large), pickled)


def buffers(layout: Layout, wire: torch.device) -> tuple[Tensor, ...]:
    """Room for the large tensors of a message."""
    sizes = [leaf.bytes for leaf in layout.leaves if leaf and not leaf.inline]
    return tuple(torch.empty(size, dtype=torch.uint8, device=wire) for size in sizes)


def unpack(packed: PackedMessage, device: torch.device, into: Sequence[Tensor] | None = None) -> Any:
    """The value again. device: of tensors that were not on the CPU; into: tensors that take the values, in order."""
    small = memoryview(_joined(packed.small))
    objects = iter(pickle.loads(packed.objects) if packed.objects else ())
    large, targets = iter(packed.large), iter(into or ())
    start, leaves = 0, []
    for layout in packed.layout.leaves:
        if layout is None:
            leaves.append(next(objects))
            continue
        if layout.inline:
            flat = within(small, start, layout.bytes)
            start += padded(layout.bytes)
        else:
            flat = next(large)
        tensor = flat.view(layout.dtype).view(layout.shape)
        tensor = tensor if layout.device == "cpu" else tensor.to(device)
        tensor = tensor if into is None else _written(next(targets), tensor)
        leaves.append(tensor.requires_grad_(layout.gradient))
    return pytree.tree_unflatten(leaves, packed.layout.tree)


def padded(size: int) -> int:
    return size + -size % ALIGNED


def filled_up(piece: Bytes) -> Iterator[Bytes]:
    """The piece, and what is missing before the next one begins."""
    yield piece
    if len(piece) % ALIGNED:
        yield bytes(-len(piece) % ALIGNED)


def within(memory: memoryview, start: int, size: int) -> Tensor:
    """uint8: these bytes as a tensor, of the same memory where PyTorch could have given it."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    found = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start)
    return found.clone() if found.data_ptr() % ALIGNED else found


def _joined(pieces: Sequence[Bytes]) -> Bytes:
    """Writable."""
    own = len(pieces) == 1 and not memoryview(pieces[0]).readonly
    return pieces[0] if own else bytearray().join(pieces)


def _is_plain(leaf: Any) -> bool:
    return type(leaf) in (Tensor, torch.nn.Parameter) and leaf.layout == torch.strided and not leaf.is_quantized


def _as_bytes(tensor: Tensor, wire: torch.device) -> Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg().to(wire)
    return tensor.contiguous().view(-1).view(torch.uint8)


def _written(target: Tensor, tensor: Tensor) -> Tensor:
    with torch.no_grad():
        return target.copy_(tensor)
