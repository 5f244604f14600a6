"""What a graph takes for granted of the sizes of the tensors that a model is called with, and the check of a call.

Export gives each size a symbol. Two sizes that the forward needs to be equal have one symbol, a size that it decides by
has a guard, and one that it can only take as it was is a number. So the symbols also tell which tensors have the
batch's rows.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves

from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.call.arguments import Arguments, shapes_of, sized
from bppsa.fxpasses.partition.capture.batched import SymbolicShape, batched
from bppsa.fxpasses.partition.capture.exported import Exported

LEAST = 2  # what export takes for granted of each symbol: a size of one is another case
KnownSizes = dict[sympy.Symbol, tuple[int, str]]  # of a symbol, the number that it is, and where that was read


@dataclass(frozen=True)
class Guard:
    """What was decided by sizes, and the user's line that did."""

    holds: sympy.Basic  # in symbols
    place: str


@dataclass(frozen=True, eq=False)
class Sizes:
    """names, shapes: of each leaf of the arguments; None for what is no tensor."""

    names: tuple[str, ...]
    shapes: tuple[SymbolicShape | None, ...]
    guards: tuple[Guard, ...]
    ranges: tuple[tuple[sympy.Symbol, int, float], ...]
    places: Mapping[str, str]  # of a size that can only be as it was, the user's line
    layers: tuple[str, ...]  # of each leaf, the layer of PyTorch's that reads it first, or what is made of it
    of_rows: tuple[bool | None, ...] = ()  # of each leaf, whether its first dimension is the batch's rows
    never_one: frozenset[Any] = frozenset()  # symbols for which the graph was seen to fail where they are 1

    __name__ = "sizes"  # in the code that torch.fx writes

    def __call__(self, *arguments: Any) -> None:
        """Raises PartitionError where the graph does not hold for these, with the argument and its dimension."""
        known: KnownSizes = {}
        found = []
        for i, leaf in enumerate(tree_leaves(arguments)):
            name, shape = self.names[i], self.shapes[i]
            if shape is None:
                continue
            if leaf.dim() != len(shape):
                raise PartitionError(
                    f"argument {name} has {leaf.dim()} dimensions, and the model was cut for {len(shape)}; call it as "
                    f"the example was called, or cut it for such a call"
                )
            for axis, (expected, size) in enumerate(zip(shape, leaf.shape, strict=True)):
                where = f"{name}.shape[{axis}]"
                found.append((i, where, size, expected))
                if isinstance(expected, sympy.Symbol):
                    known.setdefault(expected, (size, where))
        for i, where, size, expected in found:
            self.check_equal(i, where, size, expected, known)
        self.check_decided(known, known.keys())

    def check_rows(self, leaves: Sequence[Any]) -> None:
        """Raises PartitionError where Python decides by the number of rows, and otherwise for these arguments than for
        the example: they are a whole batch's, and its micro-batches may be alike to the example."""
        known: KnownSizes = {}
        for name, shape, leaf in zip(self.names, self.shapes, leaves, strict=True):
            for axis, symbol in enumerate(shape or ()):
                if isinstance(symbol, sympy.Symbol):
                    known.setdefault(symbol, (leaf.shape[axis], f"{name}.shape[{axis}]"))
        self.check_decided(known, self.rows)

    def check_decided(self, known: KnownSizes, by: Set[sympy.Symbol]) -> None:
        """Raises PartitionError where Python would decide otherwise, by any of these sizes, than for the example."""
        for guard in self.guards:
            symbols = guard.holds.free_symbols
            if not symbols.isdisjoint(by) and symbols <= known.keys() and not value_of(guard.holds, known):
                raise PartitionError(self.decided(guard, known))
        for symbol, low, high in self.ranges:
            if symbol in by and symbol in known:
                self.check_range(symbol, *known[symbol], low, high)

    def check_equal(self, i: int, where: str, size: int, expected: Any, known: KnownSizes) -> None:
        if isinstance(expected, int):
            if size != expected:
                at = f"{self.places[where]}: " if self.places.get(where) else ""
                layer = f"its layer {self.layers[i]} may take no other, or " if self.layers[i] else ""
                raise PartitionError(
                    f"{at}{where} is {size}, and the model was cut for {expected} alone: {layer}its forward takes the "
                    f"number as it is, as range(n) does and x.shape[0] does not; give {expected}, or change that and "
                    f"give example_inputs that are alike"
                )
        elif expected.free_symbols <= known.keys() and size != value_of(expected, known):
            others = " and ".join(f"{known[s][1]} is {known[s][0]}" for s in sorted(expected.free_symbols, key=str))
            raise PartitionError(
                f"{where} is {size} where {others}; in the example they went together, and the forward made them one "
                f"number; give arguments that are alike, or other example_inputs"
            )

    def check_range(self, symbol: sympy.Symbol, size: int, where: str, low: int, high: float) -> None:
        if size == 1 and low <= LEAST:
            if symbol in self.never_one:
                raise PartitionError(
                    f"{where} is 1, and the forward does something else then than for the example; give others, for "
                    f"rows by fewer micro-batches, or other example_inputs"
                )
        elif not low <= size <= high:
            bounds = f"at least {low}" if high == float("inf") else f"{low} to {int(high)}"
            raise PartitionError(
                f"{where} is {size}, and the forward, as it ran for the example, holds for {bounds}: what Python "
                f"decides by sizes is decided once; call it with such sizes, or give other example_inputs"
            )

    def decided(self, guard: Guard, known: KnownSizes) -> str:
        text, symbols = str(guard.holds), sorted(guard.holds.free_symbols, key=str)
        for symbol in symbols:
            text = re.sub(rf"\b{symbol}\b", known[symbol][1], text)
        said = " and ".join(f"{known[symbol][1]} is {known[symbol][0]}" for symbol in symbols)
        return (
            f"{guard.place or 'the forward'}: {said}, and Python decided otherwise for the example ({text}): what it "
            f"decides by sizes is decided once; leave it to tensors, or give example_inputs that are alike"
        )

    @property
    def rows(self) -> frozenset[Any]:
        """The symbols of the number of rows."""
        pairs = zip(self.shapes, self.of_rows, strict=True)
        return frozenset(shape[0] for shape, yes in pairs if shape and yes and isinstance(shape[0], sympy.Symbol))

    def with_rows(self, rows: int, *arguments: Any) -> list[Any]:
        """The leaves of the arguments, those that are tensors as others on meta, with so many rows."""
        leaves = list(zip(tree_leaves(arguments), self.shapes, strict=True))
        known = {s: n for x, shape in leaves for s, n in zip(shape or (), x.shape if shape else (), strict=True)}
        sizes = {s: rows if s in self.rows else n for s, n in known.items() if isinstance(s, sympy.Symbol)}
        return [x if shape is None else torch.empty(sized(shape, x.shape, sizes), device="meta") for x, shape in leaves]

    def groups(self) -> list[frozenset[Any]]:
        """The symbols, those of the number of rows together."""
        rows = self.rows
        every = {n for shape in self.shapes for n in shape or () if isinstance(n, sympy.Symbol)}
        return [group for group in (rows, *(frozenset({symbol}) for symbol in every - rows)) if group]

    def narrowed(self, leaves: Sequence[Any], symbols: frozenset[Any]) -> list[Any]:
        """The arguments' leaves with a size of one in the place of each of the symbols."""
        found = list(leaves)
        for i, shape in enumerate(self.shapes):
            for axis, size in enumerate(shape or ()):
                if size in symbols:
                    found[i] = found[i].narrow(axis, 0, 1)
        return found


