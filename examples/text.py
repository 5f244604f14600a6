"""Text to train a language model on: bytes, in random pieces, and the loss of the next byte's scores.

Letters in shapes: N bytes of text, B rows of a batch, T bytes of a row.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

LARGEST = 8_000_000  # bytes


def read_text(path: Path | None) -> Tensor:
    """The bytes of a file, or of all files of a folder in the order of their names, as int64 [N]; None: those of
    Python's standard library."""
    if path is None:
        library = Path(sysconfig.get_paths()["stdlib"])
        apart = {"site-packages", "dist-packages", "test", "tests", "encodings"}
        files = sorted(file for file in library.rglob("*.py") if not apart & set(file.relative_to(library).parts))
    else:
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    text = bytearray()
    for file in files:
        text += file.read_bytes()
        if len(text) >= LARGEST:
            break
    return torch.tensor(text[:LARGEST], dtype=torch.uint8).long()


def split(text: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Nine tenths to train on; the last tenth is held out, and must be longer than a row."""
    cut = len(text) * 9 // 10
    if len(text) - cut <= length:
        raise SystemExit(f"{len(text):,} bytes are too few: rows of --length {length} need more than {10 * length:,}")
    return text[:cut], text[cut:]


def batches(text: Tensor, length: int, batch: int, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of the text at random places and the same pieces one byte on, both [B, T]; the same ones for one seed."""
    rng = torch.Generator().manual_seed(seed)
    reach = torch.arange(length + 1)
    for _ in range(steps):
        starts = torch.randint(len(text) - length, (batch, 1), generator=rng)
        pieces = text[(starts + reach).to(text.device)]
        yield pieces[:, :-1], pieces[:, 1:]


def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats: scores [B, T, 256], targets [B, T] -> []."""
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())
