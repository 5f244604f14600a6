"""What TorchDynamo captures wrongly, or takes too long over, is an error while it captures one of our forwards.

Each entry patches a method of Dynamo's within the lock under which it captures: tests/pruned/test_refusals.py notices
when a new torch no longer calls it. Where a torch has no such method, nothing is captured.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from operator import attrgetter
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import fx, nn

from bppsa.errors import Reason, Unsupported
from bppsa.frontend.pruned.capture.names import OWNERS
from bppsa.fxpasses.lines import NOT_THE_USERS
from bppsa.fxpasses.theirs import is_ours, theirs

HANDLE_THEIR_OWN = (*NOT_THE_USERS, inspect.__file__)
MOST_NODES = 2_000  # of a graph: Dynamo takes some 2 ms for each


def part(module: str, name: str) -> Any:
    """What PyTorch has under this name in one of its internal modules. Raises Unsupported where it has none."""
    try:
        return theirs(attrgetter(name), theirs(import_module, module))
    except (ImportError, AttributeError) as error:
        if is_ours(error):
            raise
        raise Unsupported(Reason(f"torch {torch.__version__} has no {module}.{name}, which capture needs")) from error


@contextmanager
def refusing(root: nn.Module) -> Iterator[list[Exception]]:
    """Within, where it captures `root`, Dynamo raises its Unsupported; gives those after which it may have gone on.

    Raises ours where Dynamo is another than we know.
    """
    refused: list[Exception] = []
    exc = import_module("torch._dynamo.exc")
    tracer = part("torch._dynamo.output_graph", "SubgraphTracer")
    translator = part("torch._dynamo.symbolic_convert", "InstructionTranslatorBase")
    names = part("torch._dynamo.variables.dicts", "DunderDictVariable")
    generator = part("torch._dynamo.variables.misc", "RandomVariable")
    python_module = part("torch._dynamo.variables.misc", "PythonModuleVariable")
    function = part("torch._dynamo.variables.functions", "UserFunctionVariable")
    partials = part("torch._dynamo.variables.functions", "FunctoolsPartialVariable")
    some_object = part("torch._dynamo.variables.user_defined", "UserDefinedObjectVariable")
    loops = part("torch._dynamo.exc", "ObservedUserStopIteration"), part("torch._dynamo.exc", "ObservedGeneratorExit")

    def create_node(self: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A loop over many steps is written out, step by step."""
        if len(self.graph.nodes) >= MOST_NODES:
            raise exc.Unsupported(f"a graph of more than {MOST_NODES} ops, as of a loop over many steps")
        return theirs(before[tracer, "create_node"], self, *args, **kwargs)

    def exception_handler(self: Any, raised: Any) -> None:
        """That an attribute or a key was missing is not guarded where an exception tells so."""
        if not self.f_code.co_filename.startswith(HANDLE_THEIR_OWN) and not isinstance(raised, loops):
            raise exc.Unsupported("an exception within a forward")
        theirs(before[translator, "exception_handler"], self, raised)

    def names_guard(self: Any, *args: Any) -> None:
        """Which names an object's __dict__ has is not guarded; of modules in `root` `names` sees to it."""
        item = self.items.item
        if isinstance(item, some_object) and not any(item.value is module for module in root.modules()):
            raise exc.Unsupported("a question about the names in an object's __dict__")

    def asks(cls: type, value: str) -> Callable[..., Any]:
        def asks(self: Any, tx: Any, name: str) -> Any:
            """Nor is which names a Python module or a function has. Of getattr with a default Dynamo goes on."""
            owner = getattr(self, value)
            if is_left_open(owner):
                kind = "module" if isinstance(owner, ModuleType) else "function"
                refused.append(exc.Unsupported(f"a question about the names in the {kind} {owner.__name__}"))
                raise refused[-1]
            return theirs(before[cls, "call_obj_hasattr"], self, tx, name)

        return asks

    def asks_partial(self: Any, tx: Any, name: str) -> Any:
        """Of one Dynamo knows its function and arguments alone."""
        refused.append(exc.Unsupported(f"a question about the attribute {name} of a functools.partial"))
        raise refused[-1]

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        """The numbers of a generator of the user's own are those of the first call."""
        raise exc.Unsupported(f"{random.Random.__module__}.{random.Random.__name__}")

    patches: dict[tuple[type, str], Callable[..., Any]] = {
        (tracer, "create_node"): create_node,
        (translator, "exception_handler"): exception_handler,
        (generator, "__init__"): init,
        (python_module, "call_obj_hasattr"): asks(python_module, "value"),
        (function, "call_obj_hasattr"): asks(function, "fn"),
        (partials, "call_obj_hasattr"): asks_partial,
        (names, "install_dict_contains_guard"): names_guard,
        (names, "install_dict_keys_match_guard"): names_guard,
    }
    before = {(cls, name): part(cls.__module__, f"{cls.__qualname__}.{name}") for cls, name in patches}
    with ExitStack() as stack:
        for (cls, name), replacement in patches.items():
            stack.enter_context(mock.patch.object(cls, name, replacement))
        yield refused


def is_left_open(owner: Any) -> bool:
    """Whether a Python module or a function may get other names: it is the user's."""
    module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    return str(module).partition(".")[0] not in OWNERS
