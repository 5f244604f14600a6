"""Walks the graph of a loss once, and finds the kind of each value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch import fx, nn
from torch.nn.modules.loss import _Loss
from torch.utils._pytree import tree_leaves

from bppsa.fxpasses.partition.means.apart import OVER, PRODUCT, mixes, takes_size
from bppsa.fxpasses.partition.means.kinds import (
    ROWS,
    ClassCount,
    Kind,
    Part,
    Quantity,
    Same,
    SelectedCount,
    Unshared,
    Way,
    part,
    times,
)
from bppsa.fxpasses.partition.means.sizes import (
    argument,
    dtype,
    is_tensor,
    name_of,
    number_without_casts,
    size_of,
    symbols,
)
from bppsa.fxpasses.partition.ops.effects import facts

MEAN, SUM = 1, 2  # as ATen numbers reductions
VIEWS = ("view", "reshape", "_unsafe_view", "squeeze", "unsqueeze", "expand", "flatten", "select", "slice", "permute")
CASTS = ("to", "_to_copy", "type_as", "clone", "contiguous", "alias", "detach", "lift_fresh_copy", "transpose", "t")
LINEAR = frozenset((*VIEWS, *CASTS, "neg", "positive", "sum", "mean"))
ADDING = frozenset(["add", "add_", "sub", "sub_", "stack", "cat"])
CLASSES = frozenset(["cross_entropy_loss", "nll_loss_nd", "nll_loss", "nll_loss2d"])
MASKED = frozenset(("index", "masked_select"))
ITEM = frozenset(("item", "_local_scalar_dense"))
SIZES = frozenset(("sym_size", "sym_numel", "sym_stride"))


class LossReading:
    """rows: symbols of the number of rows. is_fixed: whether an attribute is no Parameter."""

    def __init__(
        self, rows: frozenset[Any], modules: Callable[[str], nn.Module], is_fixed: Callable[[str], bool]
    ) -> None:
        self.of_rows, self.rows, self.modules, self.is_fixed = rows, set(rows), modules, is_fixed
        self.known: set[Any] = set()  # symbols met
        self.kinds: dict[fx.Node, Kind] = {}
        self.data: set[fx.Node] = set()  # what arguments and constants alone decide
        self.selected: dict[Any, Quantity] = {}  # the size of what a mask selects -> that number
        self.places: set[fx.Node] = set()  # whose values are numbers of rows among a micro-batch's

    def read(self, node: fx.Node) -> Kind:
        """To be called in the graph's order."""
        kind = self.kinds[node] = self.found(node)
        name = name_of(node)
        if name.endswith("_") and isinstance(node.args[0], fx.Node):
            self.changed(node.args[0], kind, node in self.data)
        return kind

    def changed(self, node: fx.Node, kind: Kind, by_data: bool) -> None:
        """In place, and with it what it is a view of."""
        self.kinds[node] = kind
        if not by_data:
            self.data.discard(node)
        if facts(node).view and node.all_input_nodes:
            base = node.all_input_nodes[0]
            both = is_plain(kind) and is_plain(self.kinds[base])
            self.changed(base, self.kinds[base] if both else Unshared(node), by_data)

    def given(self, node: fx.Node, has_rows: bool, is_data: bool) -> None:
        """An argument, and whether it is of the batch."""
        if is_data:
            self.data.add(node)
        self.known |= symbols(size_of(node))
        self.kinds[node] = part(True) if has_rows else Same()

    def found(self, node: fx.Node) -> Kind:
        if node.op == "get_attr":
            if self.is_fixed(str(node.target)):
                self.data.add(node)
            return Same()
        inputs = [self.kinds[source] for source in node.all_input_nodes]
        if node.op == "call_function" and not facts(node).draws and self.data.issuperset(node.all_input_nodes):
            self.data.add(node)
        if not is_tensor(node):
            return self.number_kind(node, inputs) if size_of(node) is not None else self.several(node, inputs)
        self.note_selected(node)
        shape = size_of(node)
        if sum(map(self.has_rows, shape)) > 1:
            return Unshared(node)
        rows = any(map(self.has_rows, shape))
        if node.op == "call_module":
            return self.module(node, rows, inputs)
        if rows and mixes(node, self.rows, self.places):
            return Unshared(node)
        if name_of(node) in PRODUCT:
            return self.product(node, rows)
        name = name_of(node)
        if name in ADDING and not rows:
            return self.added(node, [self.kind_of(arg) for arg in addends(node)])
        if not rows and takes_size(
            node, self.rows
        ):  # the number of rows, of which micro-batches have fewer than the batch
            return Unshared(node)
        if all(isinstance(kind, Same) for kind in inputs) and not rows:
            return Same()
        mixed = next((kind for kind in inputs if isinstance(kind, Unshared)), None)
        if mixed is not None:
            return mixed
        reduction = argument(node, "reduction", None)
        if reduction in (MEAN, SUM):
            return self.reduced(node, inputs, reduction)
        if name in ADDING:
            return self.added(node, [self.kind_of(arg) for arg in addends(node)])
        if rows and all(map(is_plain, inputs)):
            return part(True)
        return self.linear(node, rows)

    def several(self, node: fx.Node, inputs: list[Kind]) -> Kind:
        """Of tensors in a tuple. PyTorch's own modules, such as recurrent ones, treat rows one by one."""
        if all(isinstance(kind, Same) for kind in inputs):
            return Same()
        mixed = node.op != "call_module" and mixes(node, self.rows, self.places)
        apart = all(map(is_plain, inputs)) and not mixed
        return part(True) if apart else Unshared(node)

    def number_kind(self, node: fx.Node, inputs: list[Kind]) -> Kind:
        """Of one of Python's. A size is what `kind_of` finds in its symbols."""
        name = name_of(node)
        if name in ITEM:
            return inputs[0]
        return Same() if name in SIZES or all(isinstance(kind, Same) for kind in inputs) else Unshared(node)

    # Rules

    def added(self, node: fx.Node, kinds: list[Kind]) -> Kind:
        """Of a sum. What all micro-batches have goes with means alone: their factors add up to one."""
        mixed = next((kind for kind in kinds if isinstance(kind, Unshared)), None)
        if mixed is not None or isinstance(argument(node, "alpha", 1), fx.Node):
            return mixed or Unshared(node)
        if all(isinstance(kind, Same) for kind in kinds):
            return Same()
        ways: set[Way] = set().union(*(kind.ways for kind in kinds if isinstance(kind, Part)))
        if any(isinstance(kind, Part) and kind.rows for kind in kinds):
            return part(True) if all(map(is_plain, kinds)) else Unshared(node)
        same = any(isinstance(kind, Same) for kind in kinds)
        return Unshared(node) if same and not all(map(self.is_mean, ways)) else Part(frozenset(ways), False)

    def is_mean(self, way: Way) -> bool:
        """Whether its factors add up to one: they are shares of what adds up."""
        return len(way) == 1 and all(power == 1 and self.adds_up(quantity) for quantity, power in way)

    def adds_up(self, quantity: Quantity) -> bool:
        """Whether micro-batches' make the batch's."""
        return not isinstance(quantity, fx.Node) or self.kinds[quantity] == part(False)

    def linear(self, node: fx.Node, rows: bool) -> Kind:
        """The kind of a linear op: it commutes with the sum over micro-batches."""
        source = node.all_input_nodes[0]
        kind, name = self.kinds[source], name_of(node)
        if name not in LINEAR or not isinstance(kind, Part):
            return Unshared(node)
        if rows or not kind.rows:
            return Part(kind.ways, rows)
        if name == "sum":
            return Part(kind.ways, False)
        if name == "mean":
            return self.mean(node, source, kind)
        return Unshared(node)

    def mean(self, node: fx.Node, source: fx.Node, kind: Part) -> Kind:
        count = self.count(size_of(source))
        return Unshared(node) if count is None else Part(times(kind.ways, count, 1), False)

    def count(self, shape: tuple[Any, ...]) -> Quantity | None:
        """How many elements there are, up to a factor that all micro-batches have."""
        along = [size for size in shape if self.has_rows(size)]
        return self.number(along[0]) if len(along) == 1 else None

    def number(self, size: Any) -> Quantity | None:
        """What a size grows with in proportion."""
        free = symbols(size) & self.rows
        if len(free) != 1:
            return None
        (symbol,) = free
        if symbol in sympy.expand(number_without_casts(size) / symbol).free_symbols:
            return None
        return ROWS if symbol in self.of_rows else self.selected.get(symbol)

    def reduced(self, node: fx.Node, inputs: list[Kind], reduction: int) -> Kind:
        """Of a loss that reduces."""
        if not all(map(is_plain, inputs)):
            return Unshared(node)
        if reduction == SUM:
            return part(False)
        if name_of(node) in CLASSES:
            target = node.args[1]
            weight = argument(node, "weight", None)
            return self.over_classes(node, target, weight, argument(node, "ignore_index", -100))
        return self.over_rows(node)

    def over_rows(self, node: fx.Node) -> Kind:
        shapes = [size_of(source) for source in node.all_input_nodes if is_tensor(source)]
        counts = {self.count(shape) for shape in shapes if any(map(self.has_rows, shape))}
        (count,) = counts if len(counts) == 1 else (None,)
        return Unshared(node) if count is None else part(False, frozenset({(count, 1)}))

    def over_classes(self, node: fx.Node, target: Any, weight: Any, ignored: int) -> Kind:
        if target not in self.data or (isinstance(weight, fx.Node) and weight not in self.data):
            return Unshared(node)
        if dtype(target).is_floating_point:  # probabilities
            return self.over_rows(node)
        return part(False, frozenset({(ClassCount(target, weight, ignored), 1)}))

    def module(self, node: fx.Node, rows: bool, inputs: list[Kind]) -> Kind:
        """Of a call of PyTorch's own module, which treats rows one by one where it gives rows."""
        module: Any = self.modules(str(node.target))
        mixed = next((kind for kind in inputs if isinstance(kind, Unshared)), None)
        if mixed is not None:
            return mixed
        if rows:
            return part(True) if all(map(is_plain, inputs)) else Unshared(node)
        if not isinstance(module, _Loss):
            return Same() if all(isinstance(kind, Same) for kind in inputs) else Unshared(node)
        if module.reduction == "sum":
            return part(False)
        if isinstance(module, (nn.CrossEntropyLoss, nn.NLLLoss)):
            return self.over_classes(node, node.args[1], module.weight, module.ignore_index)
        return self.over_rows(node)

    def product(self, node: fx.Node, rows: bool) -> Kind:
        a, b = (self.kind_of(arg) for arg in node.args[:2])
        divides = name_of(node) in OVER
        if argument(node, "rounding_mode", None) is not None:
            return Unshared(node)
        if isinstance(b, Same) and self.quantity(node.args[1]) is None:
            return a
        if not rows:
            if self.quantity(node.args[0]) is not None and not divides:
                a, b, factor = b, a, node.args[0]
            else:
                factor = node.args[1]
            return self.scaled(node, a, factor, divides)
        kinds = (a, b)
        if any(isinstance(kind, Unshared) for kind in kinds):
            return next(kind for kind in kinds if isinstance(kind, Unshared))
        scalars = [arg for arg, k in zip(node.args[:2], kinds, strict=True) if not getattr(k, "rows", False)]
        scalars = [arg for arg in scalars if not isinstance(self.kind_of(arg), Same) or self.quantity(arg) is not None]
        if scalars:
            other = b if scalars[0] is node.args[0] else a
            if divides and scalars[0] is node.args[0]:
                return Unshared(node)
            scaled = self.scaled(node, other, scalars[0], divides)
            return Part(scaled.ways, True) if isinstance(scaled, Part) else scaled
        if not is_plain(b):
            return b if is_plain(a) and not divides else Unshared(node)
        return part(True) if isinstance(a, Same) else a

    def scaled(self, node: fx.Node, kind: Kind, factor: Any, divides: bool) -> Kind:
        """Of a value multiplied with a number, or divided by it."""
        quantity = self.quantity(factor)
        if isinstance(kind, Unshared):
            return kind
        of_factor = self.kind_of(factor)
        if quantity is None and isinstance(of_factor, Same):
            return kind
        if isinstance(kind, Same) and not divides:  # a number times what is a part
            return of_factor
        if quantity is None or not isinstance(kind, Part):
            return Unshared(node)
        return Part(times(kind.ways, quantity, 1 if divides else -1), kind.rows)

    def quantity(self, arg: Any) -> Quantity | None:
        """A number that differs between micro-batches, and that arguments alone decide."""
        if not isinstance(arg, fx.Node):
            return None
        if name_of(arg) in ITEM:
            return self.quantity(arg.args[0])
        if not is_tensor(arg):
            return self.number(size_of(arg))
        without_rows = not any(map(self.has_rows, size_of(arg)))
        return arg if arg in self.data and without_rows and not isinstance(self.kinds[arg], Same) else None

    def kind_of(self, arg: Any) -> Kind:
        if isinstance(arg, fx.Node):
            if is_tensor(arg) or not self.has_rows(size_of(arg)):
                return self.kinds[arg]
            return Unshared(arg) if self.quantity(arg) is None else part(False)  # micro-batches' rows add up
        return Same()

    # Sizes

    def has_rows(self, size: Any) -> bool:
        return bool(getattr(size, "free_symbols", set()) & self.rows)

    def note_selected(self, node: fx.Node) -> None:
        """A size that comes about here, as of x[mask], is one of rows."""
        new = symbols(size_of(node)) - self.known
        self.known |= new
        from_rows = any(isinstance(self.kinds[source], (Part, Unshared)) for source in node.all_input_nodes)
        if not new or not from_rows or name_of(node) in ("arange", "zeros", "ones", "full", "empty"):
            return
        self.rows |= new
        masks = [arg for arg in tree_leaves(node.args[1:]) if isinstance(arg, fx.Node)]
        if name_of(node) in MASKED and len(masks) == 1 and masks[0] in self.data and dtype(masks[0]) is torch.bool:
            self.selected |= dict.fromkeys(new, SelectedCount(masks[0]))


def is_plain(kind: Kind) -> bool:
    """Whether it is the same for all micro-batches, or has a value for each row that depends on no other."""
    return isinstance(kind, Same) or kind == part(True)


def addends(node: fx.Node) -> list[Any]:
    """Zero is nothing to a sum."""
    given = node.args[0] if isinstance(node.args[0], (list, tuple)) else node.args[:2]
    return [arg for arg in given if isinstance(arg, fx.Node) or arg != 0]
