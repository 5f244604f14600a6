"""A region: steps on blocked images between two conversions, and what follows from how they are connected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import Any

from bppsa.runtime.sparse_conv.programs.step import RegionStep


@dataclass(frozen=True, eq=False)
class Node:
    """A step in a region: which values it reads and makes, and which of the region's parameters and extras it takes."""

    step: RegionStep
    inputs: tuple[int, ...]
    output: int
    params: tuple[int | None, ...] = ()
    extras: tuple[int, int] = (0, 0)  # from, to


@dataclass(frozen=True, eq=False)
class Region:
    """inputs, outputs: values that come in and go out as tensors; dims: of each of these tensors. rectified: values
    that a ReLU has made, within the step that computes them. No two steps take one parameter.

    programs: those written for it (`passes.RegionForward`), by whether to keep what a backward needs, and threads.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dims: dict[int, int]
    rectified: frozenset[int]
    programs: dict[Any, Any] = field(default_factory=dict)
    saves: dict[tuple[bool, ...], list[bool]] = field(default_factory=dict)  # what `saved` has found

    def depends(self) -> list[Any]:
        """What else than shapes the calls of each step depend on at present."""
        return [node.step.depends() for node in self.nodes]

    @cached_property
    def bringing(self) -> tuple[int, ...]:
        """Nodes whose steps bring tensors."""
        return tuple(i for i, node in enumerate(self.nodes) if type(node.step).brings is not RegionStep.brings)

    @cached_property
    def readers(self) -> Counter[int]:
        return Counter([*(v for node in self.nodes for v in node.inputs), *self.outputs])

    @cached_property
    def masked_late(self) -> frozenset[int]:
        """Rectified values whose cotangents are masked when all of them are there: no single reader does it."""
        by_reader = {v for n in self.nodes for v in n.inputs if n.step.masks and self.readers[v] == 1}
        return self.rectified - by_reader

    @cached_property
    def kept(self) -> frozenset[int]:
        """Values that the backward reads, and those that they are other names of."""
        inputs = {v for node in self.nodes if node.step.reads_input for v in node.inputs}
        outputs = {node.output for node in self.nodes if node.step.reads_output}
        found = self.masked_late | inputs | outputs
        for node in reversed(self.nodes):
            if node.step.renames and node.output in found:
                found |= {*node.inputs}
        return frozenset(found)

    def saved(self, needs: tuple[bool, ...]) -> list[bool]:
        """Which of the inputs and parameters nobody may change until the backward has run. needs: as of `needed`"""
        found = self.saves.get(needs)
        if found is None:
            found = self.saves[needs] = self._read_by_backward(needs)
        return found

    def _read_by_backward(self, needs: tuple[bool, ...]) -> list[bool]:
        passed, values, own = self.needed(needs), set[int](), set[int]()
        params = needs[len(self.inputs) :]
        for node in self.nodes:
            if node.output in passed:
                wanted = [i is not None and params[i] for i in node.params]
                of_inputs, of_params = node.step.reads([v in passed for v in node.inputs], wanted)
                values.update(compress(node.inputs, of_inputs))
                own.update(i for i in compress(node.params, of_params) if i is not None)
        for node in reversed(self.nodes):
            if node.step.renames and node.output in values:
                values.update(node.inputs)
        return [*(v in values for v in self.inputs), *(i in own for i in range(len(params)))]

    def needed(self, needs: Sequence[bool]) -> set[int]:
        """Values that some gradient passes through. needs: of each input and parameter, whether its own is asked for"""
        found = {v for v, need in zip(self.inputs, needs, strict=False) if need}
        params = needs[len(self.inputs) :]
        for node in self.nodes:
            if not found.isdisjoint(node.inputs) or any(i is not None and params[i] for i in node.params):
                found.add(node.output)
        return found
