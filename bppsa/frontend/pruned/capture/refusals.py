"""What TorchDynamo captures wrongly, or takes too long over, is an error while it captures one of our forwards.

Each entry patches a method of Dynamo's within the lock under which it captures: tests/pruned/test_refusals.py notices
when a new torch no longer calls it. Where a torch has no such method, nothing is captured. It must be one that Dynamo
looks up at each call: `wrap_listlike` and its like go into a table for the life of the process.
"""

from __future__ import annotations

import collections
import functools
import inspect
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from operator import attrgetter
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import nn

from bppsa.errors import Unsupported
from bppsa.fxpasses.environment.libraries import NOT_THE_USERS as OWNERS
from bppsa.fxpasses.lines import NOT_THE_USERS
from bppsa.fxpasses.theirs import raise_if_ours, theirs

HANDLE_THEIR_OWN = (*NOT_THE_USERS, inspect.__file__)
MOST_NODES = 2_000  # of a graph: Dynamo takes some 2 ms for each
OF_AUTOGRAD = ("is_leaf", "grad_fn", "retains_grad", "output_nr", "_base")

Reads = Callable[..., str | None]  # the arguments of a method of Dynamo's: what it would do that it does wrongly


def part(module: str, name: str) -> Any:
    """What PyTorch has under this name in one of its internal modules. Raises Unsupported where it has none."""
    try:
        return theirs(attrgetter(name), theirs(import_module, module))
    except (ImportError, AttributeError) as error:
        raise_if_ours(error)
        raise Unsupported(f"torch {torch.__version__} has no {module}.{name}, which capture needs") from error


@contextmanager
def refusing(root: nn.Module) -> Iterator[list[Exception]]:
    """Within, where it captures `root`, Dynamo raises its Unsupported; gives those after which it may have gone on.

    Raises ours where Dynamo is another than we know.
    """
    refused: list[Exception] = []
    unsupported = part("torch._dynamo.exc", "Unsupported")
    with ExitStack() as stack:
        for module, name, method, reads in entries(root):
            cls = part(f"torch._dynamo.{module}", name)
            before = part(f"torch._dynamo.{module}", f"{name}.{method}")
            stack.enter_context(mock.patch.object(cls, method, refusing_call(reads, before, unsupported, refused)))
        yield refused


