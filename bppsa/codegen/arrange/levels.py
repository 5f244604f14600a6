"""Cut a group's expressions into loops over the rows, so that a row's long chain of operations does not stall the next.

A processor overlaps the rows whose operations fit its window of a few hundred. A tanh after a sigmoid makes the chain
twice as long but the window no wider; in two loops, with the sigmoids kept in between, many rows overlap in each.
"""

from __future__ import annotations

from collections.abc import Sequence

from bppsa.codegen.language.expr import SPECIAL, Expr, Op

LONG = SPECIAL | {Op.EXP, Op.LOG, Op.TANH, Op.SIGMOID, Op.ERF, Op.SIN, Op.COS, Op.ATAN, Op.FMOD}


def levels(nodes: Sequence[Expr]) -> dict[Expr, int]:
    """The loop in which each node is computed: as late as can be, with at most one LONG operation on a path in a loop.

    `nodes`: operands before users. Stores happen in the last loop.
    """
    depth: dict[Expr, int] = {}  # LONG operations on the longest path up to and with this node
    for node in nodes:
        depth[node] = max((depth[a] for a in node.args), default=0) + (node.op in LONG)
    last = max(max(depth.values(), default=0) - 1, 0)
    level = dict.fromkeys(nodes, last)
    room = dict.fromkeys(nodes, last)  # the latest loop for a LONG operation here: before that of a LONG user
    for node in reversed(nodes):
        if node.op in LONG:
            level[node] = room[node]
            room[node] -= 1
        for arg in node.args:
            level[arg] = min(level[arg], level[node])
            room[arg] = min(room[arg], room[node])
    return level
