"""What a scan over a feed-forward chain costs: entries of transposed Jacobians and of their products, bounded from
shapes and counts alone, without a pattern in hand (BPPSA sections 3.6 and 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bppsa.plan import levels
from bppsa.plan.strategy import Division


@dataclass(frozen=True)
class JacobianSize:
    """J^T of one sample: rows N, columns M, at most `nnz` entries; held: by the batch together (1) or by each sample.

    flops: of forming it from what is there anyway.
    """

    rows: int
    columns: int
    nnz: int
    held: int
    flops: int = 0

    @property
    def mv(self) -> int:
        """Multiplications and additions of J^T g, a sample."""
        return 2 * self.nnz

    def __matmul__(self, other: JacobianSize) -> JacobianSize:
        """The product. Entries are taken to lie evenly: each of ours meets a mean row of the other."""
        products = -(-self.nnz * other.nnz // max(self.columns, 1))
        held = max(self.held, other.held)
        nnz = min(products, self.rows * other.columns)
        return JacobianSize(self.rows, other.columns, nnz, held, self.flops + other.flops + 2 * products * held)

    def __add__(self, other: JacobianSize) -> JacobianSize:
        nnz = min(self.nnz + other.nnz, self.rows * self.columns)
        return JacobianSize(self.rows, self.columns, nnz, max(self.held, other.held), self.flops + other.flops)

    def bytes(self, itemsize: int) -> int:
        return self.nnz * self.held * itemsize


@dataclass(frozen=True)
class ScanLevel:
    """What a scan forms in one level: how many operators, their entries and bytes, and the work of it."""

    count: int
    nnz: int
    bytes: int
    flops: int
    densest: float

    def __str__(self) -> str:
        return (
            f"{self.count} formed, {self.nnz} non-zeros at most, {self.bytes / 2**20:.3g} MiB, "
            f"{self.flops / 1e6:.3g} MFLOP, density to {self.densest:.3g}"
        )


JacobianSizes = Sequence[JacobianSize]  # of a segment's stages, the last of the chain first


def formed(division: Division, stages: JacobianSizes, itemsize: int) -> list[ScanLevel]:
    """Level by level what the division forms. Level 0: the stages themselves that take part in a product."""
    if division.length > 1:
        return chunks(division, stages, itemsize)
    plan = division.scan
    a: list[JacobianSize | None] = [None, *stages]  # None: a vector
    used: dict[int, JacobianSize] = {}
    found = []
    for pairs in plan.up:
        made = []
        for left, right in pairs:
            before, after = a[left], a[right]
            if right == plan.n or before is None or after is None:
                a[right] = None if before is None else after
                continue
            for place, extent in ((left, before), (right, after)):
                if extent is (None, *stages)[place]:
                    used[place] = extent
            made.append(own_work(after, before))
            a[right] = after @ before
        found.append(level(made, itemsize))
    return [level(list(used.values()), itemsize), *(entry for entry in found if entry.count)] if used else []


def own_work(after: JacobianSize, before: JacobianSize) -> JacobianSize:
    """The product, with the work of this product alone."""
    product = after @ before
    return JacobianSize(
        product.rows, product.columns, product.nnz, product.held, product.flops - after.flops - before.flops
    )


def chunks(division: Division, stages: JacobianSizes, itemsize: int) -> list[ScanLevel]:
    """Every chunk but the last to be reached, whose product nobody applies, becomes one operator."""
    length = division.length
    used: list[JacobianSize] = []
    made: list[JacobianSize] = []
    for at in range(0, len(stages) - length, length):
        chunk = stages[at : at + length]
        used += chunk
        product = chunk[0]
        for stage in chunk[1:]:
            made.append(own_work(stage, product))
            product = stage @ product
    return [level(used, itemsize), level(made, itemsize)] if made else []


def level(extents: JacobianSizes, itemsize: int) -> ScanLevel:
    return ScanLevel(
        len(extents),
        sum(e.nnz for e in extents),
        sum(e.bytes(itemsize) for e in extents),
        sum(e.flops for e in extents),
        max((e.nnz / max(e.rows * e.columns, 1) for e in extents), default=0.0),
    )


def affordable(division: Division, stages: JacobianSizes, itemsize: int, budget: int) -> tuple[Division, str]:
    """The division, its up-sweep stopped where what it forms exceeds `budget` bytes (section 5.3), and what was
    skipped, or ""."""

    def needed(given: Division) -> int:
        return sum(entry.bytes for entry in formed(given, stages, itemsize))

    need = needed(division)
    if need <= budget:
        return division, ""
    what = f"needs {in_binary_units(need)} of {in_binary_units(budget)}"
    for up_levels in reversed(range(len(division.scan.up))):
        shorter = Division(1, len(stages), levels.hybrid(len(stages), up_levels))
        if needed(shorter) <= budget:
            return shorter, f"{what}: the up-sweep stops after {up_levels} of {len(division.scan.up)} levels"
    return Division(len(stages), 1, levels.linear(1)), f"{what}: one stage after the other"


def in_binary_units(count: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"
