"""Forwards as people write them: a compiled model does what PyTorch does, whatever its forward does besides."""

from __future__ import annotations

import pytest
import torch

import bppsa
from tests.breadth import alternate
from tests.pruned.forwards import FORWARDS, Net
from tests.pruned.forwards.beside import CalledByMethods
from tests.pruned.forwards.python import Prints
from tests.pruned.forwards.structure import FortyLayers, ThousandSteps
from tests.pruned.side_by_side import Pair, assert_alike, both, images, made
from tests.pruned.support import error, kernels


@pytest.mark.parametrize("name", alternate(FORWARDS))
def test_training_and_evaluation_are_pytorchs(name: str) -> None:
    case = FORWARDS[name]
    pair = Pair(*both(case))
    pair.train(4, turns=3)
    if case.sparse:  # whatever else is in its forward, some of its pruned layers are ours
        assert "sparse" in kernels(pair.models[1])
    pair.train(7)
    pair.set_training(False)
    pair.look(4)
    pair.look(7)
    pair.compare(4)
    pair.set_training(True)
    pair.train(4, turns=2)


def test_all_of_forty_layers_run_by_kernels_with_their_own_masks() -> None:
    pair = Pair(*both(FortyLayers))
    pair.train(turns=2)
    fast = pair.models[1]
    sparse = {d.path for d in fast.report.decisions if d.strategy == "sparse"}
    assert {f"layers.{i}" for i in range(40)} < sparse
    for i, mask in ((7, 0.0), (31, 1.0)):
        for model in pair.models:
            model.layers[i].weight_mask.fill_(mask)
        pair.train()


def test_a_loop_of_a_thousand_steps_is_right_and_is_explained() -> None:
    pair = Pair(*both(ThousandSteps))
    pair.train(turns=2)
    pair.train(7)
    said = [d for d in pair.models[1].report.decisions if d.strategy == "pytorch"]
    assert said
    assert all(d.reason for d in said)


@pytest.mark.parametrize("case", [Net, FortyLayers, CalledByMethods], ids=lambda c: c.__name__)
def test_derivatives_of_derivatives(case: type[Net]) -> None:
    pair = Pair(*both(case))
    for turn in range(3):
        found = []
        for model in pair.models:
            x = images(turn, 4).requires_grad_()
            (gradient,) = torch.autograd.grad(torch.tanh(model(x)).square().sum(), x, create_graph=True)
            model.zero_grad()
            gradient.square().sum().backward()
            found.append([gradient, x.grad, {name: p.grad for name, p in model.named_parameters()}])
        assert_alike(*found)


def test_double_backward_to_weights() -> None:
    """As a gradient penalty over parameters, or MAML, has it."""
    for turn in range(3):
        found = []
        for model in both(Net):
            weights = [p for name, p in model.named_parameters() if "weight" in name]
            loss = torch.tanh(model(images(turn, 4))).square().sum()
            first = torch.autograd.grad(loss, weights, create_graph=True)
            sum(g.square().sum() for g in first).backward()
            found.append([[g.detach() for g in first], {name: p.grad for name, p in model.named_parameters()}])
        assert_alike(*found)


def test_prints_are_printed_in_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    _, fast = both(Prints)
    capsys.readouterr()
    for samples in (4, 4, 4, 7):
        fast(images(0, samples))
    assert capsys.readouterr().out.splitlines() == [
        f"between ({samples}, 4, 6, 6) len(h)={samples}" for samples in (4, 4, 4, 7)
    ]


def test_an_error_of_the_forward_is_the_users_own() -> None:
    class Raises(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.first(x)
            if self.training and self.broken:
                raise ZeroDivisionError("of its own")
            return self.last(h)

    pair = Pair(*both(Raises))
    for broken in (False, True, False, True, False):
        for model in pair.models:
            model.broken = broken
        if broken:
            for model in pair.models:
                with pytest.raises(ZeroDivisionError, match="of its own"):
                    model(images(0, 4))
        else:
            pair.train(turns=2)


def test_the_given_model_is_left_as_it_was() -> None:
    """A compiled model shares Parameters with it; both train."""
    given, plain = made(Net), made(Net)
    fast = bppsa.compile(given)
    for turn in range(3):
        found = []
        for model in (plain, given, fast):
            plain.zero_grad(), given.zero_grad()
            model(images(turn, 4)).square().sum().backward()
            found.append([p.grad.clone() for p in model.parameters()])
        assert_alike(found[0], found[1])
        assert_alike(found[0], found[2])
    assert error(given(images(9, 4)), fast(images(9, 4))) < 1e-12
