"""Loss and gradients of a step are those of the model in one process, under every schedule."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from bppsa import compile, schedule
from tests.breadth import alternate, examples
from tests.workers import support, zoo


def batch(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    other = {"y": support.real(rows, zoo.WIDTH), "power": 1.5}
    return (support.real(rows, zoo.WIDTH), other), {"scale": 0.7}


def test_sparse_gradients_stay_sparse() -> None:
    torch.manual_seed(0)
    with support.float64():
        model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    reference, ids, target = copy.deepcopy(model), torch.randint(9, (8,)), torch.randint(3, (8,))
    expected = F.cross_entropy(reference(ids), target)
    expected.backward()
    compiled: Any = compile(
        model, schedule=schedule.gpipe(), stages=2, microbatches=3, loss_fn=F.cross_entropy, example_inputs=ids
    )
    support.close(compiled.step(ids, target), expected.detach())
    assert model[0].weight.grad.is_sparse
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    for found, wanted in ((p.grad.to_dense(), q.grad.to_dense()) for p, q in pairs):
        support.close(found, wanted)


@pytest.mark.parametrize("name", alternate(zoo.SCHEDULES))
@given(data=st.data())
@examples(8)
def test_step_is_the_models(name: str, data: st.DataObject) -> None:
    case = data.draw(zoo.SCHEDULES[name])
    second = data.draw(st.integers(1, 9))
    loss_fn = data.draw(st.sampled_from([support.loss_of, support.SumOf()]))
    torch.manual_seed(0)
    with support.float64():
        model = zoo.Drawn(data.draw(zoo.nets()))
    reference = copy.deepcopy(model)
    args, kwargs = batch(5)
    compiled = compile(
        model,
        **case.options,
        loss_fn=loss_fn,
    )
    for rows in (5, second):  # gradients add up
        args, kwargs = batch(rows)
        target = torch.randn(rows, dtype=torch.float64)
        output = reference(*args, **kwargs)
        expected = loss_fn(output, target)
        expected.backward()
        inputs = [args[0], args[1]["y"]]
        of_inputs = [x.grad for x in inputs]
        for x in inputs:
            x.grad = None

        loss, found = compiled.step(*args, target, return_outputs=True, **kwargs)

        support.close(loss, expected.detach())
        support.close(found, output)
        # in one tree: those of the inputs alone may be nothing but rounding, as behind two norms in a row
        given, wanted = ({f"input {i}": x for i, x in enumerate(of)} for of in ([x.grad for x in inputs], of_inputs))
        support.same(support.gradients(compiled) | given, support.gradients(reference) | wanted)
