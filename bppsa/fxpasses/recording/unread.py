"""Leaves out of a recording what it need not compute: what nothing reads, as a norm that is only printed."""

from __future__ import annotations

from bppsa.common.graph import nodes_in
from bppsa.fxpasses.recording.capture import Recording


def erase_unread(recording: Recording) -> None:
    """Erases the ops whose results nothing reads. An error that one of them would raise for some numbers is lost."""
    needed = set(nodes_in(recording.result))
    for node in reversed(recording.graph.nodes):
        if node.op == "call_function" and not node.users and node not in needed:
            recording.graph.erase_node(node)
