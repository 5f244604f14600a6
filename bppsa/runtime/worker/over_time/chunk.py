"""One chunk of one micro-batch, from its first F to its last B: its walk through the graph, and its layers' calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from bppsa.runtime.recurrent.scan.extent import Given
from bppsa.runtime.recurrent.sweep import Gradients, Needs, Sweep, Swept
from bppsa.runtime.worker.over_time.layer import ChunkForward, run
from bppsa.runtime.worker.over_time.module import ModuleCall
from bppsa.runtime.worker.over_time.walk import ChunkWalk


@dataclass(frozen=True)
class Called:
    """A layer's call. given: x, the weights and the carries before it, with their autograd graphs; y, [T, B, n], and
    finals, [B, n] each, are leaves."""

    ran: ChunkForward
    given: Given
    y: Tensor
    finals: Sequence[Tensor]

    def gradients(self, swept: Swept) -> list[Tensor | None]:
        """The gradients of `given`."""
        x, *weights = self.given[: 1 + len(self.ran.weights)]
        found: Gradients = self.ran.gradients(swept, Needs([x.requires_grad], [w.requires_grad for w in weights]))
        return [*found.sources, *found.params, *found.carries]


class Chunk:
    """called: of each layer, between its F and its B; swept: between a sweep that is an R and its B. end: leaves of the
    model's output, where the backward has still to begin."""

    def __init__(self, walk: ChunkWalk) -> None:
        self.walk = walk
        self.module: ModuleCall | None = None  # the call whose layers run
        self.called: dict[int, Called] = {}
        self.swept: dict[int, Swept] = {}
        self.end: list[Any] | None = None

    def begin(self, node: str, graph: nn.Module, path: str) -> ModuleCall:
        """The call of a recurrent module, at this node of the graph."""
        args, kwargs = self.walk.until(node)
        module: Any = graph.get_submodule(path)
        self.module = ModuleCall(module, *args, **kwargs)
        return self.module

    def call(self, sweep: Sweep, weights: Sequence[Tensor], carries: Given, save: bool) -> Called:
        """The next layer. carries: before the chunk, [B, n] each, None for zeros."""
        assert self.module is not None
        x = self.module.x
        source, *params = (t.detach().to(sweep.dtype) for t in (x, *weights))
        states = [None if t is None else t.detach().to(sweep.dtype) for t in carries]
        ran = run(sweep, source, states, params, save=save)
        made = (ran.passed.outputs[0], *ran.passed.finals)
        y, *finals = (self.walk.leaf(tensor.detach().to(x.dtype)) for tensor in made)
        return Called(ran, [x, *weights, *carries], y, finals)

    def advance(self, called: Called, op: int) -> None:
        """Goes on from a layer to the next, or to what follows the module's call."""
        assert self.module is not None
        self.module.advance(called.y, called.finals, op)
        if self.module.ended:
            self.walk.go_on(self.module.result())
            self.module = None

    def begin_backward(self, cotangents: Given) -> None:
        """Goes back from what the model returned. cotangents: of each of its leaves."""
        if self.end is not None:
            self.walk.back(self.end, cotangents)
            self.end = None

    def pair(self, layer: int) -> Any:
        """The layer's summary."""
        return self.called[layer].ran.pair(self.arrived(layer)[0])

    def sweep(self, layer: int, entering: Tensor | None = None) -> Swept:
        """The layer's backward sweep, from [B, N], the cotangent at the chunk's end; None: the loss's own."""
        called = self.called[layer]
        swept = called.ran.swept(entering, *self.arrived(layer))
        self.walk.forget([called.y, *called.finals])
        return swept

    def arrived(self, layer: int) -> tuple[Tensor | None, list[Tensor | None]]:
        """The cotangents of y, [T, B, n], and of the final carries, [B, n] each, from the loss and the layers above."""
        called = self.called[layer]
        found = [self.walk.gradient(leaf) for leaf in (called.y, *called.finals)]
        g_y, *g_finals = (None if g is None else g.to(called.ran.sweep.dtype) for g in found)
        return g_y, g_finals

    def finish(self, layer: int, entering: Tensor | None) -> dict[str, Tensor]:
        """The layer's backward, and that of the piece of the graph before it: the gradients of the weights in both."""
        swept = self.swept.pop(layer) if layer in self.swept else self.sweep(layer, entering)
        called = self.called.pop(layer)
        self.walk.back(called.given, called.gradients(swept))
        return self.walk.taken()
