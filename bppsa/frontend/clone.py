"""Structural clone of a module tree: new module objects, the same Parameters, buffers and everything else.

`copy.deepcopy` would copy the Parameters, and a shallow copy would leave children, hooks and lists shared with the
model that was given. Here every module reachable from the root is rebuilt, and with it each plain container, so that
neither swapping a class nor running the clone changes the given model. All other objects are shared.
"""

from __future__ import annotations

import copyreg
import functools
import gc
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.jit import ScriptModule
from torch.nn.modules.module import _WrappedHook
from torch.utils.hooks import RemovableHandle

from bppsa.decisions import under
from bppsa.frontend.state import ModuleRecord


def clone(root: nn.Module) -> tuple[nn.Module, dict[str, nn.Module]]:
    """The clone of `root`, and every module of the clone by its path, in the order in which they were met.

    A module used twice stays one module used twice. A registered module has its `named_modules` path; one that hides
    in a plain container has the path a reader would write, `heads[0]`. ScriptModules are compiled and stay shared.
    """
    cloner = _Cloner(root)
    copy = cloner.copy(root, "")
    for finish in cloner.later:
        finish()
    return copy, cloner.found


class _Cloner:
    """One walk over everything reachable; the memo keeps what was shared shared, and lets cycles end."""

    def __init__(self, root: nn.Module) -> None:
        self.names = {id(module): name for name, module in root.named_modules()}
        self.memo: dict[int, Any] = {}
        self.found: dict[str, nn.Module] = {}
        self.later: list[Callable[[], None]] = []  # weak references: set when all that they may point to is there

    def copy(self, value: Any, path: str) -> Any:
        if id(value) in self.memo:
            return self.memo[id(value)]
        rebuild = _REBUILD.get(type(value)) or next((fn for kind, fn in _FAMILIES if isinstance(value, kind)), None)
        return value if rebuild is None else rebuild(self, value, path)

    def remember(self, value: Any, new: Any) -> Any:
        self.memo[id(value)] = new
        return new

    def seen(self, value: Any) -> Any:
        return self.memo.get(id(value), value)


def _module(cloner: _Cloner, module: nn.Module, path: str) -> nn.Module:
    if isinstance(module, ScriptModule):
        return module
    path = cloner.names.get(id(module), path)
    # object.__new__: a class's own __new__ may want arguments, and fx.GraphModule's makes a class for each object
    new: nn.Module = cloner.remember(module, object.__new__(type(module)))
    cloner.found[path] = new
    for name, value in module.__dict__.items():
        if name != "_compiled_call_impl":  # what module.compile() left: it calls the given module
            new.__dict__[name] = cloner.copy(value, path if name == "_modules" else under(path, name))
    for name in copyreg._slotnames(type(module)):  # type: ignore[attr-defined]
        if hasattr(module, name):
            object.__setattr__(new, name, cloner.copy(getattr(module, name), under(path, name)))
    _join_instances(module, new)
    return new


def _join_instances(module: nn.Module, new: nn.Module) -> None:
    """A class that keeps its objects in a list or set, to reset all of them, reaches the clone as well."""
    for kept in (value for base in type(module).__mro__ for value in vars(base).values()):
        if isinstance(kept, (list, set, weakref.WeakSet)) and any(each is module for each in kept):
            kept.append(new) if isinstance(kept, list) else kept.add(new)


def _mapping(cloner: _Cloner, value: Any, path: str) -> Any:
    new = cloner.remember(value, value.copy())
    new.clear()
    for key, item in value.items():
        new[cloner.copy(key, path)] = cloner.copy(item, under(path, str(key)))
    return new


def _mapping_proxy(cloner: _Cloner, value: Any, path: str) -> Any:
    behind = gc.get_referents(value)[0]  # no other way leads to it
    of_class = "__module__" in value
    return value if of_class else cloner.remember(value, types.MappingProxyType(cloner.copy(behind, path)))


def _sequence(cloner: _Cloner, value: Any, path: str) -> Any:
    new = cloner.remember(value, value.copy())
    for i, item in enumerate(value):
        new[i] = cloner.copy(item, f"{path}[{i}]")
    return new