def value_of(expression: sympy.Basic, known: KnownSizes) -> Any:
    return expression.xreplace({symbol: sympy.Integer(size) for symbol, (size, _) in known.items()})


def sizes_of(found: Exported, arguments: Arguments) -> Sizes:
    program = found.program
    kinds = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs}
    given = [n for n in program.graph.find_nodes(op="placeholder") if kinds[n.name] is InputKind.USER_INPUT]
    environment = environment_of([node.meta["val"] for node in given])
    fixed, rest = fixed_by(environment, found.places), enumerate(node.meta["val"] for node in given)
    names = arguments.leaf_names
    shapes: list[SymbolicShape | None] = []
    layers: list[str] = []
    places = {}
    for name, leaf in zip(names, arguments.leaves, strict=True):
        if not isinstance(leaf, Tensor):
            shapes.append(None)
            layers.append("")
            continue
        number, value = next(rest)
        layers.append(first_layer(given[number], program.state_dict))
        shapes.append(tuple(map(expression, value.shape)))
        for axis in range(leaf.dim()):
            places[f"{name}.shape[{axis}]"] = fixed.get(f"L['tensors'][{number}].size()[{axis}]", "")
    symbols = {n for shape in shapes for n in shape or () if isinstance(n, sympy.Symbol)}
    ranges = [(s, int(r.lower), float(r.upper)) for s, r in program.range_constraints.items() if s in symbols]
    guards = tuple(guards_of(environment, found.places))
    (output,) = program.graph.find_nodes(op="output")
    made = [node.meta["val"] for node in output.args[0] if isinstance(node, fx.Node)]
    returned = [tuple(map(expression, x.shape)) for x in made if isinstance(x, Tensor)]
    rows = batched(shapes, shapes_of(arguments.leaves), [guard.holds for guard in guards], returned)
    return Sizes(tuple(names), tuple(shapes), guards, tuple(ranges), places, tuple(layers), rows)


