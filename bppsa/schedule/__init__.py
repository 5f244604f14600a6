"""Which worker does which part of a training step, and when.

A schedule is the functions w(s, b, d) -> (owner, worker), n(s, b, d) -> priority and pred(s, b, d) -> jobs, over stages
s, micro-batches b and directions d. `simulate` gives its timeline, memory and traffic; the zoo has the schedules of the
literature. Pure Python: the standard library and `bppsa.errors`, no torch in any form, so that a schedule can be
studied anywhere.

    >>> from bppsa.schedule import lpp, simulate
    >>> simulate(lpp(G=4), S=8, B=8).makespan
    18
"""

from bppsa.schedule.bounds import bound
from bppsa.schedule.compare import Comparison, compare
from bppsa.schedule.job_graph.spec import DIRECTIONS, SPLIT, B, F, Job, Recipe, Schedule, W
from bppsa.schedule.recompute import Recompute
from bppsa.schedule.search import Search, search
from bppsa.schedule.simulator import simulate
from bppsa.schedule.tables import table1
from bppsa.schedule.timeline import Timeline
from bppsa.schedule.torch_format import TorchSchedule, from_torch, to_torch
from bppsa.schedule.units import Units
from bppsa.schedule.zoo import (
    blelloch,
    breadth_first,
    ddp,
    depth_first,
    fsdp,
    fslpp,
    gpipe,
    interleaved,
    lpp,
    naive,
    one_f_one_b,
    pipedream,
    v_schedule,
    wavelet_dp,
    wavelet_mp,
    zero_bubble,
)

__all__ = [
    "DIRECTIONS",
    "SPLIT",
    "B",
    "Comparison",
    "F",
    "Job",
    "Recipe",
    "Recompute",
    "Schedule",
    "Search",
    "Timeline",
    "TorchSchedule",
    "Units",
    "W",
    "blelloch",
    "bound",
    "breadth_first",
    "compare",
    "ddp",
    "depth_first",
    "from_torch",
    "fsdp",
    "fslpp",
    "gpipe",
    "interleaved",
    "lpp",
    "naive",
    "one_f_one_b",
    "pipedream",
    "search",
    "simulate",
    "table1",
    "to_torch",
    "v_schedule",
    "wavelet_dp",
    "wavelet_mp",
    "zero_bubble",
]
