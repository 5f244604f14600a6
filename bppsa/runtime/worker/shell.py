"""A thread's own copy of a stage's modules, without their weights: these are lent to it."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from bppsa.common.graph import modules_in
from bppsa.common.stages import Stage
from bppsa.runtime.worker.draws import Drawing
from bppsa.runtime.worker.norms import norms_of
from bppsa.runtime.worker.recomputing import recompute, storage_of
from bppsa.runtime.worker.split import readings, show


class Shell:
    """slots: of each tensor that the stage has, where it goes: (the model's name, a module, its attribute).

    With split=True and where its backward can be split at the ops that read weights, the module returns (outputs, what
    these ops give), and `readings` has the model's names of what each reads.
    """

    def __init__(self, stage: Stage, split: bool) -> None:
        self.module = hollow(stage)
        found = readings(self.module) if split else []
        self.readings = [[stage.names[name] for name in names] for _, names in found]
        if found:
            show(self.module, found)
        own = named_tensors(self.module)
        self.slots = [(stage.names[name], *holder(self.module, name)) for name in own if name in stage.names]
        if isinstance(self.module, fx.GraphModule):
            draw_by_number(self.module, dict(stage.draws))
        self.norms = norms_of(self.module)
        if isinstance(self.module, fx.GraphModule):
            recompute(self.module, stage.recomputed, self.norms, split)
        self.passing: set[int | None] = set()  # storages of fetched weights
        root, like = self.module.get_submodule(stage.root), stage.module.get_submodule(stage.root)
        self.followers = [(root.get_submodule(path), path) for path, _ in like.named_modules()]

    def lend(self, tensors: Mapping[str, Tensor], fetched: bool = False) -> None:
        """Tensors by the model's names: Parameters where it has Parameters, and buffers. fetched: their memory is given
        up after a job."""
        for name, module, attribute in self.slots:
            put(module, attribute, tensors[name])
        self.passing = {storage_of(tensor) for tensor in tensors.values()} if fetched else set()

    def apart(self, made: Any) -> Any:
        """What a forward made, with copies of what lies in memory that is given up, as a slice of a buffer does."""
        if not self.passing:
            return made
        return tree_map(lambda x: x.clone() if isinstance(x, Tensor) and storage_of(x) in self.passing else x, made)

    def weights(self) -> dict[str, Tensor]:
        """The tensors lent to it that gradients are wanted of, by the model's names."""
        lent = {name: getattr(module, attribute) for name, module, attribute in self.slots}
        return {name: tensor for name, tensor in lent.items() if tensor.requires_grad}

    def follow(self, modules: Mapping[str, nn.Module]) -> None:
        """Train or evaluate as the modules of the model do now, which are given by their paths."""
        for own, path in self.followers:
            mode = modules[path].training
            if own.training != mode:
                own.training = mode


def put(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Gives a module a tensor. A recurrent one is told at once, not in its next call: that call would compute its
    parametrized weights more or less often than the ones after it, of which one may recompute it."""
    setattr(module, name, tensor)
    if isinstance(module, nn.RNNBase) and name in module._flat_weights_names:
        refs: Any = module._flat_weight_refs
        refs[module._flat_weights_names.index(name)] = weakref.ref(tensor)


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, by each of their names."""
    return tensors_of_modules(modules_in(module))


def tensors_of_modules(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """modules: by their paths."""
    places = [(f"{path}." if path else "", module) for path, module in modules.items()]
    tables = [(path, module._parameters) for path, module in places] + [(path, m._buffers) for path, m in places]
    return {path + name: x for path, table in tables for name, x in table.items() if x is not None}


def hollow(stage: Stage) -> nn.Module:
    """A copy of its module of which the model's Parameters and buffers take no memory."""
    own = named_tensors(stage.module)
    return copy.deepcopy(stage.module, {id(t): on_meta(t) for name, t in own.items() if name in stage.names})


def on_meta(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def holder(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, attribute = name.rpartition(".")
    return root.get_submodule(path), attribute


def draw_by_number(module: fx.GraphModule, numbers: Mapping[str, int]) -> None:
    """Ops that draw, by the names of their nodes, go through `Drawing`."""
    for node in list(module.graph.nodes):
        if node.name not in numbers:
            continue
        name = f"_drawing_{numbers[node.name]}"
        module.add_submodule(name, Drawing(called(module, node), numbers[node.name]))
        node.op, node.target = "call_module", name
    module.recompile()


def called(module: nn.Module, node: fx.Node) -> Any:
    if node.op == "call_module":
        return module.get_submodule(str(node.target))
    if node.op == "call_method":
        return lambda x, *args, method=str(node.target), **kwargs: getattr(x, method)(*args, **kwargs)
    return node.target
