"""Print a kernel whose values have several axes as one Triton function: a program sweeps a chunk of time for one row,
or for one unit of it where its columns fall apart (`axes_units`).

It is called as what `print_triton` prints is. States and what runs along are carried in registers where a step reads
them as the one before has stored them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from bppsa.codegen.gpu.triton.axes_tiles import AxesTile, ColumnSet, GroupAxes, tile_size
from bppsa.codegen.gpu.triton.axes_units import units_of
from bppsa.codegen.gpu.triton.columns import Block
from bppsa.codegen.gpu.triton.frame import HEAD, STRIDES, TYPES, PrintedTriton
from bppsa.codegen.gpu.triton.print_axes import AxesStepPrinter, Residence, numbered
from bppsa.codegen.gpu.triton.print_load import mask
from bppsa.codegen.language.ir import Kernel, Kind

ALIGNED = 32  # elements at which scratch begins
ELEMENTS_A_THREAD = 8
MOST_WARPS = 16
MOST_NUMBERS = 32768  # of the widest value in one program

PLACE = """\
    unit = tl.program_id(0) % {units}
    part = tl.program_id(0) // {units} // rows
    row = (tl.program_id(0) // {units} % rows).to(tl.int64)
    sample = row // columns
    length = steps
    if lengths is not None:
        length = tl.load(lengths + sample).to(tl.int32)
    start = part * chunk
    until = tl.minimum(tl.minimum(start + chunk, steps), length)
    count = tl.maximum(until - start, 0)
    first = tl.where(direction > 0, start, until - 1)
"""
LOOP = """\
    for i in range(count):
        t = first + i * direction
"""


def has_axes(kernel: Kernel) -> bool:
    return any(group.shape for group in kernel.groups)


def numbers(kernel: Kernel) -> int:
    """How many numbers the widest value has that a program holds, with padding."""
    units = units_of(kernel)
    groups = zip(kernel.groups, units.cuts, strict=True)
    return max((prod(GroupAxes(group, cut, units.count).padded) for group, cut in groups), default=1)


def printed_axes(kernel: Kernel, real: str) -> PrintedTriton:
    """`real` is "float" or "double"."""
    sweep = _AxesSweepPrinter(kernel)
    warps = min(MOST_WARPS, max(1, numbers(kernel) // (32 * ELEMENTS_A_THREAD)))
    return PrintedTriton(sweep.text(real), warps, Block(1, False), sweep.size, sweep.units.count)


class _AxesSweepPrinter:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.units = kernel, units_of(kernel)
        self.kinds = kernel.kinds
        residence = Residence({}, frozenset())
        while True:
            self.scratch, self.size = placed(kernel, residence)
            self.step = AxesStepPrinter(kernel, self.units, residence, self.scratch)
            found = self.resident()
            if found == residence:
                break
            residence = found
        self.carried = residence.carried

    def resident(self) -> Residence:
        """What the step that was printed shows: what it reads from memory, and what it could have from the step
        before."""
        step, carried = self.step, dict(self.step.residence.carried)
        for columns, tile in step.fetched.items():
            after = step.held.get(self.next_of(columns))
            fits = after is not None and after.fits(tile.sizes) and not tile.in_parts
            if fits and self.behind(columns) and columns not in carried:
                shape = tuple(map(tile_size, tile.sizes)) or (1,)
                carried[columns] = AxesTile(f"h{len(carried)}", shape, tile.sizes)
        new = carried.keys() - step.residence.carried.keys()
        read = {columns.buffer for columns, tile in step.fetched.items() if tile.in_parts or columns not in new}
        # What is not carried on is in memory after each step, what is carried after the last one.
        read |= {columns.buffer for columns in step.left if replace(columns, after=False) not in carried}
        return Residence(carried, frozenset(name for name in read if self.kinds[name] in (Kind.SCRATCH, Kind.RUNNING)))

    def behind(self, columns: ColumnSet) -> bool:
        """Whether these columns are what a step starts from, and not the other side of it."""
        kind = self.kinds[columns.buffer]
        return kind is Kind.RUNNING or (kind is Kind.STATE and columns.after != self.kernel.along)

    def next_of(self, columns: ColumnSet) -> ColumnSet:
        """The place at which the step stores what the next one reads there."""
        return replace(columns, after=not columns.after)

    def carry(self) -> list[str]:
        """All new values are read before one of them is replaced."""
        new = {}
        lines = []
        for columns, tile in self.carried.items():
            value = self.step.held[self.next_of(columns)]
            same = value.shape == tile.shape
            text = value.name if same else f"tl.reshape({value.name}, {list(tile.shape)})"
            lines.append(f"{tile.name}_next = {text}")
            new[tile.name] = f"{tile.name}_next"
        return [*lines, *(f"{name} = {value}" for name, value in new.items())]

    def text(self, real: str) -> str:
        kernel = self.kernel
        parameters = [f"{b.name}_{part}" for b in kernel.arguments for part in ("at", *STRIDES[b.kind])]
        parameters += ["scratch_at"] if self.size else []
        starts = [f"{tile.name} = {self.at_entry(columns, tile)}" for columns, tile in self.carried.items()]
        sums = [f"{total.name} = tl.zeros({list(total.shape)}, REAL)" for total in self.step.sums.values()]
        step = [*self.step.lines, *self.carry(), *(["tl.debug_barrier()"] if self.meets_itself() else [])]
        tail = [*self.finals(), *self.partial_sums()]
        before = [*self.rows(), *starts, *sums]
        return "".join(
            [
                HEAD.format(name=kernel.name, parameters=", ".join(parameters), real=TYPES[real]),
                PLACE.format(units=self.units.count),
                *(f"    {line}\n" for line in before),
                LOOP,
                *(f"        {line}\n" for line in step),
                *(f"    {line}\n" for line in tail),
            ]
        )

    def rows(self) -> Iterator[str]:
        """Addresses of the program's row of each buffer, then what holds for all steps."""
        for b in self.kernel.arguments:
            if b.kind is Kind.RUNNING:
                yield f"{b.name}_row = {b.name}_at + part.to(tl.int64) * {b.name}_c + row * {b.name}_b"
            if b.kind is Kind.STREAM:
                yield f"{b.name}_row = {b.name}_at + sample * {b.name}_b"
            if b.kind is Kind.STATE:
                yield f"{b.name}_row = {b.name}_at + part.to(tl.int64) * {b.name}_c + sample * {b.name}_b"
            if b.kind is Kind.COLUMN_SUM:
                yield f"{b.name}_row = {b.name}_at + tl.program_id(0).to(tl.int64) * {b.width}"
        if self.size:
            yield f"scratch_row = scratch_at + tl.program_id(0).to(tl.int64) * {self.size}"
        yield from self.step.head

    def place(self, columns: ColumnSet, tile: AxesTile) -> tuple[str, list[str]]:
        """The addresses of a carried tile, and the conditions that they are its own."""
        rank, parts, conditions = len(tile.shape), [], []
        stride_of = strides_of(columns, tile.sizes)
        for a, (n, stride) in enumerate(zip(tile.sizes, stride_of, strict=True)):
            i = numbered(a, rank, tile.shape[a])
            parts.append(f" + {i} * {stride}")
            conditions += [f"({i} < {n})"] if n != tile.shape[a] else []
        return self.step.start(columns, "first") + ("".join(parts) or " + tl.arange(0, 1)"), conditions

    def at_entry(self, columns: ColumnSet, tile: AxesTile) -> str:
        """Where no step runs, there may be no state before one."""
        at, conditions = self.place(columns, tile)
        conditions += ["(count > 0)"] if self.kinds[columns.buffer] is Kind.STATE else []
        return f"tl.load({at}{mask(conditions)})"

    def finals(self) -> Iterator[str]:
        """Over what was read before the first step."""
        last = [c for c in self.carried.items() if self.kinds[c[0].buffer] is Kind.RUNNING]
        last = [(columns, tile) for columns, tile in last if columns.buffer not in self.step.residence.in_memory]
        if last:
            yield "tl.debug_barrier()"
        for columns, tile in last:
            at, conditions = self.place(columns, tile)
            yield f"tl.store({at}, {tile.name}{mask(conditions, other='')})"

    def partial_sums(self) -> Iterator[str]:
        """Each adds to what others have left in the same columns; all begin with zeros."""
        for total in self.step.sums.values():
            yield f"{total.name} += tl.load({total.at}{total.mask})"
            yield "tl.debug_barrier()"
            yield f"tl.store({total.at}, {total.name}{total.mask.replace(', other=0.0', '')})"
            yield "tl.debug_barrier()"

    def meets_itself(self) -> bool:
        """Whether a step reads or writes over what the one before has in memory: rows of streams are its own."""
        states = {c.buffer for c in self.step.fetched if self.kinds[c.buffer] is Kind.STATE and self.behind(c)}
        written = {store.target.buffer for group in self.kernel.groups for store in group.stores}
        return bool(self.step.residence.in_memory) or not written.isdisjoint(states)


def placed(kernel: Kernel, residence: Residence) -> tuple[dict[str, int], int]:
    """The place at which each SCRATCH buffer begins in a program's memory, and its size."""
    at, found = 0, {}
    for b in kernel.buffers:
        if b.kind is Kind.SCRATCH:
            found[b.name] = at
            at += -(-b.width // ALIGNED) * ALIGNED if b.name in residence.in_memory else 0
    return found, at


def strides_of(columns: ColumnSet, sizes: tuple[int, ...]) -> list[int]:
    """The stride of each of a tile's axes, which the columns' moves hold merged."""
    found: list[int] = []
    left = [list(move) for move in columns.moves]
    for size in reversed(sizes):
        rest, stride = left[-1]
        found.append(stride)
        if rest == size:
            left.pop()
        else:
            left[-1] = [rest // size, stride * size]
    return found[::-1]
