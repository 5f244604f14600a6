"""The backward of a stage in two: first the gradients of its inputs (B), later those of its weights (W).

Between the two stand the outputs of the ops that read weights. B finds the gradients there; W goes on from each to the
op's own weights, and computes nothing of B again. That holds where each weight is read by one op and each such op gives
one tensor that is still what it was when others read it: otherwise an output's gradient would flow to a weight on two
ways, and W goes through the whole stage.
"""

from __future__ import annotations

from collections import Counter

from torch import fx, nn

from bppsa.common.stages import WHOLE

Reading = tuple[str, tuple[str, ...]]  # an op, by the name of its node, and the names in the stage of what it reads


def readings(module: nn.Module) -> list[Reading]:
    """Ops that read Parameters. Empty where the backward cannot be split at them."""
    if not isinstance(module, fx.GraphModule):
        return []
    found = [(node, weights_of(module, node)) for node in module.graph.nodes]
    found = [(node, names) for node, names in found if names]
    read = Counter(id(module.get_parameter(name)) for _, names in found for name in names)
    unfit = any(gives_several(node) or node.meta.get(WHOLE) for node, _ in found)
    if unfit or any(times > 1 for times in read.values()):
        return []
    return [(node.name, tuple(names)) for node, names in found]


def weights_of(module: fx.GraphModule, node: fx.Node) -> list[str]:
    """The names of the Parameters that the node is given, by itself or in modules, each once."""
    given = [str(arg.target) for arg in node.all_input_nodes if arg.op == "get_attr"]
    if node.op == "call_module":
        given.append(str(node.target))
    found: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if any(name == path or name.startswith(f"{path}.") for path in given):
            found.setdefault(id(parameter), name)
    return list(found.values())


def gives_several(node: fx.Node) -> bool:
    """Whether elements of what it gives are taken, as of what a recurrent layer returns."""
    return any(user.op == "call_function" and getattr(user.target, "__name__", "") == "getitem" for user in node.users)


def show(module: fx.GraphModule, found: list[Reading]) -> None:
    """Has the module return (its outputs, what the ops give)."""
    names = {name for name, _ in found}
    nodes = {node.name: node for node in module.graph.nodes if node.name in names}
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    output.args = ((output.args[0], tuple(nodes[name] for name, _ in found)),)
    module.recompile()
