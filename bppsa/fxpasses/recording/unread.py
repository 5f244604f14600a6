"""What is computed and read by nothing, as a norm that is only printed, is no part of a recording."""

from __future__ import annotations

from torch import fx
from torch.utils._pytree import tree_leaves

from bppsa.fxpasses.recording.capture import Recording


def erase_unread(recording: Recording) -> None:
    """Erases the ops whose results nothing reads. An error that one of them would raise for some numbers is lost."""
    needed = {node for node in tree_leaves(recording.result) if isinstance(node, fx.Node)}
    for node in reversed(recording.graph.nodes):
        if node.op == "call_function" and not node.users and node not in needed:
            recording.graph.erase_node(node)
