"""Which modules of a clone are looked at: those whose forward, or a function that it names, has a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType, FunctionType

from torch import nn

from bppsa.codegen.cpu import build
from bppsa.frontend.loops.classes import Looped, kinds_of_objects, leading, prepare
from bppsa.frontend.loops.state import LoopState
from bppsa.frontend.rewritten import kind_of, put_before, take_away
from bppsa.frontend.state import TABLES, state_of
from bppsa.fxpasses.reroll.log.lines import loops
from bppsa.fxpasses.reroll.outline.reach import reached, within
from bppsa.fxpasses.reroll.outline.source import definition_of

ONE_BY_ONE = {"enumerate", "zip", "reversed", "list", "tuple", "values", "items", "children"}
FOLDS = {"reduce", "accumulate"}  # functools' and itertools', which loop over time for their caller


def adopt_loops(root: nn.Module) -> None:
    """Give the modules with a loop the class that looks at their calls."""
    if build.available() is not None:
        return
    for path, module in root.named_modules():
        take_away(module, Looped)  # of a compiled model within this one
        if has_loop(module):
            gives_way = not forward_loops(module)
            put_before(module, Looped)
            prepare(type(module))
            state_of(module).loops = LoopState(path, gives_way=gives_way)


def has_loop(module: nn.Module) -> bool:
    """Whether its forward, or another method that a user may call, reaches one."""
    kind = kind_of(module)
    if kind.__module__.partition(".")[0] == "torch":
        return False
    return forward_loops(module) or bool(leading(kind))


def forward_loops(module: nn.Module) -> bool:
    return any(code_loops(each.__code__) for each in functions_of(module))


def may_go_over_time(module: nn.Module) -> bool:
    """Whether it has a loop over something else than its own layers."""
    if not has_loop(module):
        return False
    looping = [each for each in functions_of(module) if code_loops(each.__code__)]
    return not looping or not all(goes_over_layers(each, module) for each in looping)


def functions_of(module: nn.Module) -> Iterator[FunctionType]:
    """The functions of the user's that its forward leads to."""
    if getattr(kind_of(module), "forward", None) is nn.Module.forward:
        return
    kinds = [kind_of(module), *kinds_of_objects(module)]
    functions = [module.forward, *(value for name, value in vars(module).items() if name not in TABLES)]
    for function in functions:
        yield from reached(function, kinds)


def code_loops(code: CodeType) -> bool:
    return any(loops(each) or not FOLDS.isdisjoint(each.co_names) for each in within(code))


def goes_over_layers(function: FunctionType, module: nn.Module) -> bool:
    """Whether all loops of a method go over modules that this one holds."""
    definition = definition_of(function)
    if definition is None or not definition.args.args:
        return False
    own = definition.args.args[0].arg
    found = [node for node in ast.walk(definition) if isinstance(node, (ast.For, ast.While, ast.comprehension))]
    return bool(found) and all(not isinstance(node, ast.While) and are_layers(node.iter, own, module) for node in found)


def are_layers(over: ast.expr, own: str, module: nn.Module) -> bool:
    """Whether an expression gives such modules one after the other. own: what the method calls the module."""
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id in ONE_BY_ONE:
        return bool(over.args) and all(are_layers(each, own, module) for each in over.args)
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and over.func.attr in ONE_BY_ONE:
        return are_layers(over.func.value, own, module)
    if isinstance(over, ast.Subscript):
        return are_layers(over.value, own, module)
    if not (isinstance(over, ast.Attribute) and isinstance(over.value, ast.Name) and over.value.id == own):
        return False
    held = getattr(module, over.attr, None)
    listed = isinstance(held, (list, tuple)) and all(isinstance(each, nn.Module) for each in held)
    return isinstance(held, (nn.ModuleList, nn.ModuleDict, nn.Sequential)) or listed
