"""Which of a model's arguments have the batch's rows: found once, with the example that the model is cut for.

The first tensor has rows. Another of as many may hold for all rows, such as a mask [T, T]. Parts of the batch are run
by themselves, in each reading of the arguments: in the right one the model gives for some rows what it gives for these
among all, and losses that make up the batch's. Where two readings give the same, other numbers may tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import combinations, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from bppsa.common.stages import Stages
from bppsa.decisions import warn_once
from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.call.arguments import Arguments
from bppsa.fxpasses.partition.call.certain import Certain
from bppsa.fxpasses.partition.call.kept import is_on_meta, kept, modes_kept
from bppsa.fxpasses.partition.call.results import magnitude, same
from bppsa.fxpasses.partition.check.verify import in_a_row, tried
from bppsa.fxpasses.theirs import theirs

KnownRows = Sequence[bool | None]
RowsReading = tuple[bool, ...]  # of each leaf of the arguments, whether it has rows
Tensors = Sequence[Tensor]
MOST = 64  # readings that are tried: all, of six arguments


def by_rows(model: nn.Module, stages: Stages, arguments: Arguments, known: KnownRows | None = None) -> RowsReading:
    """Tells of each leaf of the arguments whether it has rows. known: what symbols of sizes say, of which True alone is
    certain.

    Raises PartitionError, with the argument's name, where it cannot be told.
    """
    leaves, spec = tree_flatten(list(arguments.examples))
    rows = next((len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), 0)
    likely = tuple(isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == rows for leaf in leaves)
    sure = known or [None] * len(leaves)
    open_ones = [i for i, yes in enumerate(likely) if yes and sure[i] is not True and i != likely.index(True)]
    if not open_ones or not rows:
        return likely
    if is_on_meta(model):
        for i in (i for i in open_ones if sure[i] is None):
            why = "the model has no memory to try it in, and it is taken to have them"
            warn_once(f"{type(model).__name__}: {untold(arguments, i, why)}")
        return tuple(yes and sure[i] is not False for i, yes in enumerate(likely))
    if rows == 1:  # as for export, which takes a size of one for what never changes
        leaves, rows = [torch.cat([x, x]) if yes else x for x, yes in zip(leaves, likely, strict=True)], 2
    with evaluating(model, stages):
        left = PartRuns(model, stages, spec, rows, parts(rows)).told(leaves, likely, open_ones)
    if len(left) == 1:
        return left[0]
    i = next(i for i in open_ones if not left or len({reading[i] for reading in left}) > 1)
    why = "parts of the batch fit either way" if left else "cut or not, parts of the batch do not make it up"
    names = arguments.leaf_names
    raise PartitionError(
        f"{type(model).__name__}: {untold(arguments, i, why)}; where it has rows, let the forward say so, by assert "
        f"len({names[i]}) == len({names[likely.index(True)]}), or return what has rows, with loss_fn="
    )


def untold(arguments: Arguments, i: int, why: str) -> str:
    shape = list(arguments.leaves[i].shape)
    return (
        f"argument {arguments.leaf_names[i]} is a tensor {shape}, as long as the batch, and whether it has the batch's "
        f"rows cannot be told: {why}; where it holds for all rows, give example_inputs with another number of rows "
        f"than it has, such as {shape[0] + 1}"
    )


def readings(likely: RowsReading, open_ones: Sequence[int]) -> list[RowsReading]:
    """All that may have rows has them, or none of these, or some."""
    counts = dict.fromkeys((0, len(open_ones), *range(1, len(open_ones))))
    wholes = (some for count in counts for some in combinations(open_ones, count))
    return [tuple(yes and i not in some for i, yes in enumerate(likely)) for some in islice(wholes, MOST)]


def parts(rows: int) -> list[list[int]]:
    """Numbers of rows, two or more and never as many as there are; all rows come equally often."""
    few = {2: [[0, 0, 1], [0, 1, 1]], 3: [[0, 1], [1, 2], [0, 2]]}
    return few.get(rows) or [list(range(rows // 2)), list(range(rows // 2, rows))]


@dataclass(frozen=True)
class Verdict:
    """What is found of a reading that no part contradicts. made: what the parts give. by_rows: outputs that are cut
    with the batch. fits: whether all else makes up the batch's, by the number of rows."""

    made: Sequence[Sequence[Any]]
    by_rows: int
    fits: bool


