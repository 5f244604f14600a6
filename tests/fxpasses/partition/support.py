"""Run stages one after another, and compare with the model."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves

from bppsa.common.stages import Stages


def run(stages: Stages, *args: Any, **kwargs: Any) -> Any:
    """What the stages return, each given only the values that it says it reads."""
    values = dict(enumerate(stages.bind(*args, **kwargs)))
    outputs: tuple[Any, ...] = ()
    for s, stage in enumerate(stages.stages):
        assert all(s in stages.values[i].readers for i in stage.inputs)
        outputs = stage.module(*(values[i] for i in stage.inputs))
        values |= dict(zip(stage.outputs, outputs, strict=s < len(stages) - 1))
    return stages.assemble(outputs)


def compare(model: nn.Module, stages: Stages, *args: Any, **kwargs: Any) -> None:
    """Outputs and gradients of all parameters and inputs, with a loss that touches every output."""
    expected = differentiated(model, model, args, kwargs)
    found = differentiated(model, partial(run, stages), args, kwargs)
    assert found[1] == expected[1]
    for a, b in zip(found[0], expected[0], strict=True):
        if isinstance(b, Tensor):
            torch.testing.assert_close(a, b)
        else:
            assert a == b


def differentiated(model: nn.Module, call: Any, args: Any, kwargs: Any) -> tuple[list[Any], Any]:
    torch.manual_seed(0)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    result = call(*args, **kwargs)
    leaves, spec = tree_flatten(result)
    real = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    sources = [p for p in (*model.parameters(), *tree_leaves((args, kwargs))) if isinstance(p, Tensor)]
    sources = [source for source in sources if source.requires_grad]
    loss = sum(((leaf + i) ** 2).sum() for i, leaf in enumerate(real))
    gradients = torch.autograd.grad(loss, sources, allow_unused=True) if real else ()
    after = [buffer.clone() for buffer in model.buffers()]
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])
    return [*leaves, *gradients, *after], spec
