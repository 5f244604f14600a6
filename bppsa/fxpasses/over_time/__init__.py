"""A recurrent model cut over time: its graph, its recurrent layers, and where each tensor has its steps."""

from bppsa.fxpasses.over_time.cut import over_time

__all__ = ["over_time"]