def refusing_call(
    reads: Reads, before: Callable[..., Any], unsupported: Any, refused: list[Exception]
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        what = reads(*args, **kwargs)
        if what is not None:
            refused.append(unsupported(what))
            raise refused[-1]
        return theirs(before, *args, **kwargs)

    return call


def entries(root: nn.Module) -> list[tuple[str, str, str, Reads]]:
    """Dynamo's module, class and method, and what is refused of its calls."""
    names = partial(names_of_another, root)
    return [
        ("output_graph", "SubgraphTracer", "create_node", many_nodes),
        ("symbolic_convert", "InstructionTranslatorBase", "exception_handler", handled),
        ("variables.misc", "RandomVariable", "__init__", own_generator),
        ("variables.misc", "PythonModuleVariable", "call_obj_hasattr", names_of_module),
        ("variables.functions", "UserFunctionVariable", "call_obj_hasattr", names_of_function),
        ("variables.functions", "FunctoolsPartialVariable", "call_obj_hasattr", names_of_partial),
        ("variables.dicts", "DunderDictVariable", "install_dict_contains_guard", names),
        ("variables.dicts", "DunderDictVariable", "install_dict_keys_match_guard", names),
        ("variables.functions", "WrapperUserFunctionVariable", "__init__", cached),
        ("variables.torch", "BaseTorchVariable", "__init__", cached),
        ("variables.builder", "VariableBuilder", "_wrap", lasting_deque),
        ("variables.dicts", "ConstDictVariable", "install_dict_keys_match_guard", order),
        ("variables.dicts", "ConstDictVariable", "tp_iter_impl", order),
        ("variables.dicts", "ConstDictVariable", "call_method", order_of_rest),
        ("variables.user_defined", "OrderedDictVariable", "call_method", order_of_base),
        ("variables.tensor", "TensorVariable", "var_getattr", of_autograd),
    ]


def many_nodes(tracer: Any, *args: Any, **kwargs: Any) -> str | None:
    """A loop over many steps is written out, step by step."""
    many = len(tracer.graph.nodes) >= MOST_NODES
    return f"a graph of more than {MOST_NODES} ops, as of a loop over many steps" if many else None


def handled(translator: Any, raised: Any) -> str | None:
    """That an attribute or a key was missing is not guarded where an exception tells so."""
    loops = part("torch._dynamo.exc", "ObservedUserStopIteration"), part("torch._dynamo.exc", "ObservedGeneratorExit")
    if translator.f_code.co_filename.startswith(HANDLE_THEIR_OWN) or isinstance(raised, loops):
        return None
    return "an exception within a forward"


def own_generator(*args: Any, **kwargs: Any) -> str:
    """The numbers of a generator of the user's own are those of the first call."""
    return f"{random.Random.__module__}.{random.Random.__name__}"


def names_of_another(root: nn.Module, table: Any, *args: Any) -> str | None:
    """Which names an object's __dict__ has is not guarded; of modules in `root` `names` sees to it."""
    item = table.items.item
    some_object = part("torch._dynamo.variables.user_defined", "UserDefinedObjectVariable")
    if isinstance(item, some_object) and not any(item.value is module for module in root.modules()):
        return "a question about the names in an object's __dict__"
    return None


def names_of_module(module: Any, *args: Any) -> str | None:
    """Nor is which names a Python module or a function has. Of getattr with a default Dynamo goes on."""
    open_ = is_left_open(module.value)
    return f"a question about the names in the module {module.value.__name__}" if open_ else None


def names_of_function(function: Any, *args: Any) -> str | None:
    open_ = is_left_open(function.fn)
    return f"a question about the names in the function {function.fn.__name__}" if open_ else None


def names_of_partial(some_partial: Any, tx: Any, name: str) -> str:
    """Dynamo knows nothing of a partial but its function and arguments."""
    return f"a question about the attribute {name} of a functools.partial"


def cached(variable: Any, function: Any, *args: Any, **kwargs: Any) -> str | None:
    """Dynamo runs what functools.cache wraps, as if nothing had been kept; of a library's own that is no matter."""
    if not isinstance(function, functools._lru_cache_wrapper) or is_library_own(function):
        return None
    return f"a call of {function.__name__}, whose results functools keeps"


def lasting_deque(builder: Any, value: Any) -> str | None:
    """Dynamo knows no maxlen of it, and guards none."""
    return "a collections.deque that outlives the call" if isinstance(value, collections.deque) else None


def order(table: Any, *args: Any) -> str | None:
    """The guards on a dict see its keys in the order in which they were added: not what `move_to_end` has done."""
    lasts = table.source is not None and issubclass(table.user_cls, collections.OrderedDict)
    several = lasts and len(table.original_items) > 1
    return "the order of a collections.OrderedDict that outlives the call" if several else None


def order_of_rest(table: Any, tx: Any, name: str, *args: Any) -> str | None:
    """What these leave is put back in the order of the capture."""
    return order(table) if name in ("pop", "popitem", "clear") else None


def order_of_base(ordered: Any, tx: Any, name: str, *args: Any) -> str | None:
    return order_of_rest(ordered._base_vt, tx, name)


def of_autograd(tensor: Any, tx: Any, name: str) -> str | None:
    """How an input was made is not guarded; and what an op gives may be its input."""
    return f"a question about a tensor's {name}" if name in OF_AUTOGRAD else None


def is_library_own(function: Any) -> bool:
    """Whether a library's module has it under its own name."""
    module = sys.modules.get(function.__module__ or "")
    if module is None or is_left_open(module):
        return False
    found: Any = module
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def is_left_open(owner: Any) -> bool:
    """Whether a Python module or a function may get other names: it is the user's."""
    module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    return str(module).partition(".")[0] not in OWNERS
