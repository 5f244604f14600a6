"""How long each node of a graph takes on the device at hand."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import fx

RUNS = 5
WARM_UP = 2


def measured(module: fx.GraphModule, inputs: list[Any], device: torch.device) -> dict[str, float]:
    """By name of each node, the median of the seconds that its forward takes."""
    seconds: dict[str, list[float]] = {node.name: [] for node in module.graph.nodes}
    with torch.no_grad():
        for _ in range(WARM_UP + RUNS):
            Clock(module, seconds, device).run(*inputs)
    return {name: median(times[WARM_UP:]) for name, times in seconds.items()}


class Clock(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, seconds: dict[str, list[float]], device: torch.device) -> None:
        super().__init__(module)
        self.seconds = seconds
        self.device = device

    def run_node(self, n: fx.Node) -> Any:
        self.wait()
        start = perf_counter()
        result = super().run_node(n)
        self.wait()
        self.seconds[n.name].append(perf_counter() - start)
        return result

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
