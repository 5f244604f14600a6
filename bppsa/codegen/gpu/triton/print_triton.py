"""Print a kernel as one Triton function: a program sweeps a chunk of time for a block of rows, all in registers.

The chunks of a call run side by side. Chunk c covers `chunk` steps from c * chunk on. A RUNNING buffer has a part for
each chunk, [chunks, B, n]: what stands before the chunk's first step, in the sweep's direction, and in the end what its
last step left. So has a STATE that chunks write, [chunks, chunk + 1, B, n], or one chunk's last row would be what
another one starts from. So many `columns` of RUNNING rows share a sample: a row of everything else. Where they are
many, a program takes columns of one sample (`columns.Block`). A STATE that the sweep writes is read from memory where a
chunk begins, then carried in registers. `native.py` calls the function. Kernels whose values have several axes are
`sweep_axes`'s.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bppsa.codegen.gpu.triton.columns import ROWS, Block, Columns, Piece, Tile, blocks, padded
from bppsa.codegen.gpu.triton.frame import BYTES, HEAD, STRIDES, TYPES, PrintedTriton
from bppsa.codegen.gpu.triton.print_load import Loads, mask, span
from bppsa.codegen.gpu.triton.print_tile import StepPrinter
from bppsa.codegen.gpu.triton.sweep_axes import has_axes, printed_axes
from bppsa.codegen.gpu.triton.tiling import tiles
from bppsa.codegen.language.ir import Buffer, Group, Kernel, Kind, Reduce

COLUMNS_A_WARP = 8  # as many as one tensor core instruction gives
# Each warp splits all rows of a product for 3xTF32, so half as many repeat half of that: where rows share a sample and
# the weights' elements are so few, a thread has registers for twice the columns.
HELD_HALVED = 3 * 32 * 32
WIDEST_SHARED = 32  # columns of a tile where rows share what they can, counted in instructions (`make aot`)
THREADS_A_WARP = 32
HELD_BYTES = 64 << 10  # of weights kept in a program's shared memory, which holds them twice when split for 3xTF32
# How many bytes of streams a thread reads a whole step ahead. A step with products of MOST columns takes as long as
# memory does, and has no registers to spare: there each stream is read again after its last use.
EARLY_BYTES = 128

PLACED = """\
{place}
    if lengths is None:
        length = tl.where(sampled, steps, 0)
    else:
        length = tl.load(lengths + sample, mask=sampled, other=0).to(tl.int32)
    start = part * chunk
    stop = tl.minimum(start + chunk, steps)
    since = tl.full([{block.samples}, 1], 0, tl.int32) + start
    until = tl.minimum(stop, length)
    first = tl.where(direction > 0, start, stop - 1)
    entry = tl.where(direction > 0, since, until - 1)
    enters = (entry >= since) & (entry < until)
"""
# Which rows a program takes, [rows, 1], and of which samples, [samples, 1]. For `Block.shared`, or not.
PLACE = {
    False: """\
    in_chunk = tl.cdiv(rows, {block.rows})
    part = tl.program_id(0) // in_chunk
    row = (tl.program_id(0) % in_chunk).to(tl.int64) * {block.rows} + tl.arange(0, {block.rows})[:, None]
    inside = row < rows
    sampled = inside
    sample = row // columns""",
    True: """\
    in_sample = tl.cdiv(columns, {block.rows})
    in_chunk = rows // columns * in_sample
    part = tl.program_id(0) // in_chunk
    column = tl.program_id(0) % in_sample * {block.rows} + tl.arange(0, {block.rows})[:, None]
    inside = column < columns
    sample = tl.full([1, 1], 0, tl.int64) + tl.program_id(0) % in_chunk // in_sample
    sampled = sample >= 0
    row = sample * columns + column""",
}
LOOP = """\
    for i in range(stop - start):
        t = first + i * direction
        live = t < length
        ahead = t + direction
        coming = (ahead >= since) & (ahead < until)
"""


@dataclass(frozen=True)
class Carried:
    """Columns [column, column + width) of a buffer, from step to step in the variable `name`."""

    name: str
    buffer: Buffer
    column: int
    width: int
    stored: bool