@dataclass(frozen=True)
class PartRuns:
    """Runs of parts of a batch. chosen: the rows of each."""

    model: nn.Module
    stages: Stages
    spec: TreeSpec
    rows: int
    chosen: Sequence[Sequence[int]]

    def told(self, example: Sequence[Any], likely: RowsReading, open_ones: Sequence[int]) -> list[RowsReading]:
        """The readings that the example leaves, and other numbers after it: one if it can be told."""
        left = readings(likely, open_ones)
        seen: list[dict[RowsReading, Verdict]] = []
        varied: set[int] = set()
        for n, leaves in enumerate(numbers(example, likely, open_ones)):
            ends = self.ends(leaves)
            found = {} if ends is None else self.agreeing(leaves, ends, left)
            if found or n == 0:
                left = list(found)
                seen.append(found)
                varied |= {i for i in open_ones if not torch.equal(leaves[i], example[i])}
            if len(left) < 2:
                return left
        one = max(left, key=sum)
        others = {i for reading in left for i in open_ones if reading[i] != one[i]}
        alike = all(equal(found[one].made, found[reading].made) for found in seen for reading in left)
        return [one] if alike and others <= varied else left

    def agreeing(
        self, leaves: Sequence[Any], ends: Sequence[Any], left: Sequence[RowsReading]
    ) -> dict[RowsReading, Verdict]:
        found = {reading: verdict for reading in left if (verdict := self.verdict(leaves, ends, reading))}
        fit = {reading: verdict for reading, verdict in found.items() if verdict.fits}
        fit = fit or {reading: found[reading] for reading in found if self.weighs(leaves, reading)}
        if not fit:  # what has no rows mixes them, or counts them otherwise: what has rows may tell
            return {reading: verdict for reading, verdict in found.items() if verdict.by_rows}
        most = max(verdict.by_rows for verdict in fit.values())
        return {reading: verdict for reading, verdict in fit.items() if verdict.by_rows == most}

    def verdict(self, leaves: Sequence[Any], ends: Sequence[Any], reading: RowsReading) -> Verdict | None:
        made = []
        for chosen in self.chosen:
            found = self.ends(part_of(leaves, reading, chosen))
            if found is None or len(found) != len(ends):
                return None
            made.append(found)
        by_rows, singles, fits = 0, 0, True
        for whole, *pieces in zip(ends, *made, strict=True):
            if not isinstance(whole, Tensor) or not all(isinstance(x, Tensor) for x in pieces):
                continue
            if all(x.shape == whole.shape for x in pieces):
                singles += whole.is_floating_point()
                fits = fits and (not whole.is_floating_point() or self.makes_up(whole, pieces))
                continue
            expected = [parts_like(whole, x, self.rows, of) for x, of in zip(pieces, self.chosen, strict=True)]
            if any(ways and not any(same(x, y) for y in ways) for x, ways in zip(pieces, expected, strict=True)):
                return None
            by_rows += all(expected)
        return Verdict(made, by_rows, fits) if by_rows or singles else None

    def makes_up(self, whole: Tensor, pieces: Tensors) -> bool:
        """Whether it is the same for all rows, or a mean over them, or a sum."""
        counts = [len(chosen) for chosen in self.chosen]
        mean = sum(x * (n / sum(counts)) for x, n in zip(pieces, counts, strict=True))
        total = sum(pieces) * (self.rows / sum(counts))
        return same(mean, whole) or same(total, whole) or all(same(x, whole) for x in pieces)

    def weighs(self, leaves: Sequence[Any], reading: RowsReading) -> bool:
        """Whether the batch's loss is the parts', each by some weight, and its gradients are theirs by the same: parts
        of targets that do not count have other weights than by rows."""
        whole = self.graded(leaves)
        found = [self.graded(part_of(leaves, reading, chosen)) for chosen in self.chosen]
        pieces = [x for x in found if x is not None]
        if whole is None or len(pieces) < len(found) or sum(x.numel() for x in whole) <= len(pieces) + 1:
            return False
        gram = torch.tensor([[dot(a[1:], b[1:]) for b in (*pieces, whole)] for a in pieces], dtype=torch.float64)
        if not gram.isfinite().all():
            return False
        weights = (torch.linalg.pinv(gram[:, :-1], hermitian=True) @ gram[:, -1]).tolist()
        rest = [x - sum(w * y for w, y in zip(weights, of, strict=True)) for x, *of in zip(whole, *pieces, strict=True)]
        tolerance = max(torch.finfo(x.dtype).eps for x in whole) ** 0.5
        small = dot(rest[1:], rest[1:]) <= tolerance**2 * dot(whole[1:], whole[1:])
        return small and same(whole[0] - rest[0], whole[0])

    def graded(self, leaves: Sequence[Any]) -> Tensors | None:
        """The losses' sum and its gradients; None where there is none."""
        wanted = [x for x in self.model.parameters() if x.requires_grad]
        with torch.enable_grad():
            ends = self.ends(leaves) or ()
            losses = [x for x in ends if isinstance(x, Tensor) and x.dim() == 0 and x.requires_grad]
            if not losses or not wanted:
                return None
            loss = torch.stack(losses).sum()
            grads = tried(partial(theirs, torch.autograd.grad, loss, wanted, allow_unused=True, materialize_grads=True))
        return None if grads is None else [loss.detach(), *grads]

    def ends(self, leaves: Sequence[Any]) -> Sequence[Any] | None:
        """What the model returns; None where it raises what a forward may raise."""
        return tried(partial(self.run, leaves))

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        with kept(self.model), Certain():
            return tree_leaves(in_a_row(self.stages, tree_unflatten(copies(leaves), self.spec)))


