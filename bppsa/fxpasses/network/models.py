"""Record what a feed-forward model does in one call: a graph of ATen ops that, run again, is that call.

Unlike a cell, a model may draw random numbers and change its buffers: both are ops of the graph, done once whenever it
runs. Composite kernels (addmm, layer norm) stay whole, so that a run gives the very numbers of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from bppsa.decisions import under
from bppsa.errors import Unsupported
from bppsa.fxpasses.network.composites import with_composites
from bppsa.fxpasses.network.located import located
from bppsa.fxpasses.network.pruning import without_hooks
from bppsa.fxpasses.recording.capture import Recording, record
from bppsa.fxpasses.recording.recorder import Recorder
from bppsa.fxpasses.recording.stand_ins import zeros_like

aten = torch.ops.aten


def bernoulli(x: Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Tensor:
    if generator is not None:
        raise Unsupported("draws from a generator of its own", op="bernoulli_", mend="use the default one")
    return aten.bernoulli.p(x, p)


# Written in place, and what returns the same from the same random numbers.
DRAWS: Mapping[Any, Callable[..., Tensor]] = {aten.bernoulli_.float: bernoulli}


def record_model(
    forward: Callable[..., Any], model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Recording:
    """Record `forward(*args, **kwargs)` of `model`; every node has the path of its module in `meta["path"]`. The model,
    its buffers and the random state are as before afterwards.

    Raises `Unsupported` as `record` does, and where the call changes an attribute of a module.
    """
    with without_hooks(model), torch.random.fork_rng(), located(model) as where:
        recorder, before = ModelRecorder({}, where), state_of(model)
        try:
            recording = record(lambda a, k: forward(*a, **k), (tuple(args), dict(kwargs)), recorder=recorder)
        finally:
            changed = restore(before)
    if changed:
        raise Unsupported("its forward changes an attribute", op=changed, mend="keep state in buffers")
    return with_composites(recording)


def recording_model() -> bool:
    """Whether this thread is recording a model."""
    if torch._C._len_torch_dispatch_stack() == 0:
        return False
    return any(isinstance(mode, ModelRecorder) for mode in _get_current_dispatch_mode_stack())


class ModelRecorder(Recorder):
    may_draw = True
    draws = DRAWS

    def change_in_place(self, func: Any, args: Sequence[Any], kwargs: dict) -> Any:
        """A buffer of the model: written down as it is, and done when the graph runs."""
        written = [a for spec, a in zip(func._schema.arguments, args, strict=False) if spec.is_write]
        if len(func._schema.returns) > 1 and all(map(self.is_state, written)):
            return self.write_down(func, args, kwargs)  # batch norm: its statistics change when the graph runs
        changed = args[0] if args else None
        if not isinstance(changed, Tensor) or not self.is_state(changed):
            return super().change_in_place(func, args, kwargs)
        nodes = fx.node.map_aggregate((tuple(args), kwargs), lambda a: self.node_of(a) if isinstance(a, Tensor) else a)
        self.graph.call_function(func, *nodes).meta.update(val=zeros_like(changed), path=self.where())
        return changed

    def is_state(self, value: Any) -> bool:
        """A tensor of the model's that no gradient flows to."""
        return isinstance(value, Tensor) and not value.requires_grad and value not in self.aliases


TABLES = ("_parameters", "_buffers", "_modules")  # of attributes of a module that it keeps apart
# What an nn.RNNBase keeps of its weights: its calls bring them up to date.
CACHES = frozenset(("_flat_weights", "_flat_weight_refs"))
ContainerCopies = list[tuple[str, Any, Any]]  # where, a container, a copy of it


def caches(attributes: Mapping[str, Any]) -> frozenset[str]:
    """Which attributes of a module only repeat its weights: they may change in a call, and are no state."""
    return CACHES if "_flat_weights_names" in attributes else frozenset()


def state_of(model: nn.Module) -> ContainerCopies:
    """The containers that a forward may write to: attributes of modules, and the lists, dicts and sets among them.
    What our own modules remember of their calls is not the model's. A cache has no path: its changes are not told."""
    found: ContainerCopies = []
    for path, module in model.named_modules():
        found.append((path, module.__dict__, dict(module.__dict__)))
        for name, value in module.__dict__.items():
            if isinstance(value, (list, dict, set)) and not name.startswith("_bppsa"):
                where = "" if name in caches(module.__dict__) else under(path, name)
                found.append((where, value, value.copy()))
    return found


def restore(state: ContainerCopies) -> str:
    """Put back what was changed; which attribute that was, or "" where there is none but caches."""
    changed = ""
    for path, container, before in state:
        if same(container, before):
            continue
        changed = changed or attribute(path, container, before)
        container.clear()
        container.extend(before) if isinstance(container, list) else container.update(before)
    return changed


def is_namespace(container: Any) -> bool:
    """Whether a container of state_of holds the attributes of a module."""
    return isinstance(container, dict) and "_modules" in container


def attribute(path: str, container: Any, before: Any) -> str:
    """The path of the attribute in which a container of state_of differs; "" where that is a cache."""
    owner, _, table = path.rpartition(".")
    if table not in TABLES and not is_namespace(container):
        return path
    keys = [key for key in {**container, **before} if container.get(key) is not before.get(key)]
    key = next((key for key in keys if key not in caches(container)), "")
    if keys and not key:
        return ""
    return ".".join(filter(None, (owner if table in TABLES else path, key)))


def same(container: Any, before: Any) -> bool:
    def contents(value: Any) -> list[Any]:
        return [*value, *value.values()] if isinstance(value, dict) else list(value)

    now, then = contents(container), contents(before)
    return len(now) == len(then) and all(a is b for a, b in zip(now, then, strict=True))
