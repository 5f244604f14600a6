"""A recurrent model cut over time: its graph, its recurrent layers, and where each tensor has its steps.

    examples   which axes of the arguments may be time and rows, and the short example that goes with them
    layers     the calls of recurrent modules in the graph, as layers
    trial      a copy of the graph run on drawn values: whole, and on parts that follow each other
    parts      along which axis a value is its parts side by side
    verdict    that steps meet nowhere but in recurrent layers, or the op at which they do
    cut        all of this, in this order

Belongs here: whether time can be cut, and what then lies along it. Does not belong here: how a chunk runs
(`bppsa.runtime.worker.over_time`), and when (`bppsa.schedule`).
"""

from bppsa.fxpasses.over_time.cut import over_time

__all__ = ["over_time"]
