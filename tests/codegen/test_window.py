"""The geometry of sweeps: what tiles and spans reach is what a convolution, and its transposed Jacobian, read."""

from __future__ import annotations

from itertools import product

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bppsa.codegen.sparse_conv.window import ConvSweep, Window

sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))
small = st.tuples(st.integers(1, 3), st.integers(1, 3))
pads = st.tuples(st.integers(0, 2), st.integers(0, 2))


def swept(sweep: ConvSweep, source: Tensor, kernel: Tensor, pixels: int) -> Tensor:
    """By the spans of its tiles; every target pixel must belong to just one tile."""
    target = torch.full(sweep.target, torch.nan, dtype=source.dtype)
    for tile in sweep.tiles(pixels):
        sums = torch.zeros(tile.size, dtype=source.dtype)
        for span in tile.spans:
            for tap in sweep.taps[span.first : span.last]:
                for y, x in product(range(span.rect.y0, span.rect.y1), range(span.rect.x0, span.rect.x1)):
                    row = (tile.at[0] + y) * sweep.step[0] + tap.y
                    column = (tile.at[1] + x) * sweep.step[1] + tap.x
                    assert 0 <= row < sweep.source[0]
                    assert 0 <= column < sweep.source[1]
                    sums[y, x] += kernel[tap.row, tap.column] * source[row, column]
        assert not any((a | n) % sweep.pool for a, n in zip(tile.at, tile.size, strict=True))
        for y, x in product(range(tile.size[0]), range(tile.size[1])):
            place = [
                s + e * (a + i) for s, e, a, i in zip(tile.phase.start, tile.phase.every, tile.at, (y, x), strict=True)
            ]
            assert target[place[0], place[1]].isnan()
            target[place[0], place[1]] = sums[y, x]
    assert not target.isnan().any()
    return target


@given(size=sizes, kernel=small, stride=small, padding=pads, dilation=small, pixels=st.sampled_from([1, 4, 16]))
def test_a_sweep_is_a_convolution_and_back(size, kernel, stride, padding, dilation, pixels) -> None:
    window = Window(size, kernel, stride, padding, dilation)
    if min(window.out) < 1:
        return
    torch.manual_seed(0)
    x = torch.randn(size, dtype=torch.float64, requires_grad=True)
    w = torch.randn(kernel, dtype=torch.float64)
    y = F.conv2d(x[None, None], w[None, None], None, stride, padding, dilation)[0, 0]
    g = torch.randn_like(y)
    y.backward(g)
    assert y.shape == window.out
    assert torch.allclose(swept(window.forward, x.detach(), w, pixels), y.detach())
    assert torch.allclose(swept(window.backward, g, w, pixels), x.grad)


@given(size=sizes, kernel=small, padding=pads, pixels=st.sampled_from([4, 16]))
def test_squares_that_are_pooled_lie_within_tiles(size, kernel, padding, pixels) -> None:
    window = Window((2 * size[0] + kernel[0] - 1, 2 * size[1] + kernel[1] - 1), kernel, padding=padding, pool=2)
    torch.manual_seed(0)
    x, w = torch.randn(window.size, dtype=torch.float64), torch.randn(kernel, dtype=torch.float64)
    y = F.conv2d(x[None, None], w[None, None], padding=padding)[0, 0]
    assert torch.allclose(swept(window.forward, x, w, pixels), y)
    assert all(tile.size[0] * tile.size[1] <= pixels for tile in window.forward.tiles(pixels))


def test_taps_that_reach_the_same_pixels_share_a_span() -> None:
    """Away from the borders one loop runs over all entries of a channel."""
    tiles = Window((8, 32), (3, 3), padding=(1, 1)).forward.tiles(16)
    assert {len(tile.spans) for tile in tiles} == {2, 3}  # at the top and the bottom a row of taps is missing
    wide = Window((8, 48), (3, 3), padding=(1, 1)).forward.tiles(16)
    assert min(len(tile.spans) for tile in wide) == 1
