"""Where a model is cut that has been cut before, in another situation: its weights stay in their stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import fx, nn

from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.cut.modules import first_names
from bppsa.fxpasses.partition.cut.order import Order

Placement = Sequence[frozenset[str]]  # of each stage, the model's names of its Parameters and buffers


def ends_as_before(model: nn.Module, before: Placement, order: Order) -> list[int]:
    """The index of the first block behind each stage.

    A block that reads weights goes to a stage that has them, all others to where the one before them is. Raises
    PartitionError where the model now uses its weights in another order.
    """
    homes = {name: {s for s, held in enumerate(before) if name in held} for name in frozenset().union(*before)}
    names = first_names(model)
    stage, ends = 0, [0] * len(before)
    for block in order.blocks:
        stages = set(range(stage, len(before)))
        for name in read_by(block, model, names):
            stages &= homes.get(name, stages)
            if not stages:
                raise PartitionError(
                    f"{type(model).__name__}: in {'training' if model.training else 'evaluation'} it reads {name} "
                    f"behind weights of later stages, and it was cut in the other order; cut it in the mode that it "
                    f"runs in"
                )
        stage = min(stages)
        ends[stage] += 1
    return [sum(ends[: s + 1]) for s in range(len(before))]


def read_by(block: Iterable[fx.Node], model: nn.Module, names: dict[int, str]) -> list[str]:
    """The model's first names of the Parameters and buffers that nodes read."""
    found = []
    for node in block:
        paths = [str(source.target) for source in node.all_input_nodes if source.op == "get_attr"]
        for path in paths:
            owner, _, name = path.rpartition(".")
            tensor = getattr(model.get_submodule(owner), name, None)
            found += [names[id(tensor)]] if id(tensor) in names else []
        if node.op == "call_module":
            module = model.get_submodule(str(node.target))
            found += [names[id(tensor)] for tensor in (*module.parameters(), *module.buffers())]
    return found
