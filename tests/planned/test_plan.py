"""bppsa.plan_training: what it counts equals what PyTorch counts, and its ranking what follows by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import bppsa
from bppsa.distributed.planned.states import OPTIMIZERS
from bppsa.errors import ArgumentError, PartitionError, ScheduleError, StrategyError

RATES = {"tflops": 1e-3, "bandwidth_gbps": 1.0, "device_gb_per_s": 10.0}


class Attends(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, width]
        q, k, v = self.mix(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        return x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def small() -> nn.Module:
    return nn.Sequential(nn.Embedding(50, 16), *(Attends(16) for _ in range(4)), nn.Linear(16, 50))


aten = torch.ops.aten


def of_tensors(op: Any) -> Any:
    formula = partial(flop_registry[op])
    formula._get_raw = True  # type: ignore[attr-defined]  # as FlopCounterMode asks of what takes tensors
    return formula


FUSED = {  # which FlopCounterMode does not know on CPUs
    aten._scaled_dot_product_flash_attention_for_cpu: of_tensors(aten._scaled_dot_product_flash_attention),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: of_tensors(
        aten._scaled_dot_product_flash_attention_backward
    ),
}
IDS = torch.zeros(8, 12, dtype=torch.int64)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "adamw32"])
def test_bytes_of_weights_gradients_and_optimizer_are_torchs(name: str) -> None:
    model = small()
    kind = {"momentum": "SGD", "sgd": "SGD", "adamw": "AdamW", "rmsprop": "RMSprop"}.get(name, name.capitalize())
    optimizer = getattr(torch.optim, kind)(
        model.parameters(), lr=0.1, **({"momentum": 0.9} if name == "momentum" else {})
    )
    model(IDS).sum().backward()
    optimizer.step()
    state = [x for held in optimizer.state.values() for x in held.values() if isinstance(x, Tensor)]
    plan = bppsa.plan_training(model, IDS, workers=2, optimizer=name, **RATES)
    stages = plan.best.stages
    weights = sum(p.nbytes for p in model.parameters())
    assert sum(stage.weights for stage in stages) == weights == sum(stage.gradients for stage in stages)
    assert sum(stage.state for stage in stages) == sum(x.nbytes for x in state)
    assert sum(stage.parameters for stage in stages) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("model", [small(), nn.Sequential(nn.Linear(12, 30), nn.Tanh(), nn.Linear(30, 7))])
def test_flops_are_torchs(model: nn.Module) -> None:
    x = IDS if isinstance(model[0], nn.Embedding) else torch.randn(8, 12)  # type: ignore[index]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(x)
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False, custom_mapping=FUSED) as counter:
        model(x).sum().backward()
    plan = bppsa.plan_training(
        model, x, workers=2, microbatches=2, tflops=1e-6, bandwidth_gbps=1e9, schedules=[bppsa.schedule.gpipe()]
    )
    stages = plan.best.stages
    assert 2 * sum(stage.flops for stage in stages) == forward
    took = sum(stage.forward + stage.backward + stage.weight for stage in stages)  # ms at 10^6 flops a second
    assert 2 * took * 1e3 == pytest.approx(counter.get_total_flops())


def test_activations_are_what_autograd_keeps() -> None:
    model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 5))
    plan = bppsa.plan_training(model, torch.zeros(4, 10), workers=1, microbatches=1, **RATES)
    kept = next(one for one in plan.ranking.fit if one.recompute is None and len(one.stages) == 1)
    assert kept.activations == 4 * (4 * 10 + 4 * 20)  # the argument, and what tanh gives


def test_two_stages_by_hand() -> None:
    """What goes from one to the other is 125 * 250 floats, 1 ms at 1 Gbit/s."""
    model = nn.Sequential(nn.Linear(10, 250, bias=False), nn.Linear(250, 5, bias=False))
    plan = bppsa.plan_training(
        model,
        torch.zeros(250, 10),
        workers=2,
        microbatches=2,
        optimizer="sgd",
        times=[(1.0, 2.0, 3.0), (4.0, 5.0, 6.0)],
        schedules=[bppsa.schedule.gpipe()],
        **RATES,
    )
    plain, again = plan.ranking.fit
    # F of stage 1 from 2 to 10, its B to 32; the last gradient is there at 33, and B of stage 0 takes 2 + 3.
    assert (plain.ms, plain.sums_ms, plain.recompute) == (38, 0, None)
    assert plain.timeline.end[1, 1, "F"] == 10
    # Each B of stage 1 takes 4 longer, and that of stage 0 takes 1 longer.
    assert (again.ms, again.name) == (47, "gpipe + full recompute")
    held = plain.weights, plain.gradients, plain.optimizer, plain.fetched, plain.activations
    assert held == (5000, 5000, 0, 0, 2 * 125_000)  # of the second stage


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(100, 8), nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
        self.out = nn.Linear(8, 100, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.blocks(self.words(ids))).logsumexp(-1).mean()


def test_a_worker_holds_a_tied_weight_once() -> None:
    """And its gradients are summed once, also where two stages of a pipeline share it."""
    model, zoo = Tied(), bppsa.schedule
    tied, weights = model.words.weight.nbytes, sum(p.nbytes for p in model.parameters())
    plan = bppsa.plan_training(model, IDS, workers=2, schedules=[zoo.ddp(), zoo.gpipe()], optimizer="sgd", **RATES)
    found = {one.schedule.name: one for one in plan.ranking.fit if one.recompute is None and len(one.stages) == 2}
    assert found["ddp"].weights == found["ddp"].gradients == weights
    assert found["ddp"].sums_ms == pytest.approx(8 * weights / 1e6)
    assert found["gpipe"].sums_ms == pytest.approx(8 * tied / 1e6)


def test_replicas_hold_all_and_pay_for_sums() -> None:
    both = [bppsa.schedule.ddp(), bppsa.schedule.fsdp()]
    plan = bppsa.plan_training(small(), IDS, workers=2, schedules=both, **RATES)
    weights = sum(p.nbytes for p in small().parameters())
    found = {one.schedule.name: one for one in plan.ranking.fit if one.recompute is None and len(one.stages) == 2}
    assert found["ddp"].weights == weights
    assert found["ddp"].sums_ms == pytest.approx(8 * weights / 1e6)  # 2 (k - 1) / k of all gradients, at 1 Gbit/s
    assert found["fsdp"].weights < weights
    assert found["fsdp"].sums_ms == pytest.approx(4 * weights / 1e6)


def test_what_does_not_fit_says_by_how_much() -> None:
    with pytest.raises(ScheduleError, match=r"needs least, .* GB, .* GB too many, of which .* take "):
        bppsa.plan_training(small(), IDS, workers=2, memory_gb=1e-6, **RATES)


def test_measured_times_replace_estimates() -> None:
    times = [(1.0, 1.0, 1.0), (2.0, 2.0, 2.0)]
    plan = bppsa.plan_training(small(), IDS, workers=2, times=times, **RATES)
    assert [(s.forward, s.backward, s.weight) for s in plan.best.stages] == times


def test_nothing_is_left_behind_and_dtype_halves() -> None:
    model = small().to("meta")
    whole, half = (
        bppsa.plan_training(model, IDS.to("meta"), workers=2, dtype=dtype, **RATES) for dtype in (None, torch.bfloat16)
    )
    assert 2 * sum(s.weights for s in half.best.stages) == sum(s.weights for s in whole.best.stages)
    assert all(p.is_meta and p.grad is None for p in model.parameters())


class Looks(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else x


def test_refusals() -> None:
    with pytest.raises(PartitionError, match="Looks does not run on the meta device"):
        bppsa.plan_training(Looks(2, 2), torch.ones(4, 2), workers=2, **RATES)
    with pytest.raises(StrategyError, match="optimizer='lion' is none of"):
        bppsa.plan_training(small(), IDS, workers=2, optimizer="lion", **RATES)
    with pytest.raises(StrategyError, match="workers=0 is no count"):
        bppsa.plan_training(small(), IDS, workers=0, **RATES)
    with pytest.raises(StrategyError, match=r"dtype=torch\.int8 is no floating-point dtype"):
        bppsa.plan_training(small(), IDS, workers=2, dtype=torch.int8, **RATES)
    with pytest.raises(StrategyError, match=r"times\[1\]=\(1.0, 2.0\) are not"):
        bppsa.plan_training(small(), IDS, workers=2, times=[(1.0, 2.0, 2.0), (1.0, 2.0)], **RATES)  # type: ignore[list-item]
    with pytest.raises(StrategyError, match=r"times=\[\] is no list"):
        bppsa.plan_training(small(), IDS, workers=2, times=[], **RATES)
    with pytest.raises(StrategyError, match=r"times\[0\]=\(inf, 1.0, 1.0\) are not"):
        bppsa.plan_training(small(), IDS, workers=2, times=[(float("inf"), 1.0, 1.0)] * 2, **RATES)
    with pytest.raises(
        StrategyError, match=r"dtype=torch\.float8_e4m3fn is no floating-point dtype of torch of 16 bits"
    ):
        bppsa.plan_training(small(), IDS, workers=2, dtype=torch.float8_e4m3fn, **RATES)
    with pytest.raises(StrategyError, match="no 3 equal micro-batches"):
        bppsa.plan_training(small(), IDS, workers=2, microbatches=3, **RATES)


def test_arguments_of_another_type() -> None:
    plan = partial(bppsa.plan_training, workers=2, **RATES)
    with pytest.raises(ArgumentError, match=r"schedules= takes a list of schedules, .* not a Recipe"):
        plan(small(), IDS, schedules=bppsa.schedule.gpipe())
    with pytest.raises(ArgumentError, match="example_kwargs= takes a dict"):
        plan(small(), IDS, example_kwargs=[1])
    with pytest.raises(ArgumentError, match=r"model= takes an nn\.Module, not a function"):
        plan(lambda x: x, IDS)
    with pytest.raises(ArgumentError, match="the example holds an ndarray; give tensors"):
        plan(small(), IDS.numpy())


def test_a_print_is_short_and_tells_what_it_leaves_out() -> None:
    plan = bppsa.plan_training(small(), IDS, workers=4, **RATES)
    found, whole = str(plan).splitlines(), plan.text(rows=None).splitlines()
    assert len(found) == len(plan.about) + 15  # an empty line, heads, ten rows, two lines of legend and one of the rest
    assert found[-1].startswith(f"not shown: {len(plan.ranking.fit) - 10} that fit, 4 that cannot run; text(rows=None)")
    assert len(whole) == len(plan.about) + len(plan.ranking.fit) + 5
    assert whole[-1].startswith("cannot run: gpipe, 8 stages; naive, 8 stages; ")
    assert "e-1" not in str(plan)
