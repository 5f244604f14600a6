"""The text around a step in CUDA C++: the sweep over time, in batches of steps whose numbers are fetched ahead."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from importlib import resources

TEXT = """\
// Printed by bppsa: {name}.
typedef {real} real;
{functions}
#define UNITS {units}
#define PARTS {parts}
#define MEET {meet}

extern "C" __global__ void __launch_bounds__({threads}, 1) sweep({parameters}) {{
    SHARED_IMAGE(image, {size});
    const int unit = int(threadIdx.x) / PARTS, part = int(threadIdx.x) % PARTS;
    const long long row = blockIdx.x;
    const int count = lengths ? int(lengths[row]) : steps;
    const long long first = direction > 0 ? 0 : count - 1;
    (void)unit, (void)part, (void)reverse, (void)image;
{before}
    if (count > 0) {{
{entering}
        real ahead[{batch}][{fetched}];
{fetch_first}
        MEET;
        int i = 0;
        for (; i + {batch} <= count; i += {batch}) {{
            real batch[{batch}][{fetched}];
#pragma unroll
            for (int u = 0; u < {batch}; ++u)
#pragma unroll
                for (int k = 0; k < {fetched}; ++k) batch[u][k] = ahead[u][k];
{fetch_next}
#pragma unroll
            for (int u = 0; u < {batch}; ++u) {{
                const long long t = first + (i + u) * direction;
                const real* now = batch[u];
                const int odd = u % 2;
                (void)t, (void)now, (void)odd;
{step}
            }}
        }}
#pragma unroll
        for (int u = 0; u < {batch}; ++u) {{
            if (i + u >= count) break;
            const long long t = first + (i + u) * direction;
            const real* now = ahead[u];
            const int odd = u % 2;
            (void)t, (void)now, (void)odd;
{last_step}
        }}
{leaving}
    }}
{after}
}}
"""


def indented(lines: Iterator[str] | list[str], depth: int) -> str:
    return "\n".join(line if line.startswith("#") else "    " * depth + line for line in lines)


@functools.lru_cache(maxsize=1)
def functions() -> str:
    return (resources.files("bppsa.codegen.gpu.cuda") / "functions.cuh").read_text().replace("#pragma once\n", "")
