"""Figure 5: transposed Jacobians of a convolution, ReLU and max-pooling, and of what follows each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure as Picture
from matplotlib.patches import Patch
from torch import Tensor, nn

import bppsa
from bppsa.sparsity import TransposedJacobian
from figures import drawing
from figures.figure import Figure, Options, Record
from figures.paper import beside

CHANNELS, SIZE = 2, 8
KINDS = {"guaranteed zero": "indigo", "possible zero": "turquoise", "non-zero": "yellow"}  # the paper's colours


@dataclass(frozen=True)
class Panel:
    """J^T of layers `first` to `last` of the network, at what the layers before make of the image."""

    name: str
    first: int
    last: int


PANELS = (
    Panel("convolution 3 x 3", 0, 1),
    Panel("ReLU", 1, 2),
    Panel("max-pooling 2 x 2", 2, 3),
    Panel("convolution, ReLU", 0, 2),
    Panel("convolution, ReLU, max-pooling", 0, 3),
    Panel("convolution, ReLU, max-pooling, convolution", 0, 4),
)


def network() -> tuple[nn.Sequential, Tensor]:
    """Four layers and an image [1, C, 8, 8], every time the same."""
    torch.manual_seed(0)
    wide = 2 * CHANNELS
    first, second = nn.Conv2d(CHANNELS, wide, 3, padding=1), nn.Conv2d(wide, wide, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second), torch.randn(1, CHANNELS, SIZE, SIZE)


def operators() -> dict[Panel, TransposedJacobian]:
    layers, image = network()
    return {
        panel: bppsa.transposed_jacobian(layers[panel.first : panel.last], layers[: panel.first](image).detach())
        for panel in PANELS
    }


def kinds(jt: TransposedJacobian) -> Tensor:
    """For each entry the place in KINDS, [N, M]."""
    return jt.pattern.mask().long() + (jt.dense() != 0)


def measure(options: Options) -> Record:
    panels = {panel.name: counted(jt) for panel, jt in operators().items()}
    return {
        "data": f"counted; a random image of {CHANNELS} x {SIZE} x {SIZE}",
        "beside": [beside(f"{name}: J^T", "", text(counts)) for name, counts in panels.items()],
        "panels": panels,
    }


def counted(jt: TransposedJacobian) -> Record:
    return {"shape": list(jt.shape), "possible": jt.nnz, "non_zero": int((jt.dense() != 0).sum())}


def text(counts: Record) -> str:
    n, m = counts["shape"]
    possible, rest = counts["possible"], counts["possible"] - counts["non_zero"]
    return f"{n} x {m}, guaranteed zeros {1 - possible / (n * m):.2%}; of {possible} others {rest} are zero here"


def draw(record: Record) -> Picture:
    """The matrices are made again: the record only counts them."""
    picture, axes = drawing.panels(2, 3)
    colours = ListedColormap(list(KINDS.values()))
    for of, (panel, jt) in zip(axes, operators().items(), strict=True):
        of.imshow(kinds(jt).numpy(), cmap=colours, vmin=0, vmax=len(KINDS) - 1, interpolation="nearest", aspect="auto")
        of.grid(visible=False)
        of.set_title(panel.name, fontsize=7)
    axes[0].set(xlabel="output", ylabel="input")
    axes[0].legend(handles=[Patch(color=colour, label=kind) for kind, colour in KINDS.items()], fontsize=6)
    return picture


FIGURE = Figure("Figure 5: which entries of transposed Jacobians are zero, and for what reason", measure, draw, True)
