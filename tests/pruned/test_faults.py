"""Masks, modules, batches and numbers that are not what they were."""

from __future__ import annotations

import copy
import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

import bppsa
from tests.pruned.support import assert_same_step, error, kernels, pruned, twins


@pytest.mark.parametrize("shape", [(6, 1, 3, 3), (1, 1, 1, 1), (6, 4, 1, 3)])
def test_a_mask_that_is_broadcast_is_pytorchs(shape: tuple[int, ...]) -> None:
    plain, fast, batch = twins("lenet")
    assert_same_step(plain, fast, batch(3))
    mask = torch.ones(shape).double()
    mask.view(-1)[0] = 0
    for model in (plain, fast):
        model[3].weight_mask = mask
    assert_same_step(plain, fast, batch(3))
    said = {d.path: d for d in fast.report.decisions}["3"]
    assert said.strategy == "pytorch"
    assert f"the mask of 3.weight is {list(shape)}, the weight [6, 4, 3, 3]" in said.reason


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float16])
def test_masks_of_any_dtype(dtype: torch.dtype) -> None:
    plain, fast, batch = twins("lenet")
    for model in (plain, fast):
        model[3].weight_mask = model[3].weight_mask.to(dtype)
    assert_same_step(plain, fast, batch(3))
    assert set(kernels(fast)) == {"sparse"}


@pytest.mark.parametrize("value", [float("nan"), 0.5, 2.0, -1.0])
def test_masks_of_other_numbers_are_pytorchs(value: float) -> None:
    plain, fast, batch = twins("lenet")
    for model in (plain, fast):
        model[3].weight_mask[0, 0] = value
    x = batch(3)
    torch.testing.assert_close(fast(x), plain(x), rtol=1e-12, atol=1e-12, equal_nan=True)
    assert {d.path: d.strategy for d in fast.report.decisions}["3"] == "pytorch"


def test_a_mask_of_another_shape_than_the_weight_is_pytorchs_error() -> None:
    importlib.import_module("bppsa.frontend.dynamo.backend")  # its patches of Dynamo stay in the process
    _, fast, batch = twins("lenet")
    fast(batch(2))
    fast[3].weight_mask = torch.ones(6, 4, 3, 5).double()
    with pytest.raises(RuntimeError, match="must match the size"):
        fast(batch(2))


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("move", ["double", "float", "half", "bfloat16", "meta"])
def test_a_module_moved_to_another_dtype_or_device(move: str, warm: bool) -> None:
    plain, fast, batch = twins("lenet")
    x = batch(4)
    if warm:
        assert_same_step(plain, fast, x)
    for model in (plain, fast):
        model.to("meta") if move == "meta" else getattr(model, move)()
    dtype = (
        torch.float64
        if move == "meta"
        else getattr(torch, {"double": "float64", "half": "float16"}.get(move, move), None)
    )
    dtype = torch.float32 if move == "float" else dtype
    given = x.to("meta") if move == "meta" else x.to(dtype)
    expected, got = plain(given), fast(given)
    assert (expected.dtype, expected.device, expected.shape) == (got.dtype, got.device, got.shape)
    if move != "meta":
        assert error(expected.double(), got.double()) < {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 1e-12)
    runs = {"sparse"} if move in ("double", "float") else {"pytorch"}
    assert set(kernels(fast)) == runs
    with pytest.raises(RuntimeError):  # PyTorch's
        fast(x.to(torch.int32))
    if move != "meta":
        plain.double(), fast.double()
        if move == "double":
            assert_same_step(plain, fast, x)


def test_a_batch_of_one_value_a_channel() -> None:
    _, fast, batch = twins("perceptron")
    for _ in range(2):
        with pytest.raises(ValueError, match="more than 1 value per channel when training"):  # PyTorch's own
            fast(batch(1))
    assert fast(batch(2)).shape == (2, 4)