@functools.lru_cache(maxsize=256)
def printed(kernel: Kernel, real: str, columns: int = 1) -> PrintedTriton:
    """`real` is "float" or "double". columns: RUNNING rows a sample."""
    if has_axes(kernel):
        return printed_axes(kernel, real)
    block = block_of(kernel, columns)
    loads = _SweepPrinter(kernel, block, hold=True, early=True).loads
    halved = block.shared and loads.held <= HELD_HALVED
    warps = max(1, warps_of(kernel) // 2) if halved else warps_of(kernel)
    hold = loads.held * BYTES[real] <= HELD_BYTES
    early = loads.columns_fetched * block.samples * BYTES[real] <= EARLY_BYTES * warps * THREADS_A_WARP
    return PrintedTriton(_SweepPrinter(kernel, block, hold=hold, early=early).text(real), warps, block)


def holds_weights(kernel: Kernel, real: str) -> bool:
    """Whether a program keeps them for all its steps. A step that reads them again takes many times as long; of values
    of several axes only the large ones are."""
    return (
        has_axes(kernel)
        or _SweepPrinter(kernel, block_of(kernel, 1), hold=True, early=True).loads.held * BYTES[real] <= HELD_BYTES
    )


def stores_over(group: Group, name: str, after: bool, piece: Piece) -> bool:
    return any(
        (target.buffer, target.after) == (name, after)
        and target.column < piece.stop
        and piece.start < target.column + group.width
        for target in (store.target for store in group.stores)
    )


def widest(kernel: Kernel) -> int:
    """Columns of its widest tile."""
    return max(padded(width) for spans in tiles(kernel) for _, width in spans)


def block_of(kernel: Kernel, columns: int) -> Block:
    """Few columns would leave most of a shared tile empty; beside wide products there is little to save."""
    return Block(ROWS, columns >= ROWS and widest(kernel) <= WIDEST_SHARED)


def warps_of(kernel: Kernel) -> int:
    """The number of a program's warps: its widest tile says how many it keeps busy."""
    return max(1, widest(kernel) // COLUMNS_A_WARP)


class _SweepPrinter:
    def __init__(self, kernel: Kernel, block: Block, *, hold: bool, early: bool) -> None:
        self.kernel, self.block = kernel, block
        self.loads = Loads(kernel, block, hold, early)
        self.step = StepPrinter(kernel, self.loads)
        self.buffers = {b.name: b for b in kernel.buffers}
        self.carried = list(self.parts())
        for c in self.carried:
            behind = self.step.rows.setdefault((c.buffer.name, not self.front(c.buffer)), Columns())
            behind.write(c.column, Tile(c.name, c.width, block.rows))
        self.met = False  # whether the threads have met in this step
        self.done = {(c.buffer.name, not self.front(c.buffer), c.column, c.name) for c in self.carried}
        for i, (group, spans) in enumerate(zip(kernel.groups, tiles(kernel), strict=True)):
            self.step.group(group, spans)
            self.flush(kernel.groups[i + 1 :])
        self.carry()

    def front(self, buffer: Buffer) -> bool:
        """Which side of a step, `after` or not, the next step starts from."""
        return self.kernel.along if buffer.kind is Kind.STATE else True

    def parts(self) -> Iterator[Carried]:
        """What is carried, cut where the stores cut it. A STATE's columns that no store covers are read from memory."""
        count = 0
        for b in self.kernel.buffers:
            if b.kind not in (Kind.STATE, Kind.RUNNING):
                continue
            written = self.stored(b)
            cuts = {0, b.width, *(edge for low, high in written for edge in (low, high))}
            for low, high in pairwise(sorted(cuts)):
                stored = any(a <= low and high <= z for a, z in written)
                for at, width in blocks(high - low) if stored or b.kind is Kind.RUNNING else ():
                    yield Carried(f"h{count}", b, low + at, width, stored)
                    count += 1

    def stored(self, buffer: Buffer) -> list[tuple[int, int]]:
        """The tiles stored into the side that the next step starts from."""
        side = self.kernel.along and buffer.kind is Kind.STATE
        targets = [
            (store.target.column + at, width)
            for group, spans in zip(self.kernel.groups, tiles(self.kernel), strict=True)
            for store in group.stores
            if store.target.buffer == buffer.name and store.target.after == side and store.reduce is Reduce.NONE
            for at, width in spans
        ]
        return [(column, column + width) for column, width in targets]

    def flush(self, later: Sequence[Group]) -> None:
        """Store what stays in memory as soon as no later group stores over it: registers are free sooner. Other threads
        than those that load a column may store it: they wait until it was read."""
        for (name, after), columns in self.step.rows.items():
            if self.buffers[name].kind not in (Kind.STREAM, Kind.STATE):
                continue
            for piece in columns.pieces:
                key = (name, after, piece.start, piece.tile.name)
                if key not in self.done and not any(stores_over(group, name, after, piece) for group in later):
                    self.done.add(key)
                    self.write(name, after, piece)

    def write(self, name: str, after: bool, piece: Piece) -> None:
        if name in self.loads.fetched.values() and not self.met:
            self.met = True
            self.step.lines.append("tl.debug_barrier()")
        size = padded(piece.tile.width)
        c = self.loads.columns(size)
        within = mask(["live", *span(c, *piece.columns, size)], other="")
        at = f"{self.loads.place(name, after, 't')} + {piece.start - piece.offset} + {c}"
        self.step.lines.append(f"tl.store({at}, {piece.tile.name}{within})")

    def carry(self) -> None:
        """In a packed batch, rows that take no part in the step keep what they had. What one carries on of another is
        read before that one changes."""
        stored = [c for c in self.carried if c.stored]
        new = {c.name: self.step.of_all_rows(self.step.joined(list(self.front_columns(c)))) for c in stored}
        new = {name: self.step.emit(value) if value in new else value for name, value in new.items()}
        if new:
            all_rows = [f"    {name} = {value}" for name, value in new.items()]
            live_rows = [f"    {name} = tl.where(live, {value}, {name})" for name, value in new.items()]
            self.step.lines += ["if lengths is None:", *all_rows, "else:", *live_rows]

    def front_columns(self, c: Carried) -> Iterator[Piece]:
        front = self.step.rows[c.buffer.name, self.front(c.buffer)]
        return front.cover(c.column, c.column + c.width, self.loads_nothing)

    @staticmethod
    def loads_nothing(column: int, width: int) -> Tile:
        raise AssertionError(f"columns from {column} on are carried, but nothing stores them")

    def text(self, real: str) -> str:
        parameters = [f"{b.name}_{part}" for b in self.kernel.arguments for part in ("at", *STRIDES[b.kind])]
        rows = [
            f"{b.name}_rows = {b.name}_at + {'row' if b.kind is Kind.RUNNING else 'sample'} * {b.name}_b"
            + (f" + part.to(tl.int64) * {b.name}_c" if b.kind is Kind.STATE else "")
            for b in self.kernel.arguments
            if b.kind in (Kind.STREAM, Kind.STATE, Kind.RUNNING)
        ]
        sums = [f"{name} = {self.loads.zeros(width)}" for (_, _, width), name in self.step.sums.items()]
        tail = [*self.finals(), *self.partial_sums()]
        starts = [f"{c.name} = {self.initial(c)}" for c in self.carried]
        before = [*rows, *self.loads.head, *starts, *sums]
        return "".join(
            [
                HEAD.format(name=self.kernel.name, parameters=", ".join(parameters), real=TYPES[real]),
                PLACED.format(place=PLACE[self.block.shared].format(block=self.block), block=self.block),
                *(f"    {line}\n" for line in before),
                LOOP,
                *(f"        {line}\n" for line in self.loads.loop(self.step.lines)),
                *(f"    {line}\n" for line in tail),
            ]
        )

    def initial(self, c: Carried) -> str:
        """A row that joins within the chunk starts from the STATE before its own first step."""
        if c.buffer.kind is Kind.STATE:
            return self.loads.row(c.buffer.name, not self.front(c.buffer), c.column, c.width, "entry", "enters")
        at, conditions = self.running(c)
        return f"tl.load({at}{mask(conditions)})"

    def running(self, c: Carried) -> tuple[str, list[str]]:
        """Where columns of a RUNNING stand in memory, and the conditions that they are a row's own."""
        size, name = padded(c.width), c.buffer.name
        columns = self.loads.columns(size)
        at = f"{name}_rows + part.to(tl.int64) * {name}_c + {c.column} + {columns}"
        return at, ["inside", *span(columns, 0, c.width, size)]

    def finals(self) -> Iterator[str]:
        """Over what other threads may have read before the first step, where a program has no step that waits."""
        last = [c for c in self.carried if c.stored and c.buffer.kind is Kind.RUNNING]
        if last:
            yield "tl.debug_barrier()"
        for c in last:
            at, conditions = self.running(c)
            yield f"tl.store({at}, {c.name}{mask(conditions, other='')})"

    def partial_sums(self) -> Iterator[str]:
        for (name, column, width), total in self.step.sums.items():
            size = padded(width)
            columns = self.loads.columns(size)
            within = mask(span(columns, 0, width, size), other="")
            at = f"{name}_at + tl.program_id(0).to(tl.int64) * {self.buffers[name].width} + {column} + {columns}"
            yield f"tl.store({at}, tl.sum({total}, 0, keep_dims=True){within})"
