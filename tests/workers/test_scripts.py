"""What training scripts do beside the step: scaling, accumulation, clipping, groups, averages, fused optimizers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional as F

from bppsa import compile, trainer
from bppsa.distributed.script.scaling import skip_together
from bppsa.schedule import blelloch, gpipe
from tests.breadth import alternate
from tests.workers import scripts, support, zoo
from tests.workers.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("in_float64")


def compiled_for(name: str, **options: Any) -> nn.Module:
    case = zoo.CASES[name]
    return compile(
        scripts.perceptron(),
        **case.options,
        loss_fn=F.cross_entropy,
        **options,
    )


@pytest.mark.parametrize("name", alternate(zoo.CASES))
def test_gradients_are_those_of_the_scaled_loss(name: str) -> None:
    model, compiled = scripts.perceptron(), compiled_for(name)
    scaler, (x, target) = GradScaler("cpu", init_scale=8.0), scripts.batch(0)
    expected = F.cross_entropy(model(x), target)
    (expected * 8.0).backward()
    support.close(trainer(compiled).step(x, target, scaler=scaler), expected.detach())
    support.same(support.gradients(compiled), support.gradients(model))


@pytest.mark.parametrize("name", alternate(zoo.CASES))
def test_bfloat16_by_autocast(name: str) -> None:
    """As a loop over the micro-batches in one process."""
    case, (x, target) = zoo.CASES[name], scripts.batch(0)
    model, compiled = scripts.perceptron(), compiled_for(name)
    model.float()
    compiled.float()
    x = x.float()
    with torch.autocast("cpu", torch.bfloat16):
        found = trainer(compiled).step(x, target)
    total = x.new_zeros(())
    for part, of_part in zip(x.tensor_split(case.microbatches), target.tensor_split(case.microbatches), strict=True):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(part), of_part) * (len(part) / len(x))
        loss.backward()
        total += loss.detach()
    support.close(found, total, 1e-6)
    support.same(support.gradients(compiled), support.gradients(model), 1e-5)
    assert all(p.grad.dtype == torch.float32 for p in compiled.parameters())


def test_a_rank_skips_with_any_gradient() -> None:
    """One whose elements are not in order, as channels_last leaves them, or a sparse one."""
    image = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    image(torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)).sum().backward()
    assert not image.weight.grad.is_contiguous()
    words = nn.Embedding(5, 2, sparse=True)
    words(torch.tensor([1, 3])).sum().backward()
    scaler, here = GradScaler("cpu"), torch.device("cpu")
    for model, grad in ((image, image.weight.grad), (words, words.weight.grad)):
        skip_together(scaler, model.parameters(), here, lambda mine: [mine, False])
        assert all(x.to_dense().isfinite().all() for x in support.gradients(model).values())
        skip_together(scaler, model.parameters(), here, lambda mine: [mine, True])
        assert not grad.to_dense().isfinite().all()


def test_a_scaler_of_two_models_keeps_what_it_knows_of_each() -> None:
    critic, compiled, (x, target) = scripts.perceptron(), compiled_for("gpipe"), scripts.batch(0)
    plain = copy.deepcopy(critic)
    plain(x).mean().backward()
    scaler, optimizer = GradScaler("cpu", init_scale=8.0), torch.optim.SGD(critic.parameters(), 0.1)
    scaler.scale(critic(x).mean()).backward()
    scaler.unscale_(optimizer)
    trainer(compiled).step(x, target, scaler=scaler)
    support.same(support.gradients(critic), support.gradients(plain))
    scaler.step(optimizer)  # which would divide them again
    support.same(support.gradients(critic), support.gradients(plain))
    with pytest.raises(RuntimeError, match="called after step"):
        scaler.unscale_(optimizer)


def test_update_asks_for_a_step_as_ever() -> None:
    compiled, scaler, (x, target) = compiled_for("gpipe"), GradScaler("cpu", init_scale=8.0), scripts.batch(0)
    trainer(compiled).step(x, target, scaler=scaler)
    with pytest.raises(AssertionError, match="prior to update"):
        scaler.update()


def test_a_scaled_loss_over_time() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.rnn(x)[0])

    model, x, target = Net(), torch.randn(4, 6, 3), torch.randn(4, 6, 3)
    compiled = compile(copy.deepcopy(model), schedule=blelloch(2), microbatches=2, loss_fn=nn.MSELoss())
    (F.mse_loss(model(x), target) * 8.0).backward()
    trainer(compiled).step(x, target, scaler=GradScaler("cpu", init_scale=8.0))
    support.same(support.gradients(compiled), support.gradients(model))


def test_several_calls_before_a_step_of_the_optimizer() -> None:
    model, compiled = scripts.perceptron(), compiled_for("gpipe")
    total = 0.0
    for step in range(4):
        x, target = scripts.batch(step)
        total += float(trainer(compiled).step(x, target, share=1 / 4))
        (F.cross_entropy(model(x), target) / 4).backward()
    whole = [scripts.batch(step) for step in range(4)]
    loss = F.cross_entropy(model(torch.cat([x for x, _ in whole])), torch.cat([target for _, target in whole]))
    assert total == pytest.approx(loss.item())
    support.same(support.gradients(compiled), support.gradients(model))


def test_a_scaler_that_is_off_does_nothing() -> None:
    model, compiled, (x, target) = scripts.perceptron(), compiled_for("gpipe"), scripts.batch(0)
    F.cross_entropy(model(x), target).backward()
    trainer(compiled).step(x, target, scaler=GradScaler("cpu", enabled=False))
    support.same(support.gradients(compiled), support.gradients(model))


def test_averages_of_weights_and_fused_optimizers() -> None:
    model, compiled = (
        scripts.perceptron(),
        compile(scripts.perceptron(), schedule=gpipe(), stages=2, microbatches=3, loss_fn=F.cross_entropy),
    )
    nets = (model, compiled)
    optimizers = [torch.optim.AdamW(net.parameters(), lr=0.1, fused=net is compiled) for net in nets]
    averages = [
        torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        for net in nets
    ]
    for step in range(3):
        x, target = scripts.batch(step)
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(model(x), target).backward()
        trainer(compiled).step(x, target)
        for optimizer, average, net in zip(optimizers, averages, nets, strict=True):
            optimizer.step()
            average.update_parameters(net)
    support.close(dict(compiled.state_dict()), dict(model.state_dict()), 1e-8)
    names = dict(averages[0].named_parameters()).keys()
    assert names == dict(averages[1].named_parameters()).keys()
    support.close(list(averages[1].parameters()), list(averages[0].parameters()), 1e-8)


@pytest.mark.parametrize("name", ["one_f_one_b", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_all_ranks_skip_where_one_overflows(name: str) -> None:
    losses, state = scripts.plain([0, 2, 3])
    for found, scales, weights in run_ranks(scripts.scaled_of_all, 2, name):
        assert scales == [1024.0, 512.0, 512.0, 512.0]
        support.close(torch.tensor(found), torch.tensor(losses), 1e-8)
        support.close(dict(weights), dict(state), 1e-8)


@pytest.mark.parametrize(("frozen", "microbatches"), [(2, 3), (0, 1)], ids=["frozen", "no micro-batch"])
def test_a_rank_without_gradients_scales_as_the_others(frozen: int, microbatches: int) -> None:
    told = run_ranks(scripts.scaled_on_one_rank, 2, frozen, microbatches)
    assert 0 in [gradients for gradients, _, _ in told]
    assert [scales for _, scales, _ in told] == [[8.0, 4.0, 4.0, 8.0]] * 2
    support.close(dict(told[0][2]), dict(told[1][2]), 0)
