"""Each chunk of steps as one pair (J^T, b): the reduction kernel's columns, and the pair they make.

Where J^T is made of blocks, one column serves all blocks. Besides the basis and the column of the cotangents that enter
on the way, one of NaN goes along: it comes out wherever anything gets through, so what stays finite is cut off, as by a
reset (`Pair.live`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bppsa.codegen.assembling.reduction import ENTERING, EXPONENTS
from bppsa.codegen.language.ir import Kernel
from bppsa.common.chain import Structure, Weight
from bppsa.runtime.recurrent.after import logical
from bppsa.runtime.recurrent.scan.pairs import REAL, Pair, ScaledRows, scaled

BELOW_ALL = -(1 << 16)  # the exponent of a zero beside others


@dataclass(frozen=True)
class Reduction:
    """A recurrence's kernel of `codegen.lowering.reduction`, and what runs it on elements of `dtype`.

    Its RUNNING buffers are columns of one tensor [rows, columns, pitch]: all carries side by side, then "entering",
    then "exponents".
    """

    structure: Structure
    kernel: Kernel
    widths: Sequence[int]  # of the carries
    dtype: torch.dtype
    run: Callable[..., None]
    diagonals: Sequence[Weight] = ()  # what "diagonal{i}" are the diagonals of
    firsts: dict[torch.device, Tensor] = field(default_factory=dict, compare=False)

    @property
    def columns(self) -> int:
        """A basis of the blocks, what enters, and NaN."""
        return self.structure.width + 2

    @property
    def size(self) -> int:
        return sum(self.widths)

    def start(self, rows: int, device: torch.device) -> Tensor:
        """What stands before the last step, [rows, columns, pitch]."""
        if device not in self.firsts:
            self.firsts[device] = self.first().to(device)
        return self.firsts[device].repeat(rows, 1, 1)  # a copy also of one row

    def first(self) -> Tensor:
        """What stands before the last step for one row."""
        pitch = self.size + 1 + self.kernel.buffer(EXPONENTS).width
        first = torch.zeros(self.columns, pitch, dtype=self.dtype)
        for j in range(self.structure.width):
            first[j, self.structure.order[:, j]] = 1.0
        first[-2, self.size] = 1.0
        first[-1, : self.size] = torch.nan
        return first

    def buffers(self, running: Tensor) -> dict[str, Tensor]:
        """[..., R, n] each, of [..., R, pitch]."""
        pitch, exponents = running.shape[-1], self.size + 1
        names = (*(f"g_carry{i}" for i in range(len(self.widths))), ENTERING, EXPONENTS)
        return dict(zip(names, running.split([*self.widths, 1, pitch - exponents], -1), strict=True))

    def vectors(self, params: Sequence[Tensor]) -> dict[str, Tensor]:
        """The diagonals, [r K] each, of the squares [K, K] that stand side by side in a weight."""
        weights = [logical(params, weight) for weight in self.diagonals]
        squares = [weight.unflatten(1, (-1, weight.shape[0])) for weight in weights]
        return {f"diagonal{i}": s.diagonal(dim1=0, dim2=2).flatten().contiguous() for i, s in enumerate(squares)}

    def pair(self, running: Tensor) -> Pair:
        """[rows, count, ...], of what stands there after the first step."""
        width, order = self.structure.width, self.structure.order
        running = running.to(REAL)
        blocks = running[..., : self.size][..., order]  # [rows, m + 2, count, m]
        exponents = running[:, :width, self.size + 1 :].int()
        exponents = exponents[..., order] if exponents.shape[-1] > 1 else exponents.unsqueeze(-1)
        matrix, exponents = (t.permute(0, 2, 3, 1) for t in (blocks[:, :width], exponents))  # [rows, count, m, m]
        largest = torch.where(matrix == 0, BELOW_ALL, torch.frexp(matrix).exponent + exponents).amax(-1)
        rows = ScaledRows.of(scaled(matrix, exponents - largest.unsqueeze(-1)), largest)
        live = blocks[:, -1].isnan()
        return Pair(rows, ScaledRows.of(blocks[:, -2].unsqueeze(-1)), None if bool(live.all()) else live)
