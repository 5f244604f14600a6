"""Print one step of a Triton kernel whose values have several axes: each program has one row.

What a group stores stays in registers for whoever reads the same columns in the same order. What is read in another
way goes through memory, where the threads of a program meet (`tl.debug_barrier`) before one reads what another has
written, or writes what another may still have to read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from bppsa.codegen.gpu.triton.axes_tiles import AxesTile, ColumnSet, GroupAxes, tile_size
from bppsa.codegen.gpu.triton.axes_units import ColumnUnits
from bppsa.codegen.gpu.triton.print_load import mask
from bppsa.codegen.gpu.triton.print_tile import TRITON
from bppsa.codegen.language.expr import Access, Dot, Expr, Shape, Strides
from bppsa.codegen.language.ir import Group, Kernel, Kind, Reduce, Store

MOST_HELD = 4096  # elements of a parameter's tile that stays in registers for all steps
MOST_PRODUCT = 4096  # elements of a weight that are multiplied at a time
CLEAN = {Reduce.ROWS: "0.0", Reduce.COLUMNS: "0.0", Reduce.MAX: 'float("-inf")'}
FOLDED = {
    Reduce.ROWS: "tl.sum({}, {}, keep_dims=True)",
    Reduce.COLUMNS: "tl.sum({}, {}, keep_dims=True)",
    Reduce.MAX: "largest({}, {})",
}


@dataclass(frozen=True)
class Residence:
    """What the printing of a step found out before: the states that are carried in registers, by the columns that the
    step starts from, and the buffers that are read from memory, so that they must be there."""

    carried: Mapping[ColumnSet, AxesTile]
    in_memory: Collection[str]


@dataclass(frozen=True)
class ColumnTotal:
    """A sum over steps: the variable that adds up, and where it goes in the end."""

    name: str
    shape: Shape
    at: str
    mask: str


class AxesStepPrinter:
    """units: what a program takes of each group. scratch: where in its memory each SCRATCH buffer begins."""

    def __init__(self, kernel: Kernel, units: ColumnUnits, residence: Residence, scratch: Mapping[str, int]) -> None:
        self.kernel, self.residence, self.scratch = kernel, residence, scratch
        self.kinds = kernel.kinds
        self.head: list[str] = []
        self.lines: list[str] = []
        self.held: dict[ColumnSet, AxesTile] = dict(residence.carried)
        self.fetched: dict[ColumnSet, AxesTile] = {}  # what was read from memory
        self.left: set[ColumnSet] = set()  # what is stored into RUNNING buffers
        self.sums: dict[tuple[ColumnSet, Shape], ColumnTotal] = {}
        self._pending: list[tuple[ColumnSet, bool]] = []  # reads and writes of memory since the threads met
        self._late: list[tuple[ColumnSet, GroupAxes, Strides, str]] = []
        self._once: dict[object, str] = {}
        self._count = 0
        for group, cut in zip(kernel.groups, units.cuts, strict=True):
            self.group(group, GroupAxes(group, cut, units.count))
        for columns, axes, strides, name in self._late:
            self.to_memory(columns, axes, strides, name)

    def emit(self, text: str) -> str:
        self._count += 1
        self.lines.append(f"v{self._count} = {text}")
        return f"v{self._count}"

    def once(self, key: object, prefix: str, text: str) -> str:
        """A variable that is made before all steps."""
        if key not in self._once:
            self._once[key] = f"{prefix}{len(self._once)}"
            self.head.append(f"{self._once[key]} = {text}")
        return self._once[key]

    def group(self, group: Group, axes: GroupAxes) -> None:
        values: dict[Expr, AxesTile] = {}
        for node in group.nodes():
            values[node] = self.value(node, [values[a] for a in node.args], axes)
        commit = {Reduce.NONE: self.store, Reduce.COLUMNS: self.sum_columns}
        for store in group.stores:  # after all loads
            commit.get(store.reduce, self.fold)(store, values[store.value], axes)

    def value(self, node: Expr, args: Sequence[AxesTile], axes: GroupAxes) -> AxesTile:
        payload, rank = node.payload, len(axes.shape)
        if isinstance(payload, Access):
            return self.load(payload, axes.strides[payload], axes)
        if isinstance(payload, Dot):
            return self.dot(payload, axes)
        if payload is not None:
            text = repr(payload) if math.isfinite(payload) else f'float("{payload}")'
            name = self.once((text, rank), "k", f"tl.full({[1] * rank}, {text}, REAL)")
            return AxesTile(name, (1,) * rank, ())
        shape = tuple(map(max, *(a.shape for a in args))) if len(args) > 1 else args[0].shape
        return AxesTile(self.emit(TRITON[node.op].format(*(a.name for a in args))), shape, ())

    # ---- loads

    def load(self, access: Access, strides: Strides, axes: GroupAxes) -> AxesTile:
        after = access.after and self.kinds[access.buffer] is Kind.STATE
        columns = axes.columns(access, access, after=after)
        shape, sizes = axes.tile_shape(strides), axes.sizes(strides)
        if self.kinds[access.buffer] is Kind.VECTOR:
            return AxesTile(self.parameter(columns, axes, strides), shape, sizes)
        found = self.held.get(columns)
        if found is not None and found.fits(sizes):
            return self.reshaped(found, shape)
        name = self.from_memory(columns, f"{self.start(columns, 't')}{offsets(self, axes, strides)}", axes, strides)
        tile = AxesTile(name, shape, sizes)
        self.held.setdefault(columns, tile)
        self.fetched.setdefault(columns, tile)
        return tile

    def from_memory(self, columns: ColumnSet, at: str, axes: GroupAxes, strides: Strides) -> str:
        self.meet(columns, writes=False)
        return self.emit(f"tl.load({at}{masked(self, axes, strides)})")

    def parameter(self, columns: ColumnSet, axes: GroupAxes, strides: Strides) -> str:
        """It does not change: small ones stay in registers."""
        shape = axes.tile_shape(strides)
        text = f"tl.load({self.start(columns, 't')}{offsets(self, axes, strides)}{masked(self, axes, strides)})"
        if math.prod(shape) <= MOST_HELD:
            return self.once((columns, shape), "u", text)
        return self.emit(text)

    def reshaped(self, tile: AxesTile, shape: Shape) -> AxesTile:
        if tile.shape == shape:
            return tile
        return AxesTile(self.emit(f"tl.reshape({tile.name}, {list(shape)})"), shape, tile.sizes)

    def dot(self, term: Dot, axes: GroupAxes) -> AxesTile:
        """The source as a column times the weight's rows, summed down; of large weights some rows at a time."""
        depth = self.kernel.buffer(term.weight).depth
        (width,), (size,) = axes.shape, axes.padded
        n = index(self, 1, 2, size)
        keep = [] if size == width else [f"({n} < {width})"]
        tile = min(tile_size(depth), max(1, MOST_PRODUCT // size))
        k = index(self, 0, 2, tile)
        rows = Access(term.source.buffer, term.source.column, after=term.source.after)
        after = rows.after and self.kinds[rows.buffer] is Kind.STATE
        source = ColumnSet(rows.buffer, after, rows.column, ((depth, 1),) if depth > 1 else ())
        weight = f"{term.weight}_at + ({{k}}) * {term.weight}_k + ({term.column} + {n}) * {term.weight}_n"
        if tile >= depth:
            conditions = [*keep, *([] if tile == depth else [f"({k} < {depth})"])]
            text = f"tl.load({weight.format(k=k)}{mask(conditions)})"
            small = tile * size <= MOST_HELD
            matrix = self.once((term, size), "w", text) if small else self.emit(text)
            left = self.source(source, k, tile, depth)
            total = self.emit(f"tl.sum({left} * {matrix}, 0)")
        else:
            self.meet(source, writes=False)
            self.fetched[source] = AxesTile("", (), (), in_parts=True)
            total = self.emit(f"tl.zeros([{size}], REAL)")
            at = f"(first_k + {k})"
            left = f"tl.load({self.start(source, 't')} + {at}{mask([f'({at} < {depth})'])})"
            right = f"tl.load({weight.format(k=at)}{mask([*keep, f'({at} < {depth})'])})"
            self.lines += [
                f"for first_k in range(0, {depth}, {tile}):",
                f"    {total} += tl.sum({left} * {right}, 0)",
            ]
        return AxesTile(total, (size,), (width,))

    def source(self, columns: ColumnSet, k: str, tile: int, depth: int) -> str:
        """A product's source, [tile, 1], zeros beyond its depth."""
        found, sizes = self.held.get(columns), (depth,) if depth > 1 else ()
        if found is not None and found.fits(sizes):
            name = self.reshaped(found, (tile, 1)).name
            return name if tile == depth else self.emit(f"tl.where({k} < {depth}, {name}, 0.0)")
        self.meet(columns, writes=False)
        self.fetched.setdefault(columns, AxesTile("", (), sizes))
        conditions = [] if tile == depth else [f"({k} < {depth})"]
        return self.emit(f"tl.load({self.start(columns, 't')} + {k}{mask(conditions)})")

    # ---- stores

    def store(self, store: Store, value: AxesTile, axes: GroupAxes) -> None:
        self.write(store, value, axes, axes.strides[store])

    def fold(self, store: Store, value: AxesTile, axes: GroupAxes) -> None:
        self.write(store, self.folded(store, value, axes), axes, axes.strides[store])

    def folded(self, store: Store, value: AxesTile, axes: GroupAxes) -> AxesTile:
        """Along the axes that the target does not keep; what stands beyond their ends counts for nothing."""
        away = [a for a, stride in enumerate(axes.strides[store]) if not stride]
        if not away:
            return value
        shape = tuple(p if a in away else own for a, (p, own) in enumerate(zip(axes.padded, value.shape, strict=True)))
        name = value.name if shape == value.shape else self.emit(f"tl.broadcast_to({value.name}, {list(shape)})")
        moves = tuple(int(a in away) for a in range(len(shape)))
        if conditions := inside(self, axes, moves):
            name = self.emit(f"tl.where({' & '.join(conditions)}, {name}, {CLEAN[store.reduce]})")
        for a in away:
            name = self.emit(FOLDED[store.reduce].format(name, a))
        return AxesTile(name, tuple(1 if a in away else n for a, n in enumerate(shape)), ())

    def write(self, store: Store, value: AxesTile, axes: GroupAxes, strides: Strides) -> None:
        kind, shape = self.kinds[store.target.buffer], axes.tile_shape(strides)
        after = store.target.after if kind is Kind.STATE else kind is Kind.RUNNING
        columns = axes.columns(store.target, store, after=after)
        name = value.name
        if value.shape != shape:
            name = self.emit(f"tl.broadcast_to({name}, {list(shape)})")
        self.held = {known: tile for known, tile in self.held.items() if not known.meets(columns)}
        self.held[columns] = AxesTile(name, shape, axes.sizes(strides))
        if kind is Kind.RUNNING:  # all of the step may read what the one before left
            self.left.add(columns)
            if store.target.buffer in self.residence.in_memory:
                self._late.append((columns, axes, strides, name))
        elif kind is not Kind.SCRATCH or store.target.buffer in self.residence.in_memory:
            self.to_memory(columns, axes, strides, name)

    def to_memory(self, columns: ColumnSet, axes: GroupAxes, strides: Strides, name: str) -> None:
        self.meet(columns, writes=True)
        text = masked(self, axes, strides, other="")
        self.lines.append(f"tl.store({self.start(columns, 't')}{offsets(self, axes, strides)}, {name}{text})")

    def meet(self, columns: ColumnSet, *, writes: bool) -> None:
        """Wait for the other threads where they may touch these columns, too."""
        here = replace(columns, after=False) if self.kinds[columns.buffer] is Kind.RUNNING else columns
        if any((writes or wrote) and before.meets(here) for before, wrote in self._pending):
            self.lines.append("tl.debug_barrier()")
            self._pending = []
        self._pending.append((here, writes))

    def sum_columns(self, store: Store, value: AxesTile, axes: GroupAxes) -> None:
        strides = axes.strides[store]
        columns, shape = axes.columns(store.target, store, after=False), axes.tile_shape(strides)
        part = self.folded(store, value, axes).name
        if (columns, shape) not in self.sums:
            at = f"{self.start(columns, 't')}{offsets(self, axes, strides)}"
            total = ColumnTotal(f"s{len(self.sums)}", shape, at, masked(self, axes, strides))
            self.sums[columns, shape] = total
        self.lines.append(f"{self.sums[columns, shape].name} += {part}")

    def start(self, columns: ColumnSet, time: str) -> str:
        """The address of the first column, of the row of step `time` where there is one for each."""
        name, kind = columns.buffer, self.kinds[columns.buffer]
        column = f"{columns.column}" + (f" + unit * {columns.unit}" if columns.unit else "")
        if kind is Kind.SCRATCH:
            return f"scratch_row + {self.scratch[name]} + {column}"
        if kind in (Kind.STREAM, Kind.STATE):
            side = {False: " + reverse", True: " + 1 - reverse"}[columns.after] if kind is Kind.STATE else ""
            return f"{name}_row + ({time}{side}).to(tl.int64) * {name}_t + {column}"
        return f"{name}_row + {column}" if kind is not Kind.VECTOR else f"{name}_at + {column}"


def index(step: AxesStepPrinter, axis: int, rank: int, size: int) -> str:
    """0, 1, ... along an axis of a tile."""
    return step.once(("index", axis, rank, size), "i", numbered(axis, rank, size))


def numbered(axis: int, rank: int, size: int) -> str:
    where = ", ".join(":" if a == axis else "None" for a in range(rank))
    return f"tl.arange(0, {size})" + (f"[{where}]" if rank > 1 else "")


def offsets(step: AxesStepPrinter, axes: GroupAxes, strides: Strides) -> str:
    rank = len(axes.shape)
    moves = [(index(step, a, rank, axes.padded[a]), stride) for a, stride in enumerate(strides) if stride]
    if not moves:
        return f" + {step.once(('zero', rank), 'z', f'tl.full({[1] * rank}, 0, tl.int32)')}"
    return "".join(f" + {i}" if stride == 1 else f" + {i} * {stride}" for i, stride in moves)


def inside(step: AxesStepPrinter, axes: GroupAxes, strides: Strides) -> list[str]:
    """The conditions that an element is none of the padding."""
    sizes = zip(axes.shape, axes.padded, strides, strict=True)
    rank = len(axes.shape)
    return [f"({index(step, a, rank, p)} < {n})" for a, (n, p, stride) in enumerate(sizes) if stride and n != p]


def masked(step: AxesStepPrinter, axes: GroupAxes, strides: Strides, other: str = ", other=0.0") -> str:
    return mask(inside(step, axes, strides), other)
