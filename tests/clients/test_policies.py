"""RecurrentPPO of sb3-contrib with a compiled policy: float32 alone, as its observations are."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bppsa
from benchmarks.clients import CLIENTS
from tests.clients.test_clients import ROWS, WIDTH, model_of
from tests.loops.beside import assert_alike

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")]


def gradients(outputs: Any, given: Any) -> list[Tensor]:
    total = sum((i + 1) * output.square().sum() for i, output in enumerate(outputs))
    return [*outputs, *torch.autograd.grad(total, given)]


@pytest.mark.parametrize("lstm", ["lstm_actor", "lstm_critic"])
def test_its_loop_in_float64(lstm: str) -> None:
    policy = model_of(CLIENTS["sb3-contrib MlpLstmPolicy"]).double()
    fast: Any = bppsa.compile(copy.deepcopy(policy))
    for steps in (12, 12, 20, 20, 12):
        features = torch.randn(ROWS * steps, policy.lstm_actor.input_size, dtype=torch.float64, requires_grad=True)
        state = tuple(torch.randn(1, ROWS, WIDTH, dtype=torch.float64, requires_grad=True) for _ in "hc")
        starts = (torch.rand(ROWS * steps) < 0.2).double().index_fill(0, torch.tensor([3]), 1.0)
        results = []
        for each in (policy, fast):
            y, (h, c) = each._process_sequence(features, state, starts, getattr(each, lstm))
            results.append(gradients((y, h, c), (features, *state, *getattr(each, lstm).parameters())))
        for expected, found in zip(*results, strict=True):
            assert_alike(expected, found)
        assert strategies(fast) == ["sequential"]


def test_its_update() -> None:
    """Of many random splits of one rollout: sequences of many lengths, and batches in which no episode begins."""
    pytest.importorskip("sb3_contrib", exc_type=ImportError)
    from sb3_contrib import RecurrentPPO

    made: Any = {"lstm_hidden_size": WIDTH, "optimizer_class": torch.optim.SGD}
    sizes: Any = {"n_steps": 48, "batch_size": 24, "n_epochs": 4, "learning_rate": 0.1}
    agent = RecurrentPPO("MlpLstmPolicy", "Pendulum-v1", seed=0, device="cpu", policy_kwargs=made, **sizes)
    _, callback = agent._setup_learn(48)
    agent.collect_rollouts(agent.env, callback, agent.rollout_buffer, n_rollout_steps=48)
    agent.rollout_buffer.episode_starts[[7, 20, 33]] = 1.0
    other = copy.deepcopy(agent)
    other.policy = bppsa.compile(other.policy)
    for seed in range(3):
        before = [parameter.detach().clone() for parameter in agent.policy.parameters()]
        for each in (agent, other):
            np.random.seed(seed % 2)
            each.train()
        check_close(before, agent.policy, other.policy)
        other.policy.load_state_dict(agent.policy.state_dict())
    assert "sequential" in strategies(other.policy)
    for each in (agent, other):
        each.predict(np.zeros(3, np.float32))
        each.learn(96)


def strategies(model: nn.Module) -> list[str]:
    return [decision.strategy for decision in bppsa.report(model).decisions if decision.kind == "loop"]


def check_close(before: list[Tensor], expected: nn.Module, found: nn.Module) -> None:
    """How far each parameter has moved: the same, to a thousandth of its farthest number."""
    parameters = zip(before, expected.parameters(), found.parameters(), strict=True)
    moved = [(wanted - old, parameter - old) for old, wanted, parameter in parameters]
    for wanted, parameter in moved:
        torch.testing.assert_close(parameter, wanted, rtol=0.0, atol=1e-3 * float(wanted.abs().max()) + 1e-6)
    assert max(float(wanted.abs().max()) for wanted, _ in moved) > 1e-3
