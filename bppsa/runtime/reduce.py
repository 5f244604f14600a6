"""Each chunk of steps as one pair (J^T, b): the reduction kernel's columns, and the pair they make.

Where J^T is made of blocks, one column serves all blocks. Besides the basis and the column of the cotangents that enter
on the way, one of NaN goes along: it comes out wherever anything gets through, so what stays finite is cut off, as by a
reset (`Pair.live`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bppsa.chain import Structure
from bppsa.codegen.ir import Kernel
from bppsa.codegen.reduction import ENTERING, EXPONENTS
from bppsa.runtime.pairs import REAL, Pair, Rows, scaled

NONE = -(1 << 16)  # the exponent of a zero beside others


@dataclass(frozen=True)
class Reduction:
    """A recurrence's kernel of `codegen.reduction`, and what runs it in float64."""

    structure: Structure
    kernel: Kernel
    run: Callable[..., None]

    @property
    def columns(self) -> int:
        """A basis of the blocks, what enters, and NaN."""
        return self.structure.width + 2

    def start(self, rows: int, widths: Sequence[int]) -> dict[str, Tensor]:
        """The RUNNING buffers before the last step, `columns` rows for each of `rows`."""
        g = torch.zeros(rows, self.columns, sum(widths), dtype=REAL)
        for j in range(self.structure.width):
            g[:, j, self.structure.order[:, j]] = 1.0
        g[:, -1] = torch.nan
        entering = torch.zeros(rows, self.columns, 1, dtype=REAL)
        entering[:, -2] = 1.0
        exponents = torch.zeros(rows, self.columns, self.kernel.buffer(EXPONENTS).width, dtype=REAL)
        parts = g.flatten(0, 1).split(list(widths), 1)
        carried = {f"g_carry{i}": part.contiguous() for i, part in enumerate(parts)}
        return carried | {ENTERING: entering.flatten(0, 1), EXPONENTS: exponents.flatten(0, 1)}

    def pair(self, running: dict[str, Tensor], widths: Sequence[int]) -> Pair:
        """[rows, count, ...], from the same buffers after the first step."""
        width, order = self.structure.width, self.structure.order
        columns = torch.cat([running[f"g_carry{i}"] for i in range(len(widths))], 1).unflatten(0, (-1, self.columns))
        blocks = columns[..., order]  # [rows, m + 2, count, m]
        exponents = running[EXPONENTS].int().unflatten(0, (-1, self.columns))[:, :width]
        exponents = exponents[..., order] if exponents.shape[-1] > 1 else exponents.unsqueeze(-1)
        matrix, exponents = (t.permute(0, 2, 3, 1) for t in (blocks[:, :width], exponents))  # [rows, count, m, m]
        largest = torch.where(matrix == 0, NONE, torch.frexp(matrix).exponent + exponents).amax(-1)
        rows = Rows.of(scaled(matrix, exponents - largest.unsqueeze(-1)), largest)
        live = blocks[:, -1].isnan()
        return Pair(rows, Rows.of(blocks[:, -2].unsqueeze(-1)), None if bool(live.all()) else live)
