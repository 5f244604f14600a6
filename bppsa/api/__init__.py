"""What a user calls: `compile`, `scan`, `explain`, `report`, `measure`, Jacobians. `bppsa/__init__.py` is its face.

Does not belong here: how a call runs (`bppsa.frontend`, `bppsa.distributed`).
"""
