"""What a call of a recurrence comes to by each strategy: phases, and the work of each, counted from its kernels.

The phases are those of `recurrent/backward.py`: forward, then reduce, scan and the backward sweep; what stands around
the sweeps as products over all steps at once is "products". A Newton forward (`newton`) sweeps and reduces chunks too;
what an iteration does besides is "correct".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bppsa.plan.cost import Phase, Work
from bppsa.plan.forward import NEWTON, REPLAYED, SEQUENTIAL, Forward, division
from bppsa.plan.levels import complexity
from bppsa.plan.strategy import Division, Strategy, divide

PYTORCH = "pytorch"
LOOP = "loop"  # the peer of a cell that Python steps through
# What a flop whose result is summed along an axis takes, in flops of a product with a weight: its operands come from
# memory one by one. 10 to 13 on a CPU, by convolutions of 4 to 32 channels on grids of 8 to 32.
FOLD = 12
ITERATIONS = 4  # of Newton's that a forward is taken to need; what converges takes two to six


@dataclass(frozen=True)
class Each:
    """What one row and step take. folded: flops whose results are summed along axes, beside the others."""

    flops: float
    bytes: float
    folded: float = 0.0

    @property
    def swept(self) -> float:
        """Flops as long as those of a product with a weight take a sweep."""
        return self.flops + FOLD * self.folded


@dataclass(frozen=True)
class Products:
    """Matrix products over all rows and steps: how many, and of one row and step."""

    count: int
    each: Each


@dataclass(frozen=True)
class Counts:
    """What one layer and direction have; bytes in its dtype, flops in multiples of float32's.

    peer: the kind whose rates PyTorch has ("RNN", "GRU", "LSTM", "loop"); ops: that it launches in a step.
    weights: bytes. blocks, width: the dense blocks of one step's J^T. tile: rows of a program, warps: of it; fits:
    whether it keeps the weights. padding: how many times as wide its tiles are as what is in them.
    again: of a forward that keeps every k-th state, and of the backward that computes the others again, where one sweep
    each way is these. iterations: of Newton's that a forward is taken to need. replay: of what PyTorch's forward has
    not kept; hidden: of the recurrence of the carries that it does not show. launches: of a sweep and all around it;
    together: points up to which one sweep each way is a program, and that is one launch.
    """

    peer: str
    ops: int
    inference: Each
    forward: Each
    backward: Each
    before: Products
    after: Products
    weights: int
    blocks: int
    width: int
    word: int  # bytes of a number
    tile: int = 1
    warps: int = 1
    fits: bool = True
    padding: float = 1.0
    again: tuple[Each, Each] | None = None
    iterations: int = ITERATIONS
    replay: Each | None = None
    hidden: Counts | None = None
    launches: int = 1
    together: int = 0

    def pieces(self, rows: int, chunks: int = 1) -> int:
        return math.ceil(rows / self.tile) * self.warps * chunks


@dataclass(frozen=True)
class Size:
    """T and B."""

    steps: int
    rows: int

    @property
    def points(self) -> int:
        return self.steps * self.rows


def phases(
    strategy: Strategy | str, counts: Counts, size: Size, training: bool, ahead: Forward = SEQUENTIAL
) -> list[Phase]:
    """The phases of a forward, and in `training` of a backward, by a strategy or by PyTorch."""
    first = forward(strategy, counts, size, training, ahead)
    return first + (backward(strategy, counts, size) if training else [])


def forward(
    strategy: Strategy | str, counts: Counts, size: Size, training: bool, ahead: Forward = SEQUENTIAL
) -> list[Phase]:
    """ahead: how; PyTorch has one way."""
    name, each = ("forward", counts.forward) if training else ("inference", counts.inference)
    if strategy == PYTORCH:
        return [by_pytorch(name, counts, size, each, counts.before)]
    if ahead.name == "newton":
        return newton(counts, size, division(ahead, size.steps))
    if ahead.name == "pytorch":
        return library(counts, size, training)
    if training and counts.again is not None and in_one_sweep(strategy, size):
        each = counts.again[0]
    return [*products(counts.before, counts, size), (name, sweep(each, counts, size))]


def backward(strategy: Strategy | str, counts: Counts, size: Size) -> list[Phase]:
    if isinstance(strategy, str):
        return [by_pytorch("backward", counts, size, counts.backward, counts.after)]
    division = divide(strategy, size.steps)
    chunked = [] if division.count == 1 else to_boundaries(strategy, counts, size)
    each = counts.backward if counts.again is None or division.count > 1 else counts.again[1]
    chunks = () if division.count == 1 else (min(division.length, size.steps), division.count)
    sweeps = sweep(each, counts, size, *chunks)
    return [*chunked, ("backward", sweeps), *products(counts.after, counts, size)]


def in_one_sweep(strategy: Strategy | str, size: Size) -> bool:
    return not isinstance(strategy, str) and divide(strategy, size.steps).count == 1


def library(counts: Counts, size: Size, training: bool) -> list[Phase]:
    """PyTorch's own forward, as it is without gradients; then what our backward reads beside its output."""
    theirs = by_pytorch("inference", counts, size, counts.inference, counts.before)
    if not training or counts.replay is None:
        return [theirs]
    hidden = [] if counts.hidden is None else newton(counts.hidden, size, division(NEWTON, size.steps))
    replay = sweep(counts.replay, counts, size, REPLAYED, math.ceil(size.steps / REPLAYED))
    return [theirs, *hidden, *products(counts.before, counts, size), ("forward", replay)]


