"""The schedules of the literature, each as its w(s, b, d), its order n(s, b, d) and its extra edges pred(s, b, d).

Every entry returns a `Recipe`; `simulate`, `compare`, `search` and `bppsa.compile` take it as it is, and
`.build(S, B, W)` gives the bound `Schedule`. Where W is left out it is what the schedule needs. B < S is allowed.
"U" is the paper Unifying Parallelization Schemes to Train Deep Nets.
"""

from bppsa.schedule.zoo.looped import breadth_first, depth_first, fslpp, lpp
from bppsa.schedule.zoo.pipelines import (
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    pipedream,
    v_schedule,
    zero_bubble,
)
from bppsa.schedule.zoo.replicas import ddp, fsdp, wavelet_dp, wavelet_mp
from bppsa.schedule.zoo.time_chunks import blelloch

__all__ = [
    "blelloch",
    "breadth_first",
    "ddp",
    "depth_first",
    "fsdp",
    "fslpp",
    "gpipe",
    "interleaved",
    "lpp",
    "naive",
    "one_f_one_b",
    "pipedream",
    "v_schedule",
    "wavelet_dp",
    "wavelet_mp",
    "zero_bubble",
]