def test_a_new_head_and_a_new_weight_are_seen() -> None:
    plain, fast, batch = twins("lenet")
    assert_same_step(plain, fast, batch(3))
    torch.manual_seed(4)
    head = prune.random_unstructured(nn.Linear(10, 8).double(), "weight", 0.4)
    for model in (plain, fast):
        model[9] = head
        model[3].weight_orig = nn.Parameter(torch.ones_like(model[3].weight_orig))
    x = batch(3)
    assert error(plain(x), fast(x)) < 1e-12
    assert fast(x).shape == (3, 8)
    assert set(kernels(fast)) == {"sparse"}


NORMS = [
    {"momentum": None},
    {"affine": False},
    {"track_running_stats": False},
    {"momentum": 0.3, "eps": 1e-2},
    {"affine": False, "track_running_stats": False},
]


@pytest.mark.parametrize("options", NORMS, ids=str)
@pytest.mark.parametrize("images", [True, False])
def test_batch_norms_of_every_kind(options: dict[str, object], images: bool) -> None:
    torch.manual_seed(0)
    if images:
        layers = [nn.Conv2d(2, 5, 3, bias=False), nn.BatchNorm2d(5, **options), nn.ReLU(), nn.Conv2d(5, 3, 3)]
    else:
        layers = [nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5, **options), nn.ReLU(), nn.Linear(5, 3)]
    plain = nn.Sequential(*layers).double()
    fast = copy.deepcopy(plain)
    plain, fast = pruned(plain, 0.5), bppsa.compile(pruned(fast, 0.5))
    shape = (2, 7, 7) if images else (6,)
    for samples in (3, 8, 13):
        assert_same_step(plain, fast, torch.randn(samples, *shape).double() * 3 + 1)
    averages = options.get("momentum", 0.1) is None  # over all calls: their number is a value that Dynamo cannot know
    assert set(kernels(fast)) == ({"sparse", "pytorch"} if averages else {"sparse"})
    plain.eval(), fast.eval()
    assert_same_step(plain, fast, torch.randn(4, *shape).double())
    assert "sparse" in kernels(fast)


def test_running_statistics_in_training_without_gradients() -> None:
    plain, fast, batch = twins("residual")
    for _ in range(2):
        x = batch(5)
        with torch.no_grad():
            plain(x), fast(x)
    for (name, a), b in zip(plain.named_buffers(), fast.buffers(), strict=True):
        assert error(a.double(), b.double()) < 1e-12, name


def test_the_same_numbers_for_one_number_of_threads() -> None:
    _, fast, batch = twins("residual")
    x, before = batch(33), torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            runs = []
            for _ in range(3):
                fast.zero_grad()
                y = fast(x)
                y.square().sum().backward()
                runs.append([y.detach(), *(p.grad.clone() for p in fast.parameters())])
            assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))
    finally:
        torch.set_num_threads(before)


class Unknown(nn.Module):
    """Layers without a kernel between pruned ones: transposed, 1d and 3d convolutions, circular padding, group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 2, padding="same")
        self.round = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
        self.up, self.norm = nn.ConvTranspose2d(4, 3, 2, 2, bias=False), nn.GroupNorm(3, 3)
        self.second = nn.Conv2d(3, 6, (3, 5), padding="same", dilation=(2, 1))
        self.line, self.solid = nn.Conv1d(6, 6, 3), nn.Conv3d(1, 2, 3)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.norm(self.up(self.round(self.first(x)))))
        solid = self.solid(x[:, None]).mean((2, 3, 4))
        line = self.line(x.flatten(2)).mean(2)
        return self.head(torch.cat([solid, line[:, :2]], 1)) + F.adaptive_max_pool2d(x, 1).flatten(1)[:, :3]


def test_what_has_no_kernel_stays_with_pytorch_between_regions() -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        model = pruned(Unknown().double(), 0.5)
        for layer in (model.up, model.line, model.solid):
            torch.manual_seed(2)
            prune.random_unstructured(layer, "weight", 0.5)
        models.append(model)
    plain, fast = models[0], bppsa.compile(models[1])
    assert_same_step(plain, fast, torch.randn(5, 3, 6, 6).double())
    said = {d.path: d for d in fast.report.decisions}
    ran = {path: d.strategy for path, d in said.items()}
    assert ran == {"first": "pytorch", "round": "sparse", "second": "sparse", "head": "sparse"}
    assert "padding='same' that is not" in said["first"].reason
