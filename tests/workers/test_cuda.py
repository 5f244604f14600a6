"""Workers that are threads share one CUDA device; a rank of NCCL has its own."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import bppsa
from bppsa import schedule
from bppsa.schedule import Recipe
from tests.workers.support import close, gradients, same

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("in_float64")]

BY_STAGE = {
    "gpipe": schedule.gpipe(),
    "one_f_one_b": schedule.one_f_one_b(),
    "interleaved": schedule.interleaved(),
    "zero_bubble": schedule.zero_bubble(),
    "lpp": schedule.lpp(G=2),
    "fslpp": schedule.fslpp(G=2),
    "ddp": schedule.ddp(),
    "fsdp": schedule.fsdp(),
    "wavelet_dp": schedule.wavelet_dp(),
    "wavelet_mp": schedule.wavelet_mp(),
}


def rows(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", requires_grad=True)


def layers() -> nn.Module:
    return nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(6, 6), nn.Dropout(0.0), nn.Tanh())]).cuda()


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


def check(model: nn.Module, recipe: Recipe, x: Tensor, **options: int) -> None:
    """A step and an evaluation, beside the model's own."""
    alone, loss_fn = copy.deepcopy(model), nn.MSELoss()
    compiled = bppsa.compile(model, schedule=recipe, loss_fn=loss_fn, example_inputs=x, **options)
    target = torch.randn_like(x)
    loss = compiled.step(x, target)
    expected = loss_fn(alone(x), target)
    expected.backward()
    close(loss, expected)
    same(gradients(compiled), gradients(alone))
    with torch.no_grad():
        close(compiled(x), alone(x))


@pytest.fixture
def alone_with_nccl(tmp_path: object) -> Iterator[None]:
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("recipe", BY_STAGE.values(), ids=BY_STAGE)
def test_threads(recipe: Recipe) -> None:
    check(layers(), recipe, rows(8, 6), stages=4, microbatches=4)


@pytest.mark.parametrize("middle", ["chain", "blelloch", "doubling", "linear"])
def test_threads_over_time(middle: str) -> None:
    check(Tagger().cuda(), schedule.blelloch(3, middle=middle), rows(4, 20, 6))


@pytest.mark.parametrize("name", ["interleaved", "ddp"])
def test_a_rank_of_nccl(name: str, alone_with_nccl: None) -> None:
    check(layers(), BY_STAGE[name], rows(8, 6), stages=2, microbatches=4)
