"""What is trained: sequences with a class each, and a recurrence whose last state names the class (section 4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

HIDDEN = 20
BITSTREAM_CLASSES = 10

Batch = tuple[Tensor, Tensor]  # x [T, B, I] and the classes [B]


class Classifier(nn.Module):
    """x [T, B, I] -> scores of the classes [B, C], from the state after the last step."""

    def __init__(self, recurrent: nn.RNNBase, classes: int) -> None:
        super().__init__()
        self.recurrent = recurrent
        self.head = nn.Linear(recurrent.hidden_size, classes)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.recurrent(x)[1]
        return self.head(h[-1])


@dataclass(frozen=True)
class Samples:
    x: Tensor  # [N, T, I]
    classes: Tensor  # [N], int64

    def batch(self, rows: Tensor, device: torch.device) -> Batch:
        x = self.x[rows].to(device, torch.float32)
        return x.transpose(0, 1).contiguous(), self.classes[rows].to(device)

    def batches(self, size: int, device: torch.device) -> Iterator[Batch]:
        """Epoch after epoch without end, each in an order of its own; what is left of an epoch is left out."""
        rng = torch.Generator().manual_seed(0)
        while True:
            order = torch.randperm(len(self.x), generator=rng)
            for rows in order.split(size)[: len(order) // size]:
                yield self.batch(rows, device)


@dataclass(frozen=True)
class Workload:
    model: Classifier
    samples: Samples
    rows: int  # B
    device: torch.device

    @property
    def iterations_an_epoch(self) -> int:
        return len(self.samples.x) // self.rows

    def batches(self) -> Iterator[Batch]:
        return self.samples.batches(self.rows, self.device)


def bitstreams(samples: int, steps: int) -> Samples:
    """Bits that are 1 with probability 0.05 + 0.1 c in a stream of class c (equation 8): uint8 [N, T, 1]."""
    rng = torch.Generator().manual_seed(0)
    classes = torch.randint(BITSTREAM_CLASSES, (samples,), generator=rng)
    x = torch.empty(samples, steps, 1, dtype=torch.uint8)
    for stream, c in zip(x, classes.tolist(), strict=True):
        stream.bernoulli_(0.05 + 0.1 * c, generator=rng)
    return Samples(x, classes)


def bitstream_workload(samples: int, steps: int, rows: int, device: torch.device) -> Workload:
    """The vanilla RNN of section 4.1, equation 9."""
    torch.manual_seed(0)
    model = Classifier(nn.RNN(1, HIDDEN), BITSTREAM_CLASSES).to(device)
    return Workload(model, bitstreams(samples, steps), rows, device)
