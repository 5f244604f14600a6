"""What a kernel must satisfy to mean the same to the interpreter and to every printer. A violation is a bug of ours."""

from __future__ import annotations

from collections.abc import Iterator

from bppsa.codegen.ir import STRUCTURAL, Access, Dot, Group, Kernel, Kind, Reduce

REDUCED = {Reduce.COLUMNS: Kind.COLUMN_SUM, Reduce.ROWS: Kind.SCRATCH}
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
    for node in group.nodes():
        payload = node.payload
        if len(node.args) != node.op.arity:
            yield f"{node.op} takes {node.op.arity} operands, not {len(node.args)}"
        if (node.op in STRUCTURAL) != (payload is not None):
            yield f"{node.op} with payload {payload}"
        if isinstance(payload, Access):
            yield from check_read(kernel, payload, group.width, written)
        if isinstance(payload, Dot):
            weight = kernel.buffer(payload.weight)
            if weight.kind is not Kind.WEIGHT or payload.column + group.width > weight.width:
                yield f"{payload} reads outside {weight}"
            yield from check_read(kernel, payload.source, weight.depth, written)


def check_read(kernel: Kernel, access: Access, width: int, written: set[str]) -> Iterator[str]:
    buffer = kernel.buffer(access.buffer)
    if access.column + (1 if access.broadcast else width) > buffer.width:
        yield f"{access} reads {width} columns of {buffer}"
    if buffer.kind in (Kind.WEIGHT, Kind.COLUMN_SUM):
        yield f"{access} loads from {buffer}"
    if buffer.kind is Kind.SCRATCH and buffer.name not in written:
        yield f"{access} is read before any group of the step stores it"


def check_stores(kernel: Kernel, group: Group) -> Iterator[str]:
    loads = {n.payload for n in group.nodes() if isinstance(n.payload, Access)}
    for store in group.stores:
        target, buffer = store.target, kernel.buffer(store.target.buffer)
        width = 1 if store.reduce is Reduce.ROWS else group.width
        if target.column + width > buffer.width:
            yield f"{store} goes outside {buffer}"
        if store.reduce is Reduce.NONE and buffer.kind not in WRITABLE:
            yield f"{store} into a {buffer.kind}"
        if store.reduce is not Reduce.NONE and buffer.kind is not REDUCED[store.reduce]:
            yield f"{store} into a {buffer.kind}"
        for access in loads:
            if overlaps(access, target, group.width) and buffer.kind is Kind.STREAM:
                yield f"{store} overlaps {access}, which is not the same columns"


def overlaps(read: Access, target: Access, width: int) -> bool:
    """Loads and stores of one group may meet only column for column: tiles of columns run one after the other."""
    if read.buffer != target.buffer or read == target or (width == 1 and read.column == target.column):
        return False
    end = read.column + (1 if read.broadcast else width)
    return read.column < target.column + width and target.column < end