def _set(cloner: _Cloner, value: set[Any], path: str) -> set[Any]:
    new: set[Any] = cloner.remember(value, set())
    new.update(cloner.copy(item, path) for item in value)
    return new


def _tuple(cloner: _Cloner, value: Any, path: str) -> Any:
    items = [cloner.copy(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return cloner.remember(value, value._make(items) if hasattr(value, "_make") else type(value)(items))


def _bound_method(cloner: _Cloner, value: types.MethodType, path: str) -> types.MethodType:
    owner = cloner.copy(value.__self__, path)
    return value if owner is value.__self__ else types.MethodType(value.__func__, owner)


def _partial(cloner: _Cloner, value: functools.partial[Any], path: str) -> functools.partial[Any]:
    function, args = cloner.copy(value.func, path), cloner.copy(value.args, path)
    new: functools.partial[Any] = functools.partial(function, *args, **cloner.copy(value.keywords, path))
    return cloner.remember(value, new)


def _function(cloner: _Cloner, value: types.FunctionType, path: str) -> types.FunctionType:
    """Such as a forward put over a class's: it calls the clone's modules, and reads the clone's lists."""
    closure = value.__closure__ or ()
    cells = [types.CellType() if isinstance(held(cell), _HELD) else cell for cell in closure]
    if all(new is old for new, old in zip(cells, closure, strict=True)):
        return value
    new = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, tuple(cells))
    new.__kwdefaults__ = value.__kwdefaults__
    functools.update_wrapper(new, value)
    cloner.remember(value, new)
    for cell, old in zip(cells, closure, strict=True):
        if cell is not old:
            cell.cell_contents = cloner.copy(held(old), path) if isinstance(held(old), _CALLED) else held(old)
            cloner.later.append(functools.partial(_refill, cloner, cell))
    return new


def _refill(cloner: _Cloner, cell: types.CellType) -> None:
    """A container that is the module's own has a counterpart by then; another stays shared, as its maker reads it."""
    cell.cell_contents = cloner.seen(cell.cell_contents)


def held(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty yet
        return None


def _handle(cloner: _Cloner, value: RemovableHandle, path: str) -> RemovableHandle:
    """What `register_*_hook` returned; it finds the hooks of its module through weak references."""
    new: RemovableHandle = cloner.remember(value, object.__new__(RemovableHandle))
    hooks, number, extra = value.__getstate__()
    cloner.later.append(lambda: new.__setstate__((cloner.seen(hooks), number, tuple(map(cloner.seen, extra)))))
    return new


def _wrapped_hook(cloner: _Cloner, value: _WrappedHook, path: str) -> _WrappedHook:
    """A state_dict hook, which holds its module by a weak reference."""
    new: _WrappedHook = cloner.remember(value, object.__new__(_WrappedHook))
    new.__dict__.update({name: cloner.copy(item, path) for name, item in value.__dict__.items()})
    if value.with_module:
        cloner.later.append(lambda: setattr(new, "module", weakref.ref(cloner.seen(value.module()))))
    return new


def _state(cloner: _Cloner, value: ModuleRecord, path: str) -> ModuleRecord:
    return cloner.remember(value, value.of_clone())


_CALLED = (nn.Module, types.MethodType, types.FunctionType, functools.partial)
_HELD = (*_CALLED, list, dict, set, deque)
Rebuild = Callable[[_Cloner, Any, str], Any]

# By exact type: a subclass of list or dict is the user's own object, and shared like any other object.
_REBUILD: dict[type, Rebuild] = {
    **dict.fromkeys((dict, OrderedDict, defaultdict, Counter), _mapping),
    **dict.fromkeys((list, deque), _sequence),
    set: _set,
    types.MappingProxyType: _mapping_proxy,
    types.MethodType: _bound_method,
    types.FunctionType: _function,
    functools.partial: _partial,
    RemovableHandle: _handle,
    _WrappedHook: _wrapped_hook,
    ModuleRecord: _state,
}
_FAMILIES: tuple[tuple[type, Rebuild], ...] = ((nn.Module, _module), (tuple, _tuple))
