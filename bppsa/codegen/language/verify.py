"""What a kernel must satisfy to mean the same to the interpreter and to every printer. A violation is a bug of ours."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from bppsa.codegen.language.expr import STRUCTURAL, Access, Dot, Shape, contiguous, span
from bppsa.codegen.language.ir import FOLDS, Group, Kernel, Kind, Reduce

REDUCED = {Reduce.COLUMNS: Kind.COLUMN_SUM, Reduce.ROWS: Kind.SCRATCH, Reduce.MAX: Kind.SCRATCH}
WRITABLE = {Kind.STREAM, Kind.STATE, Kind.RUNNING, Kind.SCRATCH}


def verify(kernel: Kernel) -> Kernel:
    """Return `kernel`, or raise AssertionError naming what is wrong."""
    names = [b.name for b in kernel.buffers]
    assert len(names) == len(set(names)), f"{kernel.name}: a buffer is declared twice"
    written: set[str] = set()
    for at, group in enumerate(kernel.groups):
        for problem in (*check_nodes(kernel, group, written), *check_stores(kernel, group)):
            raise AssertionError(f"{kernel.name}, group {at}: {problem}")
        written |= {store.target.buffer for store in group.stores}
    return kernel


def check_nodes(kernel: Kernel, group: Group, written: set[str]) -> Iterator[str]:
    if group.shape and prod(group.shape) != group.width:
        yield f"{group.width} columns in axes {group.shape}"
    for node in group.nodes():
        payload = node.payload
        if len(node.args) != node.op.arity:
            yield f"{node.op} takes {node.op.arity} operands, not {len(node.args)}"
        if (node.op in STRUCTURAL) != (payload is not None):
            yield f"{node.op} with payload {payload}"
        if isinstance(payload, Access):
            yield from check_strides(payload, group.shape)
            yield from check_read(kernel, payload, group.width, written, group.shape)
        if isinstance(payload, Dot):
            weight = kernel.buffer(payload.weight)
            if group.shape:
                yield f"{payload} in a group of axes {group.shape}"
            if weight.kind is not Kind.WEIGHT or payload.column + group.width > weight.width:
                yield f"{payload} reads outside {weight}"
            if payload.source.broadcast and weight.depth > 1:
                yield f"{payload} multiplies one column with {weight.depth} rows of {weight}"
            yield from check_read(kernel, payload.source, weight.depth, written)


def check_strides(access: Access, shape: Shape) -> Iterator[str]:
    """A group of axes says of each access how it moves along them; one that does not move at all is broadcast."""
    if access.broadcast:
        if access.strides:
            yield f"{access} does not move and has strides"
    elif len(access.strides) != len(shape) or (shape and not any(access.strides)):
        yield f"{access} in a group of axes {shape}"


def check_read(kernel: Kernel, access: Access, width: int, written: set[str], shape: Shape = ()) -> Iterator[str]:
    buffer = kernel.buffer(access.buffer)
    start, stop = span(access, width, shape)
    if start < 0 or stop > buffer.width:
        yield f"{access} reads {width} columns of {buffer}"
    if buffer.kind in (Kind.WEIGHT, Kind.COLUMN_SUM):
        yield f"{access} loads from {buffer}"
    if buffer.kind is Kind.SCRATCH and buffer.name not in written:
        yield f"{access} is read before any group of the step stores it"


def check_stores(kernel: Kernel, group: Group) -> Iterator[str]:
    loads = {n.payload for n in group.nodes() if isinstance(n.payload, Access)}
    for store in group.stores:
        target, buffer = store.target, kernel.buffer(store.target.buffer)
        if group.shape:
            yield from check_strides(target, group.shape)
            yield from check_fold(group, target, store.reduce)
        width = 1 if store.reduce in FOLDS and not group.shape else group.width
        stop = span(target, width, group.shape)[1] if group.shape else target.column + width
        if stop > buffer.width:
            yield f"{store} goes outside {buffer}"
        if store.reduce is Reduce.NONE and buffer.kind not in WRITABLE:
            yield f"{store} into a {buffer.kind}"
        if store.reduce is not Reduce.NONE and buffer.kind is not REDUCED[store.reduce]:
            yield f"{store} into a {buffer.kind}"
        for access in loads:
            if overlaps(access, target, group) and buffer.kind is Kind.STREAM:
                yield f"{store} overlaps {access}, which is not the same columns"


def check_fold(group: Group, target: Access, reduce: Reduce) -> Iterator[str]:
    """What is kept of the axes stands row-major without gaps, so that a fold can begin by filling it; and where nothing
    is folded each element has a column of its own."""
    strides = target.strides or (0,) * len(group.shape)
    kept = tuple(size for size, stride in zip(group.shape, strides, strict=True) if stride)
    if tuple(s for s in strides if s) != contiguous(kept) and reduce is not Reduce.NONE:
        yield f"{target} keeps axes {kept} in another order than theirs, or with gaps"
    if reduce is Reduce.NONE and not all(strides):
        yield f"{target} stores several elements into one column"


def overlaps(read: Access, target: Access, group: Group) -> bool:
    """Loads and stores of one group may meet only column for column: tiles of columns run one after the other."""
    width = group.width
    if read.buffer != target.buffer or read == target or (width == 1 and read.column == target.column):
        return False
    (start, end), (low, high) = (span(access, width, group.shape) for access in (read, target))
    return start < high and low < end
