"""Print the kernels of one convolution: skeleton/images/conv.h around the tiles of its geometry.

The unit exports `bppsa_forward`, `bppsa_backward` (to the input's gradient) and `bppsa_weights` (the gradient of each
kept weight). Channels, samples and entries are run-time numbers.
"""

from __future__ import annotations

import functools

from bppsa.codegen import isa
from bppsa.codegen.cpu.print_cpp import skeleton
from bppsa.codegen.cpu.print_point import body
from bppsa.codegen.sparse_conv.window import ConvSweep, PixelTile, Window

LANES = {"float": 16, "double": 8}  # samples in a block: a cache line of each
# Pixels in registers at once: a wide machine has 32 registers of a cache line each, others 16 of half a line.
PIXELS = {True: 16, False: 4}
# GCC would write all code of a tile once more for the last turn of the loop around it: half as long again to build.
PRAGMA = '#pragma GCC optimize ("no-split-loops")'
SKELETON = (
    "vec.h",
    "intrinsics.h",
    "arena.h",
    "images/call.h",
    "images/blocked.h",
    "images/conv.h",
    "images/conv_weights.h",
)


@functools.lru_cache(maxsize=256)
def source(window: Window, real: str) -> str:
    """`real` is "float" or "double"."""
    pixels, lanes = pixels_held(), LANES[real]
    return "\n".join(
        [
            PRAGMA,
            f"using real = {real};",
            *map(skeleton, SKELETON),
            "namespace {",
            *sweep("Forward", window.forward, pixels, lanes),
            *sweep("Backward", window.backward, pixels, lanes),
            "}  // namespace",
            skeleton("images/conv_calls.h"),
        ]
    )


def sweep(name: str, sweep: ConvSweep, pixels: int, lanes: int) -> list[str]:
    tiles = sweep.tiles(pixels)
    kinds = {key: i for i, key in enumerate(dict.fromkeys((tile.phase, tile.kind) for tile in tiles))}
    some = {key: next(t for t in tiles if (t.phase, t.kind) == key) for key in kinds}
    most = max(tile.size[0] * tile.size[1] for tile in tiles)
    places = ", ".join(f"{{{source_of(tile, sweep) * lanes}, {target_of(tile, sweep) * lanes}}}" for tile in tiles)
    of_tiles = ", ".join(str(kinds[tile.phase, tile.kind]) for tile in tiles)
    whole = len(tiles) == 1 and sum(span.last - span.first for span in tiles[0].spans) == len(sweep.taps)
    members = [
        f"static constexpr int64_t TILES = {len(tiles)};",
        f"static constexpr bool WHOLE = {str(whole).lower()};  // one tile, and each tap reaches some of it",
        f"static constexpr int PLANES = {planes(most, pixels)}, TAPS = {len(sweep.taps)}, POOL = {sweep.pool};",
        *(line for key, tile in some.items() for line in kind(kinds[key], tile, sweep, lanes)),
        f"static constexpr Place PLACES[] = {{{places}}};",
        f"static constexpr unsigned char KINDS[] = {{{of_tiles}}};",
        "template <class F>",
        *body(
            "static INLINE void tile(int64_t t, F f)",
            body("switch (KINDS[t])", [f"case {i}: return f(Kind{i}(), PLACES[t]);" for i in kinds.values()]),
        ),
    ]
    return [*body(f"struct {name}", members)[:-1], "};"]


def pixels_held() -> int:
    """Pixels that a sweep of this process's kernels holds in registers."""
    return PIXELS[isa.chosen().wide]


def planes(pixels: int, most: int) -> int:
    """Blocks of samples that a tile of so many pixels has registers for."""
    return max(1, min(4, most // pixels))


def kind(index: int, tile: PixelTile, sweep: ConvSweep, lanes: int) -> list[str]:
    (height, width), (down, right) = tile.size, tile.phase.every
    across, pitch = width // sweep.pool, sweep.target[1] // sweep.pool
    row, step = sweep.step[0] * sweep.source[1] * lanes, sweep.step[1] * lanes
    spans = [
        f"to.template span<{width}, {s.rect.y0}, {s.rect.y1}, {s.rect.x0}, {s.rect.x1}, {row}, {step}>"
        f"(runs[{s.first}], runs[{s.last}]);"
        for s in tile.spans
    ]
    members = [
        f"static constexpr int HEIGHT = {height}, WIDTH = {width};",
        "// where the tile's output i is, in reals",
        f"static constexpr int64_t at(int i) {{ return i / {across} * {down * pitch * lanes} + "
        f"i % {across} * {right * lanes}; }}",
        "template <class T>",
        *body("static INLINE void spans([[maybe_unused]] T& to, [[maybe_unused]] const int32_t* runs)", spans),
    ]
    return [*body(f"struct Kind{index}", members)[:-1], "};"]


def source_of(tile: PixelTile, sweep: ConvSweep) -> int:
    return tile.at[0] * sweep.step[0] * sweep.source[1] + tile.at[1] * sweep.step[1]


def target_of(tile: PixelTile, sweep: ConvSweep) -> int:
    y, x = (s + every * at for s, every, at in zip(tile.phase.start, tile.phase.every, tile.at, strict=True))
    return y // sweep.pool * (sweep.target[1] // sweep.pool) + x // sweep.pool
