"""A copy of a graph, run on drawn values: whole, and on chunks that follow each other.

In float64 and with drawn weights, so that nothing comes out equal by chance, as it would beside a weight that is still
zero; what the model draws itself, such as dropout masks, is one number everywhere. In evaluation: norms, which in
training take statistics over steps, are asked before each call instead (`bppsa.distributed.over_time.training`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from bppsa.fxpasses.partition.call.certain import Certain
from bppsa.fxpasses.partition.call.kept import is_on_meta
from bppsa.fxpasses.theirs import theirs


class LayerCall(NamedTuple):
    """What a recurrent module is called with."""

    module: nn.RNNBase
    input: Any  # [T, B, I], or [B, T, I] with batch_first, or [T, I]
    states: Any  # None for zeros


class TrialRun(fx.Interpreter):
    """One run of the graph, whose values stay in `env`. before: the run on the chunk before, whose final states its
    recurrent modules begin with."""

    def __init__(self, module: nn.Module, graph: fx.Graph, before: TrialRun | None) -> None:
        super().__init__(module, garbage_collect_values=False, graph=graph)
        self.before = before
        self.readings: dict[fx.Node, LayerCall] = {}  # of each call of a recurrent module

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_module" or not isinstance(module := self.fetch_attr(str(n.target)), nn.RNNBase):
            return theirs(super().run_node, n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        given = dict(zip(("input", "hx"), args, strict=False)) | kwargs
        self.readings[n] = reading = LayerCall(module, given["input"], given.get("hx"))
        states = reading.states if self.before is None else self.before.env[n][1]
        return theirs(module, reading.input, states)

    @property
    def returned(self) -> Any:
        return self.env[self.graph.output_node()]


@dataclass(frozen=True)
class Trial:
    """given: of each leaf of the arguments, a drawn value of its shape."""

    module: nn.Module
    graph: fx.Graph
    given: list[Any]
    spec: TreeSpec

    def run(self, leaves: Sequence[Any], before: TrialRun | None = None) -> TrialRun:
        """On these in the place of `given`."""
        run = TrialRun(self.module, self.graph, before)
        with Certain():
            run.run(*tree_unflatten(list(leaves), self.spec), enable_io_processing=False)
        return run


@contextmanager
def trial_of(graph: fx.GraphModule, arguments: Sequence[Any]) -> Iterator[Trial]:
    leaves, spec = tree_flatten(list(arguments))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        yield Trial(drawn(graph), graph.graph, [random_like(leaf) for leaf in leaves], spec)


def drawn(graph: fx.GraphModule) -> nn.Module:
    module = copy.deepcopy(graph).double().eval()
    if is_on_meta(module):
        module = module.to_empty(device="cpu")
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.fill_(1)
    for parameter in module.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    return module


def random_like(leaf: Any) -> Any:
    """A random value of the same kind; whole numbers among those that were given, which may be indices."""
    if not isinstance(leaf, Tensor) or leaf.numel() == 0:
        return leaf
    if leaf.is_floating_point():
        return torch.randn_like(leaf, dtype=torch.float64)
    return leaf.flatten()[torch.randint(leaf.numel(), leaf.shape, device=leaf.device)]
