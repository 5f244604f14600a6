"""How many threads sweep a row, and what each of them owns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bppsa.codegen.language.expr import SPECIAL, Dot
from bppsa.codegen.language.ir import Kernel
from bppsa.errors import Reason

WARP = 32
MOST_THREADS = 1024  # of a block
REGISTERS = 65536  # of a multiprocessor, each of 4 bytes
MOST_REGISTERS = 255  # of a thread
BESIDE = 100  # of a thread, for what is not a weight: values of a step, what is fetched ahead, addresses
MOST_PARTS = 16
WORDS = {"float": 1, "double": 2}  # registers a number takes
QUAD = 4  # numbers that one load of shared memory gives


@dataclass(frozen=True)
class Lanes:
    """Thread i owns unit i // parts of a row, and of each dot product the part i % parts of its terms.

    Unit u owns columns u, u + units, u + 2 units, ... of a group. Where there are none left it repeats the group's last
    column, so that it has nothing to ask within a step."""

    units: int
    parts: int

    @property
    def threads(self) -> int:
        return self.units * self.parts

    @property
    def warps(self) -> int:
        return self.threads // WARP

    def pieces(self, width: int) -> int:
        return -(-width // self.units)

    def is_full(self, width: int, piece: int) -> bool:
        """Whether every unit owns a column of this piece."""
        return width >= (piece + 1) * self.units


@dataclass(frozen=True)
class HeldWeight:
    """The columns of a weight that threads hold for dot products: `width` from `column` on, `depth` numbers each."""

    name: str
    column: int
    width: int
    depth: int

    def held(self, lanes: Lanes) -> int:
        """Numbers that a thread holds for each piece."""
        span = lanes.parts * QUAD
        return QUAD * (self.depth // span) if self.depth % span == 0 else -(-self.depth // lanes.parts)

    def in_quads(self, lanes: Lanes) -> bool:
        return self.depth % (lanes.parts * QUAD) == 0


def weights_of(kernel: Kernel) -> dict[HeldWeight, None]:
    return dict.fromkeys(weight_of(kernel, dot, group.width) for group in kernel.groups for dot in group.dots)


def weight_of(kernel: Kernel, dot: Dot, width: int) -> HeldWeight:
    return HeldWeight(dot.weight, dot.column, width, kernel.buffer(dot.weight).depth)


def choices(kernel: Kernel) -> Iterator[Lanes]:
    """Fewest threads first."""
    dots = [group.width for group in kernel.groups if group.dots]
    widest = max(dots or [group.width for group in kernel.groups], default=1)
    parts = 1
    while parts <= MOST_PARTS:
        units = -(-widest * parts // WARP) * WARP // parts
        if units * parts <= MOST_THREADS:
            yield Lanes(units, parts)
        parts *= 2


def lanes_of(kernel: Kernel, real: str) -> Lanes | Reason:
    """The fewest threads whose registers hold all weights."""
    if any(group.shape for group in kernel.groups):
        return Reason("values of several axes", f"CUDA kernel {kernel.name}", "Triton's kernels have them")
    if any(node.op in SPECIAL for group in kernel.groups for node in group.nodes()):
        return Reason("a special function", f"CUDA kernel {kernel.name}", "the loop runs it")
    weights = weights_of(kernel)
    for lanes in choices(kernel):
        held = WORDS[real] * sum(w.held(lanes) * lanes.pieces(w.width) for w in weights)
        if held + BESIDE * WORDS[real] <= min(MOST_REGISTERS, REGISTERS // lanes.threads):
            return lanes
    return Reason("more weights than the registers of a block hold", f"CUDA kernel {kernel.name}", "a narrower state")
