"""Which worker does which part of a training step, and when. Nothing is here yet but the border of the room.

Belongs here: schedules as functions `w(s, b, d)`, `n(s, b, d)` and `pred` over jobs, their simulation and metrics, and
programs as lists of actions for each worker. Pure Python: the standard library, networkx and `bppsa.errors`.

Does not belong here: torch, in any form. `import bppsa.schedule` loads none, so a schedule can be studied anywhere.
"""
