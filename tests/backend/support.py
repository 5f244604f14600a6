"""Models, their results with all gradients, and what to count in a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

T, B, I, H = 5, 4, 3, 6  # noqa: E741


def compiled(model: Callable[..., Any], fallback: str = "eager", fullgraph: bool = True) -> Callable[..., Any]:
    return torch.compile(model, backend="bppsa", fullgraph=fullgraph, options={"fallback": fallback})


def nodes(graph: fx.GraphModule, op: Any) -> list[fx.Node]:
    return list(graph.graph.find_nodes(op="call_function", target=op))


def recurrences(graphs: Sequence[fx.GraphModule]) -> list[fx.Node]:
    return [node for graph in graphs for node in nodes(graph, torch.ops.bppsa.recurrence)]


def leaves(result: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def results(model: Callable[..., Any], inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    """All outputs, and the gradients of a loss that reads each of them."""
    outputs = leaves(model(*inputs))
    loss = sum((output * torch.linspace(0.5, 1.5, output.numel()).view_as(output)).sum() for output in outputs)
    wanted = [tensor for tensor in (*inputs, *parameters) if tensor.requires_grad]
    return [*outputs, *torch.autograd.grad(loss, wanted)]


def same(got: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-10) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def random(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = True) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=grad)


class Within(nn.Module):
    """A recurrent module among ordinary ones."""

    def __init__(self, inner: nn.RNNBase) -> None:
        super().__init__()
        self.enter, self.inner = nn.Linear(I, I), inner
        self.leave = nn.Linear((inner.proj_size or H) * (2 if inner.bidirectional else 1), 2)

    def forward(self, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        y, state = self.inner(self.enter(x).tanh(), hx)
        return self.leave(y), state
