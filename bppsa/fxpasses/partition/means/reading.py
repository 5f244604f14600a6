"""Walks the graph of a loss once, and finds the sharding of each value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx, nn
from torch.nn.modules.loss import _Loss

from bppsa.common.graph import nodes_in
from bppsa.common.terms import term
from bppsa.fxpasses.partition.capture.whole import Custom
from bppsa.fxpasses.partition.means.aligned import is_aligned
from bppsa.fxpasses.partition.means.apart import PRODUCT, mixes, takes_size
from bppsa.fxpasses.partition.means.layers import is_apart
from bppsa.fxpasses.partition.means.layouts import RowOrders
from bppsa.fxpasses.partition.means.linear import ADDING, LinearShardings
from bppsa.fxpasses.partition.means.quantities import ITEM
from bppsa.fxpasses.partition.means.sharding import (
    ClassCount,
    Inseparable,
    Partial,
    Replicated,
    Sharding,
    are_replicated,
    inseparable,
    is_rowwise,
)
from bppsa.fxpasses.partition.means.sizes import (
    argument,
    dtype,
    is_tensor,
    is_torchs,
    name_of,
    rows_at,
    size_of,
    symbols,
    written,
)
from bppsa.fxpasses.partition.means.trials import Trials
from bppsa.fxpasses.partition.ops.effects import facts

MEAN, SUM = 1, 2  # as ATen numbers reductions
CLASSES = frozenset(["cross_entropy_loss", "nll_loss_nd", "nll_loss", "nll_loss2d"])
SIZES = frozenset(("sym_size", "sym_numel", "sym_stride"))


class LossReading(LinearShardings):
    """Finds the sharding of each value of a loss. rows: symbols of the number of rows. is_fixed: whether an attribute
    is no Parameter. norms: whether those of the batch are taken to, as they are in a model. apart: whether terms have
    factors of their own."""

    def __init__(
        self, rows: frozenset[Any], is_fixed: Callable[[str], bool], trials: Trials, norms: bool, apart: bool
    ) -> None:
        super().__init__(rows, apart)
        self.is_fixed, self.trials, self.norms = is_fixed, trials, norms
        self.layouts = RowOrders(self.rows, trials.known)
        self.state: dict[fx.Node, fx.Node] = {}  # attributes that are changed in place, and by what
        self.places: set[fx.Node] = set()  # whose values are numbers of rows among a micro-batch's

    def read(self, node: fx.Node) -> Sharding:
        """Finds the sharding of what a node gives. To be called in the graph's order."""
        sharding = self.shardings[node] = self.found(node)
        known = is_torchs(node) and is_tensor(node)  # what it gives is what it changed
        for source in written(node):
            known = known and self.layouts.change(source, node)
            self.changed(source, sharding if known else Inseparable(node), node in self.data)
            if (base := base_of(source)).op == "get_attr":
                self.state.setdefault(base, node)
        return sharding

    def changed(self, node: fx.Node, sharding: Sharding, by_data: bool) -> None:
        """Notes that a node is changed in place, and with it what it is a view of."""
        self.shardings[node] = sharding
        if not by_data:
            self.data.discard(node)
        if facts(node).view and node.all_input_nodes:
            base = node.all_input_nodes[0]
            both = is_rowwise(sharding) and is_rowwise(self.shardings[base]) and self.layouts.change(base, node)
            self.changed(base, self.shardings[base] if both else Inseparable(node), by_data)

    def given(self, node: fx.Node, has_rows: bool, is_data: bool) -> None:
        """An argument, and whether it is of the batch."""
        if is_data:
            self.data.add(node)
        self.known |= symbols(size_of(node))
        self.shardings[node] = Partial.of(True) if has_rows else Replicated()

    def found(self, node: fx.Node) -> Sharding:
        if node.op == "get_attr":
            if self.is_fixed(str(node.target)):
                self.data.add(node)
            return Replicated()
        if node.target is term:
            return self.share(node)
        inputs = [self.shardings[source] for source in node.all_input_nodes]
        if node.op == "call_function" and not facts(node).draws and self.data.issuperset(node.all_input_nodes):
            self.data.add(node)
        if not is_tensor(node):
            return self.number_sharding(node, inputs) if size_of(node) is not None else self.several(node, inputs)
        if isinstance(node.target, Custom):
            return self.custom(node, inputs)
        self.note_selected(node)
        return self.tensor(node, inputs)

    def tensor(self, node: fx.Node, inputs: list[Sharding]) -> Sharding:
        """The sharding of the tensor that an op of PyTorch's or a module gives."""
        shape = size_of(node)
        if sum(map(self.has_rows, shape)) > 1:
            return Inseparable(node)
        rows = any(map(self.has_rows, shape))
        if rows and not self.layouts.note(node):
            return inseparable(inputs) or Inseparable(node)
        if node.op == "call_module":
            return self.module(node, rows, inputs)
        if rows and self.mixes(node):
            return Inseparable(node)
        name = name_of(node)
        if name in PRODUCT:
            return self.product(node, rows)
        if name in ADDING and not rows:
            return self.added(node)
        if not rows and takes_size(node, self.rows):  # of which micro-batches have fewer than the batch
            return Inseparable(node)
        if are_replicated(inputs) and not rows:
            return Replicated()
        mixed = inseparable(inputs)
        if mixed is not None:
            return mixed
        reduction = argument(node, "reduction", None)
        if reduction in (MEAN, SUM):
            return self.reduced(node, inputs, reduction)
        if name in ADDING:
            return self.added(node)
        if rows and all(map(is_rowwise, inputs)):
            return Partial.of(True)
        return self.linear(node, rows)

    def several(self, node: fx.Node, inputs: list[Sharding]) -> Sharding:
        """The sharding of tensors in a tuple."""
        if isinstance(node.target, Custom):
            return self.custom(node, inputs)
        if are_replicated(inputs):
            return Replicated()
        self.layouts.note(node)
        mixed = not self.is_apart(node) if node.op == "call_module" else self.mixes(node)
        return Partial.of(True) if all(map(is_rowwise, inputs)) and not mixed else Inseparable(node)

    def custom(self, node: fx.Node, inputs: list[Sharding]) -> Sharding:
        """The sharding of what an autograd.Function of the user's gives: no graph tells what it does, nor backward."""
        if not all(map(is_rowwise, inputs)):
            return inseparable(inputs) or Inseparable(node)
        if node in self.data and are_replicated(inputs):
            return Replicated()
        has_rows = not is_tensor(node) or any(map(self.has_rows, size_of(node)))
        if not self.trials.is_apart(node, self.rows) or (has_rows and not self.layouts.note(node)):
            return Inseparable(node)
        return Replicated() if are_replicated(inputs) else Partial.of(True)

    def mixes(self, node: fx.Node) -> bool:
        """Whether rows depend on others; ops that no table knows are tried."""
        if self.norms and name_of(node) == "batch_norm":
            return False
        found = mixes(node, self.rows, self.places)
        return not self.trials.is_apart(node, self.rows) if found is None else found

    def is_apart(self, node: fx.Node) -> bool:
        """Whether a layer treats rows one by one."""
        source = next((one for one in node.all_input_nodes if rows_at(one, self.rows)), None)
        if source is None:
            return self.trials.is_apart(node, self.rows)
        at, count = rows_at(source, self.rows), len(size_of(source))
        layer = self.trials.model.get_submodule(str(node.target))
        found = is_apart(layer, at[0], count, self.norms)
        return self.trials.is_apart(node, self.rows) if found is None else found

    def number_sharding(self, node: fx.Node, inputs: list[Sharding]) -> Sharding:
        """The sharding of a number of Python's. A size is what `sharding_of` finds in its symbols."""
        name = name_of(node)
        if name in ITEM:
            return inputs[0]
        return Replicated() if name in SIZES or are_replicated(inputs) else Inseparable(node)

    def reduced(self, node: fx.Node, inputs: list[Sharding], reduction: int) -> Sharding:
        """The sharding of a loss that reduces."""
        if not all(map(is_rowwise, inputs)) or not self.pairs_rows(node):
            return Inseparable(node)
        if reduction == SUM:
            return Partial.of(False)
        if name_of(node) in CLASSES:
            target = node.args[1]
            weight = argument(node, "weight", None)
            return self.over_classes(node, target, weight, argument(node, "ignore_index", -100))
        return self.over_rows(node)

    def pairs_rows(self, node: fx.Node, module: nn.Module | None = None) -> bool:
        """Whether a loss that reduces takes each row of what it is given with that same row."""
        return self.layouts.common(node.all_input_nodes) is not None and is_aligned(node, self.layouts.axis, module)

    def over_rows(self, node: fx.Node) -> Sharding:
        shapes = [size_of(source) for source in node.all_input_nodes if is_tensor(source)]
        counts = {self.count(shape) for shape in shapes if any(map(self.has_rows, shape))}
        (count,) = counts if len(counts) == 1 else (None,)
        return Inseparable(node) if count is None else Partial.of(False, frozenset({(count, 1)}))

    def over_classes(self, node: fx.Node, target: Any, weight: Any, ignored: int | fx.Node) -> Sharding:
        if not self.data.issuperset(nodes_in([target, weight, ignored])):
            return Inseparable(node)
        if dtype(target).is_floating_point:  # probabilities
            return self.over_rows(node)
        return Partial.of(False, frozenset({(ClassCount(target, weight, ignored), 1)}))

    def module(self, node: fx.Node, rows: bool, inputs: list[Sharding]) -> Sharding:
        """The sharding of a call of PyTorch's own module."""
        module: Any = self.trials.model.get_submodule(str(node.target))
        mixed = inseparable(inputs)
        if mixed is not None:
            return mixed
        if rows:
            apart = all(map(is_rowwise, inputs)) and self.is_apart(node)
            return Partial.of(True) if apart else Inseparable(node)
        if not isinstance(module, _Loss):
            return Replicated() if are_replicated(inputs) else Inseparable(node)
        if not are_replicated(inputs) and not (all(map(is_rowwise, inputs)) and self.pairs_rows(node, module)):
            return Inseparable(node)
        if module.reduction == "sum":
            return Partial.of(False)
        if isinstance(module, (nn.CrossEntropyLoss, nn.NLLLoss)):
            return self.over_classes(node, node.args[1], module.weight, module.ignore_index)
        return self.over_rows(node)


def base_of(node: fx.Node) -> fx.Node:
    """What a view is of, or the node itself."""
    while facts(node).view and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node