def newton(counts: Counts, size: Size, shots: Division) -> list[Phase]:
    """The phases of a forward by Newton's iteration: a sweep of all chunks side by side before the first and in each,
    which begins with the products; and in each the chunks' reductions and, along them, the corrections."""
    swept = sweep(counts.forward, counts, size, min(shots.length, size.steps), shots.count)
    matrices = shots.count * size.rows * counts.blocks * counts.width**2
    correct = Work(1, shots.count, 2 * matrices, matrices * counts.word, size.rows)
    sweeps, iterations = [*products(counts.before, counts, size), ("forward", swept)], counts.iterations
    between = [("reduce", reduction(shots, counts, size)), ("correct", correct)]
    return [
        (name, work.times(count))
        for count, parts in ((iterations + 1, sweeps), (iterations, between))
        for name, work in parts
    ]


def sweep(each: Each, counts: Counts, size: Size, length: int | None = None, chunks: int = 1) -> Work:
    """Over all steps, or over chunks of `length` steps side by side."""
    steps = size.steps if length is None else length
    moved = each.bytes * size.points + counts.weights
    is_program = length is None and size.points <= counts.together
    launches = 1 if is_program else counts.launches
    return Work(launches, steps, each.swept * size.points, moved, counts.pieces(size.rows, chunks))


def to_boundaries(strategy: Strategy, counts: Counts, size: Size) -> list[Phase]:
    """What leads to the cotangent that enters each chunk: its reduction to a pair, and the scan over the pairs."""
    division = divide(strategy, size.steps)
    tree = complexity(division.scan)
    matrices = size.rows * counts.blocks
    launches = len(division.scan.up) + 1 + len(division.scan.down)
    held = division.count * matrices * counts.width * columns_of(counts) * counts.word
    scan = Work(launches, tree.steps, tree.flops(counts.width) * matrices, held, size.rows)
    return [("reduce", reduction(division, counts, size)), ("scan", scan)]


def reduction(division: Division, counts: Counts, size: Size) -> Work:
    """The work of making every chunk a pair: the backward's step on the columns of a matrix, that share what is
    read."""
    columns = math.ceil(columns_of(counts) / counts.tile) * counts.tile
    padded = counts.backward.swept * (counts.padding**2 if counts.width > 1 else 1)
    flops, moved = padded * columns * size.points, counts.backward.bytes * size.points
    pieces = counts.pieces(size.rows * columns, division.count)
    return Work(1, min(division.length, size.steps), flops, moved + counts.weights, pieces)


def columns_of(counts: Counts) -> int:
    """A basis of the blocks, what enters, and NaN."""
    return counts.width + 2


def products(of: Products, counts: Counts, size: Size) -> list[Phase]:
    if not of.count:
        return []
    moved = of.each.bytes * size.points + counts.weights
    width = counts.pieces(size.points)
    return [("products", Work(of.count, 0, of.each.flops * size.points, moved, width))]


def by_pytorch(name: str, counts: Counts, size: Size, each: Each, around: Products) -> Phase:
    """The same flops and bytes, at PyTorch's rates; a loop in Python launches every op of every step."""
    launches = counts.ops * size.steps if counts.peer == LOOP else 1
    flops, moved = each.flops + each.folded + around.each.flops, each.bytes + around.each.bytes
    work = Work(launches, size.steps, flops * size.points, moved * size.points + counts.weights, None)
    return f"{counts.peer} {name}", work