def first_layer(given: fx.Node, weights: Iterable[str]) -> str:
    """The layer of PyTorch's that reads an argument first, or what is made of it, and holds one of the weights named:
    "encoder.0 (Linear)"; "" if none does."""
    holders = {name.rpartition(".")[0] for name in weights}
    seen, waiting = {given}, deque([given])
    while waiting:
        for user in waiting.popleft().users:
            *_, (path, kind) = (user.meta.get("nn_module_stack") or {"": ("", "")}).values()
            if path in holders and kind.startswith("torch.nn.modules."):
                return f"{path.removeprefix('model.')} ({kind.rpartition('.')[2]})"
            if user not in seen:
                seen.add(user)
                waiting.append(user)
    return ""


def environment_of(values: Sequence[Any]) -> Any:
    """Export's own account of symbols; None where no tensor is an argument."""
    return next((v.fake_mode.shape_env for v in values if isinstance(v, FakeTensor)), None)


def guards_of(environment: Any, places: Mapping[str, str]) -> Iterator[Guard]:
    """What the forward decided by sizes. What is equal, or a number, is so in the shapes."""
    for guard in environment.guards if environment is not None else ():
        if not isinstance(guard.expr, sympy.Eq) or not all(side.is_Atom for side in guard.expr.args):
            yield Guard(guard.expr.xreplace(environment.replacements), places.get(str(guard.expr), ""))


def fixed_by(environment: Any, places: Mapping[str, str]) -> dict[str, str]:
    """The user's line that fixed a size, by export's name for the size."""
    if environment is None:
        return {}
    names = {symbol: name for name, symbol in environment.source_to_var.items()}
    found = {}
    for guard in environment.guards:
        if isinstance(guard.expr, sympy.Eq) and guard.expr.args[1].is_Integer and guard.expr.args[0] in names:
            found[names[guard.expr.args[0]]] = places.get(str(guard.expr), "")
    return found


def expression(size: Any) -> Any:
    found = size.node.expr if isinstance(size, (torch.SymInt, torch.SymFloat)) else size
    return int(found) if isinstance(found, int) or found.is_Integer else found
