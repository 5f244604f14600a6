"""What has no chunks of time is refused, with the place and the mend."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import bppsa
from bppsa.errors import BppsaError, InputError, PartitionError, ScheduleError, StrategyError
from tests.workers.over_time import zoo
from tests.workers.over_time.support import over_time

ROWS, STEPS = 3, 9


class Changed(nn.Module):
    """An input [B, T, I], changed by `before`, a GRU, and its output [B, T, H], changed by `behind`."""

    def __init__(self, before: Callable[[Tensor], Any] | None = None, behind: Any = None, **flags: Any) -> None:
        super().__init__()
        self.before, self.behind = before, behind
        self.recurrent = nn.GRU(zoo.INPUTS, zoo.HIDDEN, batch_first=True, **flags)

    def forward(self, x: Tensor) -> Any:
        y, _ = self.recurrent(x if self.before is None else self.before(x))
        return y if self.behind is None else self.behind(y)


class Twice(Changed):
    """The second module begins with the first one's final state."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.GRU(zoo.INPUTS, zoo.HIDDEN, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(x, self.recurrent(x)[1])[0]


class Packing(Changed):
    def forward(self, x: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, torch.full((ROWS,), STEPS), batch_first=True)
        return pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)[0]


class OwnCell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = bppsa.cells.MinGRU(zoo.INPUTS, zoo.HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return bppsa.scan(self.cell, torch.zeros(x.shape[0], zoo.HIDDEN), x.transpose(0, 1))[1]


class CellBehind(Changed):
    def __init__(self) -> None:
        super().__init__(behind=lambda y: bppsa.scan(drift, torch.zeros(y.shape[0], zoo.HIDDEN), y.transpose(0, 1))[1])


def drift(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(h + x)
    return h, h


class Unused(Changed):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def hooked() -> nn.Module:
    model = Changed()
    model.recurrent.register_forward_hook(lambda *args: None)
    return model


def x() -> Tensor:
    return torch.randn(ROWS, STEPS, zoo.INPUTS)


REFUSED: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], type[BppsaError], str]] = {
    "no recurrence": (lambda: nn.Sequential(nn.Linear(3, 3)), x, ScheduleError, r"Sequential has no nn.RNN.*gpipe\(\)"),
    "a cell of one's own": (OwnCell, x, ScheduleError, r"OwnCell has no nn.RNN.*gpipe\(\)"),
    "a scan behind a GRU": (CellBehind, x, PartitionError, r"bppsa.scan.*blelloch\(K\) cuts calls of nn.RNN"),
    "a recurrence that is not called": (Unused, x, ScheduleError, "calls none of its recurrent modules"),
    "two directions": (
        lambda: Changed(bidirectional=True),
        x,
        ScheduleError,
        "recurrent is a bidirectional GRU.*use bidirectional=False",
    ),
    "hooks": (hooked, x, ScheduleError, r"recurrent \(GRU\) has hooks.*remove them"),
    "a packed sequence": (
        lambda: nn.GRU(zoo.INPUTS, zoo.HIDDEN),
        lambda: pack_sequence([torch.randn(5, zoo.INPUTS), torch.randn(2, zoo.INPUTS)]),
        ScheduleError,
        "GRU reads a packed sequence.*pad it",
    ),
    "packing within": (Packing, x, ScheduleError, "recurrent reads a packed sequence.*pad it"),
    "a convolution over time": (
        lambda: Changed(lambda x: F.conv1d(x.transpose(1, 2), torch.ones(3, 3, 3), padding=1).transpose(1, 2)),
        x,
        ScheduleError,
        "what recurrent reads is not its chunks side by side, from conv1d .*only recurrent layers may look",
    ),
    "a mean over time": (
        lambda: Changed(behind=lambda y: y.mean(1)),
        x,
        ScheduleError,
        r"returns, \[3, 4\].*from mean",
    ),
    "the first step": (lambda: Changed(behind=lambda y: y[:, 0]), x, ScheduleError, "from select"),
    "time turned round": (lambda: Changed(lambda x: x.flip(1)), x, ScheduleError, "from flip"),
    "a sum over the past": (lambda: Changed(behind=lambda y: y.cumsum(1)), x, ScheduleError, "from cumsum"),
    "a state handed on": (Twice, x, ScheduleError, "the initial state of second"),
    "one step": (Changed, lambda: x()[:, :1], InputError, "a call of one step.*example_inputs="),
    "no rows": (Changed, lambda: x()[:0], InputError, "without rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    make, argument, kind, said = REFUSED[name]
    with pytest.raises(kind, match=said):
        over_time(make(), 2)(argument())


def test_fewer_steps_than_chunks() -> None:
    compiled = over_time(Changed(), 4)
    compiled(x())
    with pytest.raises(InputError, match=r"3 steps cannot be cut into 4 chunks; give more, or blelloch\(3\)"):
        compiled(x()[:, :3])
    with pytest.raises(InputError, match="cannot be cut into 4 chunks"):
        over_time(Changed(), 4)(x()[:, :2])


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, partial(nn.InstanceNorm1d, track_running_stats=True)])
def test_a_norm_in_training_has_statistics_of_all_steps(norm: Callable[[int], nn.Module]) -> None:
    class Normed(Changed):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm(zoo.HIDDEN)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.recurrent(x)[0].transpose(1, 2)).transpose(1, 2)

    model = Normed().eval()
    compiled = over_time(model, 2)
    torch.testing.assert_close(compiled(x := torch.randn(ROWS, STEPS, zoo.INPUTS)), model(x))
    compiled.train()
    with pytest.raises(ScheduleError, match=r"norm \(\w+\) is in training.*call .eval\(\) on it"):
        compiled(x)


def test_rows_of_their_own() -> None:
    with pytest.raises(StrategyError, match="data='local'"):
        over_time(Changed(), 2, data="local")


def test_arguments_of_unequal_length() -> None:
    model = zoo.Steps("gru", batch_first=True)
    compiled = over_time(model, 2)
    compiled(x(), model.state(ROWS))
    with pytest.raises(InputError, match="3 and 5 rows"):
        compiled(x(), model.state(5))
