"""Tries whether a call that no table knows treats rows one by one: a few of them give what they give among others.

It is tried with numbers that are made up, since an example may hide what mixes rows, and backward too: a gradient that
depends on how many rows there are, or on their norm, is another one in micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from bppsa.common.graph import tensors_in
from bppsa.common.leaves import wanting
from bppsa.fxpasses.partition.call.kept import kept
from bppsa.fxpasses.partition.call.results import same
from bppsa.fxpasses.partition.check.verify import tried
from bppsa.fxpasses.partition.means.samples import PARTS, ROWS, SAMPLES, Sample, SomeRows, add_up, number
from bppsa.fxpasses.partition.means.sizes import dtype, is_tensor, rows_at, size_of, symbols
from bppsa.fxpasses.partition.ops.regions import enter
from bppsa.fxpasses.theirs import theirs

Values = Mapping[fx.Node, Any]
RowAxes = Mapping[fx.Node, int]
Seeds = Callable[[Sequence[Tensor]], Sequence[Tensor] | None]  # of outputs, the gradients that come in


@dataclass(frozen=True)
class CallResult:
    """What a call gave for the gradients `seeds`, and the gradients of what it was given, None for what has none."""

    outputs: Sequence[Tensor]
    seeds: Sequence[Tensor]
    gradients: Mapping[fx.Node, Tensor | None]


@dataclass(frozen=True)
class Trials:
    """Tries out the calls of one graph. known: the sizes of the example, by their symbols. device: where it is."""

    model: nn.Module
    constants: Mapping[str, Tensor]
    known: Mapping[Any, int]
    device: torch.device

    def is_apart(self, node: fx.Node, rows: Set[Any]) -> bool:
        """Whether it treats rows one by one, or, where it is given none, has gradients that add up. False where it
        cannot be tried. rows: symbols of how many there are."""
        found = {source: axes_of(source, rows) for source in node.all_input_nodes}
        if self.device.type == "meta" or any(axes is None or len(axes) > 1 for axes in found.values()):
            return False
        at = {source: axes[0] for source, axes in found.items() if axes}
        numbers, random = {**self.known, **dict.fromkeys(rows, ROWS)}, torch.Generator().manual_seed(0)
        outputs: list[Tensor] = []
        with kept(self.model):
            for module in self.model.modules():
                module.training = False  # what is dropped is drawn for all rows at once
            for sample in SAMPLES:
                values = tried(partial(self.values, found, numbers, sample, random))
                whole = values and self.run(node, values, partial(drawn, sample, random))
                if not values or not whole:
                    return False
                if not (self.splits(node, values, at, whole) if at else self.adds(node, values, whole, sample, random)):
                    return False
                outputs += whole.outputs
        return any(bool(x.isfinite().all()) for x in outputs)

    def values(
        self, sources: Mapping[fx.Node, Any], numbers: Mapping[Any, int], sample: Sample, random: torch.Generator
    ) -> Values:
        return {source: self.value(source, numbers, sample, random) for source in sources}

    def value(self, source: fx.Node, numbers: Mapping[Any, int], sample: Sample, random: torch.Generator) -> Any:
        if source.op == "get_attr":
            return self.attribute(str(source.target)).detach()
        if not is_tensor(source):
            return number(size_of(source), numbers)
        shape = [number(size, numbers) for size in size_of(source)]
        return sample.tensor(shape, dtype(source), random).to(self.device)

    def attribute(self, path: str) -> Tensor:
        parent, _, name = path.rpartition(".")
        held: Any = self.constants.get(path)
        return getattr(self.model.get_submodule(parent), name) if held is None else held

    def run(self, node: fx.Node, values: Values, seeds: Seeds) -> CallResult | None:
        """None where it raises, or seeds has nothing for its outputs."""
        return tried(partial(self.called, node, values, seeds))

    def called(self, node: fx.Node, values: Values, seeds: Seeds) -> CallResult | None:
        given = {source: wanting(x) for source, x in values.items()}
        own = {source: x.clone() if isinstance(x, Tensor) else x for source, x in given.items()}  # may be changed
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), own.__getitem__)
        call: Any = self.model.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        region = node.meta.get("region")
        with torch.enable_grad(), enter(True, *(region.autocast if region is not None else ())):
            outputs = tensors_in(theirs(call, *args, **kwargs))
        incoming = seeds(outputs)
        if incoming is None:
            return None
        pairs = [(x, g) for x, g in zip(outputs, incoming, strict=True) if x.requires_grad]
        wanted = {source: x for source, x in given.items() if isinstance(x, Tensor) and x.requires_grad}
        gradients: Sequence[Tensor | None] = [None] * len(wanted)
        if pairs and wanted:
            ends, of_ends = zip(*pairs, strict=True)
            gradients = theirs(torch.autograd.grad, ends, list(wanted.values()), of_ends, allow_unused=True)
        return CallResult([x.detach() for x in outputs], incoming, dict(zip(wanted, gradients, strict=True)))

    def splits(self, node: fx.Node, values: Values, at: RowAxes, whole: CallResult) -> bool:
        """Whether some rows give what they give among all, in whichever order a dimension has rows and others."""
        together = any(values[source].shape[axis] != ROWS for source, axis in at.items())
        return all(self.parted(node, values, at, whole, inner) for inner in ((False, True) if together else (False,)))

    def parted(self, node: fx.Node, values: Values, at: RowAxes, whole: CallResult, inner: bool) -> bool:
        parts = []
        for choice in (SomeRows(rows, inner) for rows in PARTS):
            some = {source: choice.of(x, at[source]) if source in at else x for source, x in values.items()}
            part = self.run(node, some, partial(seeds_of, whole, choice))
            if part is None or not is_part(part, whole, choice, at):
                return False
            parts.append(part)
        return adds_up(parts, whole, [source for source in whole.gradients if source not in at])

    def adds(self, node: fx.Node, values: Values, whole: CallResult, sample: Sample, random: torch.Generator) -> bool:
        """Each micro-batch gives a gradient to what has no rows."""
        first = drawn(sample, random, whole.outputs)
        rest = [g - one for g, one in zip(whole.seeds, first, strict=True)]
        found = [self.run(node, values, partial(given, seeds)) for seeds in (first, rest)]
        parts = [part for part in found if part is not None]
        return len(parts) == len(found) and adds_up(parts, whole, list(whole.gradients))


def axes_of(source: fx.Node, rows: Set[Any]) -> list[int] | None:
    """The dimensions with rows of what a node gives; None where that is not known, or is a number of rows."""
    if source.op == "get_attr":
        return []
    size = size_of(source)
    if not is_tensor(source):
        return None if size is None or symbols(size) & rows else []
    return rows_at(source, rows)


def drawn(sample: Sample, random: torch.Generator, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
    around_zero = Sample(sample.gradient, 0.0, 0.0)
    kinds = [x.dtype if x.is_floating_point() or x.is_complex() else torch.float32 for x in outputs]
    return [around_zero.tensor(x.shape, kind, random).to(x.device) for x, kind in zip(outputs, kinds, strict=True)]


def given(seeds: Sequence[Tensor], outputs: Sequence[Tensor]) -> Sequence[Tensor]:
    return seeds


def seeds_of(whole: CallResult, choice: SomeRows, outputs: Sequence[Tensor]) -> Sequence[Tensor] | None:
    """The gradients that come in to the outputs of some rows among all; None where they are no such rows."""
    if len(outputs) != len(whole.outputs):
        return None
    axes = [choice.axis(x, y) for x, y in zip(whole.outputs, outputs, strict=True)]
    return [choice.of(g, axis) for g, axis in zip(whole.seeds, axes, strict=True) if axis is not None] or None


def is_part(part: CallResult, whole: CallResult, choice: SomeRows, at: RowAxes) -> bool:
    """Whether it is what the rows of a choice give among all."""
    if len(part.seeds) != len(whole.outputs):
        return False
    for x, y in zip(whole.outputs, part.outputs, strict=True):
        axis = choice.axis(x, y)
        if axis is None or not same(choice.of(x, axis), y):
            return False
    pairs = [
        (whole.gradients[source], part.gradients[source], axis)
        for source, axis in at.items()
        if source in whole.gradients
    ]
    return all(
        (x is None and y is None) or (x is not None and y is not None and same(choice.of(x, axis), y))
        for x, y, axis in pairs
    )


def adds_up(parts: Sequence[CallResult], whole: CallResult, sources: Sequence[fx.Node]) -> bool:
    return all(add_up([part.gradients[source] for part in parts], whole.gradients[source]) for source in sources)
