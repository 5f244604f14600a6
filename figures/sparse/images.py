"""What the convolutional networks learn from: CIFAR-10 where its files are, else scikit-learn's handwritten digits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

from figures.sparse.networks import IMAGE

Batch = tuple[Tensor, Tensor]  # images [B, C, 32, 32] and classes [B]

# The binary version of CIFAR-10: one byte for the class, then the pixels.
CIFAR_TRAINING, CIFAR_TEST = [f"data_batch_{number}.bin" for number in range(1, 6)], ["test_batch.bin"]
PIXELS = 3 * 32 * 32
TEST_DIGITS = 261  # of 1797; the others are six batches of 256


@dataclass(frozen=True)
class Images:
    """Pixels have mean 0 and variance 1 over the training images."""

    name: str
    training: Batch
    test: Batch

    @classmethod
    def of(cls, name: str, training: Batch, test: Batch) -> Images:
        mean, std = training[0].mean(), training[0].std()
        return cls(name, ((training[0] - mean) / std, training[1]), ((test[0] - mean) / std, test[1]))

    @property
    def channels(self) -> int:
        return self.test[0].shape[1]

    def batches(self, rows: int, device: torch.device) -> Iterator[Batch]:
        """Epoch after epoch without end, each in an order of its own; what is left of an epoch is left out."""
        rng = torch.Generator().manual_seed(0)
        x, classes = self.training
        while True:
            order = torch.randperm(len(x), generator=rng)
            for chosen in order.split(rows)[: len(order) // rows]:
                yield x[chosen].to(device), classes[chosen].to(device)


def images(cifar10: Path | None) -> Images:
    """Raises OSError where a folder is given that does not hold CIFAR-10's binary files."""
    if cifar10 is None:
        return digits()
    return Images.of("CIFAR-10", read(cifar10, CIFAR_TRAINING), read(cifar10, CIFAR_TEST))


def digits() -> Images:
    """8 x 8 pixels, enlarged to the 32 x 32 of LeNet-5."""
    found = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32)[:, None]
    x = F.interpolate(x, size=IMAGE[1:], mode="bilinear")
    classes = torch.tensor(found.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, classes = x[order], classes[order]
    name = "digits of scikit-learn, a stand-in for CIFAR-10"
    return Images.of(name, (x[TEST_DIGITS:], classes[TEST_DIGITS:]), (x[:TEST_DIGITS], classes[:TEST_DIGITS]))


def read(folder: Path, names: list[str]) -> Batch:
    records = torch.frombuffer(bytearray(b"".join((folder / name).read_bytes() for name in names)), dtype=torch.uint8)
    records = records.view(-1, 1 + PIXELS)
    return records[:, 1:].reshape(-1, *IMAGE).float(), records[:, 0].long()
