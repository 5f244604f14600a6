"""Training steps by the kernels that came with an installed bppsa, where there is no compiler: run by `check`.

Each model is trained for two steps beside PyTorch's, and its report must name kernels.
"""

from __future__ import annotations

import copy
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

start = time.perf_counter()
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence  # noqa: E402

import bppsa  # noqa: E402

ROUNDING, SMALL = 20.0, 1e-12
Inputs = tuple[Any, ...]


def first_call() -> float:
    """Milliseconds of the first forward and backward of a recurrent module in this process."""
    model = bppsa.compile(nn.GRU(20, 32))
    x = torch.randn(200, 4, 20)
    started = time.perf_counter()
    model(x)[0].sum().backward()
    return 1e3 * (time.perf_counter() - started)


def modules(dtype: torch.dtype) -> dict[str, tuple[nn.Module, Inputs]]:
    x, lengths = torch.randn(60, 5, 12, dtype=dtype), torch.tensor([60, 50, 50, 20, 3])
    many = torch.randn(60, 40, 12, dtype=dtype)
    packed = pack_padded_sequence(x, lengths)
    made: dict[str, tuple[nn.Module, Inputs]] = {
        "RNN": (nn.RNN(12, 16), (x,)),
        "RNN relu": (nn.RNN(12, 16, nonlinearity="relu"), (x,)),
        "GRU of two layers": (nn.GRU(12, 20, 2, bidirectional=True), (x,)),
        "LSTM of many rows": (nn.LSTM(12, 33), (many,)),
        "LSTM, packed": (nn.LSTM(12, 64), (packed,)),
        "GRU, packed": (nn.GRU(12, 129), (packed,)),
    }
    if dtype == torch.float32:
        made["LSTM with a projection"] = nn.LSTM(12, 128, proj_size=64), (x,)
        made["GRU without biases"] = nn.GRU(12, 20, bias=False), (x,)
    return {f"{name}, {dtype}": (model.to(dtype), inputs) for name, (model, inputs) in made.items()}


class Scan(nn.Module):
    """A ready cell over time."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        return bppsa.scan(self.cell, self.cell.initial(x.shape[1]), x, strategy="sequential")[1]


class ByLoop(Scan):
    def forward(self, x: Tensor) -> Tensor:
        carry, ys = self.cell.initial(x.shape[1]), []
        for x_t in x:
            carry, y = self.cell(carry, x_t)
            ys.append(y)
        return torch.stack(ys)


def pruned() -> nn.Module:
    """The same in every call: what is pruned cannot be copied."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 64, 10)),
    )
    for layer in model:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            prune.random_unstructured(layer, "weight", 0.97)
    return model


def outputs(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if hasattr(result, "data") and hasattr(result, "batch_sizes"):
        return [result.data]
    return [tensor for part in result for tensor in outputs(part)]


def train(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Losses and gradients of two steps."""
    found = []
    for _ in range(2):
        model.zero_grad()
        loss = sum(y.square().mean() for y in outputs(model(*inputs)))
        loss.backward()  # type: ignore[union-attr]
        found += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    return found


def error(found: list[Tensor], exact: list[Tensor]) -> float:
    return max(float((a - b).norm() / (b.norm() + 1e-12)) for a, b in zip(found, exact, strict=True))


def compare(name: str, plain: nn.Module, fast: nn.Module, inputs: Inputs) -> None:
    """float64 is the judge: ours may differ from it as PyTorch's own rounding does, some times over."""
    before = copy.deepcopy(plain.state_dict())
    expected = train(plain, inputs)
    fast.load_state_dict(before)
    got = train(fast, inputs)
    report = bppsa.report(fast)
    plain.load_state_dict(before)
    exact = train(plain.double(), tuple(x.double() for x in inputs))
    worst, own = error(got, exact), error(expected, exact)
    assert worst < ROUNDING * own + SMALL, (name, worst, own)
    assert report is not None, name
    strategies = {decision.strategy for decision in report.decisions}
    assert strategies, f"{name}: an empty report"
    assert "pytorch" not in strategies, f"{name}: {report}"
    print(f"{name}: {', '.join(sorted(strategies))}; differs from float64 by {worst:.0e}, PyTorch by {own:.0e}")


def by_pytorch(cell: Callable[[Tensor, Tensor], Any]) -> str:
    """What is warned of where no kernel was shipped, which must be one line; its result is PyTorch's."""
    x, h = torch.randn(50, 3, 16), torch.zeros(3, 16)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert bppsa.scan(cell, h, x, strategy="sequential")[1].shape == (50, 3, 16)
    (warning,) = caught
    assert "install g++" in str(warning.message), warning.message
    return str(warning.message)


def runtimes() -> list[str]:
    files = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    return [file for file in files if Path(file).name.startswith(("libgomp", "libomp", "libiomp"))]


def main() -> None:
    print(f"imported in {1e3 * (time.perf_counter() - start):.0f} ms")
    warnings.simplefilter("error", RuntimeWarning)
    torch.manual_seed(0)
    print(f"the first step of a GRU takes {first_call():.0f} ms")
    for dtype in (torch.float32, torch.float64):
        for name, (plain, inputs) in modules(dtype).items():
            compare(name, plain, bppsa.compile(copy.deepcopy(plain), strategy="sequential"), inputs)
    for kind in (bppsa.cells.LayerNormLSTM, bppsa.cells.MinGRU, bppsa.cells.sLSTM, bppsa.cells.mLSTM):
        cell, x = kind(16, 16), torch.randn(40, 3, 16)
        compare(kind.__name__, ByLoop(cell), bppsa.compile(Scan(copy.deepcopy(cell))), (x,))
    cell, x = bppsa.cells.mLSTM(64, 64), torch.randn(250, 8, 64)  # 8.7 MB of states, more than are kept
    fast = bppsa.compile(Scan(copy.deepcopy(cell)))
    compare("mLSTM of many states", ByLoop(cell), fast, (x,))
    assert "states kept" in str(bppsa.report(fast)), bppsa.report(fast)
    compare("pruned", pruned(), bppsa.compile(pruned()), (torch.randn(64, 3, 32, 32),))
    print(by_pytorch(lambda h, x: (torch.atan(h) * x, torch.cos(h))))
    assert len(runtimes()) == 1, runtimes()
    print(json.dumps({"bppsa": bppsa.__file__, "OpenMP": runtimes()}))


if __name__ == "__main__":
    sys.exit(main())