def part_of(leaves: Sequence[Any], reading: RowsReading, chosen: Sequence[int]) -> list[Any]:
    return [leaf[list(chosen)] if cut else leaf for leaf, cut in zip(leaves, reading, strict=True)]


def copies(leaves: Sequence[Any]) -> list[Any]:
    """A forward may change its arguments in place."""
    return [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def axis_of_rows(whole: Tensor, part: Tensor, rows: int, chosen: int) -> int | None:
    """The dimension along which the part has so many of the rows; None where there is not one."""
    unlike = [axis for axis, (n, m) in enumerate(zip(whole.shape, part.shape, strict=False)) if n != m]
    if whole.dim() != part.dim() or len(unlike) != 1:
        return None
    n, m = whole.shape[unlike[0]], part.shape[unlike[0]]
    return unlike[0] if n % rows == 0 and n * chosen == m * rows else None


def of_rows(x: Tensor, axis: int, rows: int, chosen: Sequence[int], inner: bool) -> Tensor:
    """Some of the rows. inner: whether a dimension that has rows and others together has rows inside."""
    each = x.shape[axis] // rows
    sizes, at = ((each, rows), axis + 1) if inner else ((rows, each), axis)
    return x.unflatten(axis, sizes).index_select(at, torch.tensor(chosen, device=x.device)).flatten(axis, axis + 1)


def parts_like(whole: Tensor, part: Tensor, rows: int, chosen: Sequence[int]) -> list[Tensor]:
    """What the part may be where one dimension is of rows, or of rows and something else, in either order."""
    axis = axis_of_rows(whole, part, rows, len(chosen))
    return [] if axis is None else [of_rows(whole, axis, rows, chosen, inner) for inner in (False, True)]


def dot(xs: Tensors, ys: Tensors) -> float:
    return sum(float((x * y.conj()).real.double().sum()) for x, y in zip(xs, ys, strict=True))


def equal(made: Any, others: Any) -> bool:
    """Whether they differ by no more than rounding."""
    a, b = tree_leaves(made), tree_leaves(others)
    return len(a) == len(b) and all(map(near, a, b))


def near(a: Any, b: Any) -> bool:
    if not same(a, b) or not isinstance(b, Tensor) or not b.is_floating_point():
        return same(a, b)
    rounding = 64 * torch.finfo(b.dtype).eps * magnitude(b)
    return bool(torch.isclose(a, b, rtol=0, atol=rounding, equal_nan=True).all())


def numbers(example: Sequence[Any], likely: RowsReading, open_ones: Sequence[int]) -> Iterator[list[Any]]:
    """The example, and others of its kind: in an example, rows may be alike."""
    yield list(example)
    random = torch.Generator().manual_seed(0)
    for varied in (open_ones, [i for i, yes in enumerate(likely) if yes]):
        for change in (shuffled, thinned):
            yield [change(leaf, random) if i in varied else leaf for i, leaf in enumerate(example)]


def shuffled(x: Tensor, random: torch.Generator) -> Tensor:
    if x.layout is not torch.strided:
        return x
    found = x.flatten()[torch.randperm(x.numel(), generator=random).to(x.device)].view(x.shape)
    return found * (0.5 + torch.rand(x.shape, generator=random)).to(found) if x.is_floating_point() else found


def thinned(x: Tensor, random: torch.Generator) -> Tensor:
    """Half of it is zero; of what is zero all over, half is one. On a GPU, an index out of bounds ends the process."""
    is_index = not x.is_floating_point() and x.dtype is not torch.bool
    if x.layout is not torch.strided or (is_index and not x.is_cpu and not x.any()):
        return x
    coin = torch.randint(2, x.shape, generator=random).to(x.device)
    return x.where(coin > 0, torch.zeros_like(x)) if x.any() else coin.to(x.dtype)


@contextmanager
def evaluating(model: nn.Module, stages: Stages) -> Iterator[None]:
    modules = [module for stage in stages.stages for module in stage.module.modules()]
    with kept(model), torch.no_grad(), modes_kept(modules):
        for module in modules:
            module.training = False
        yield
