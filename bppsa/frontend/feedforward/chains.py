"""One call of a feed-forward module: record, cut, decide, and run its backward as a scan over its stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import module as module_hooks
from torch.utils import _pytree as pytree

from bppsa.common.graph import tensors_in
from bppsa.decisions import Decision
from bppsa.errors import ChainError, Reason, Unsupported
from bppsa.frontend.call_log import note
from bppsa.frontend.cell.scanning import OWN_CHAIN
from bppsa.frontend.feedforward.plans import program_of
from bppsa.frontend.ordinary import mixed, unusual_moment
from bppsa.frontend.plan_cache import PlanCache, place
from bppsa.frontend.state import state_of
from bppsa.fxpasses.environment.key import SIMPLE, exact
from bppsa.fxpasses.environment.known import known_environment
from bppsa.fxpasses.network.models import record_model
from bppsa.fxpasses.network.pruning import hooks_of, make_weights, pruned
from bppsa.runtime.chain import autograd
from bppsa.runtime.chain.feedforward import ChainProgram
from bppsa.runtime.sparse import Kernels
from bppsa.sparsity.patterns import engine

MOST = 64  # plans, of calls of different kinds
ForwardFunction = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class ChainPlan:
    """How a module runs for arguments of one kind. places: of each captured tensor among those the module reaches."""

    program: ChainProgram
    places: tuple[int | Tensor, ...]
    result: Any  # of the module, with nodes in the place of tensors
    decision: Decision
    masks: Sequence[Tensor]  # bool, of the pruned weights: what is not kept is no part of the program

    def is_of(self, masks: Sequence[Tensor]) -> bool:
        """Whether they still keep the same; a model that PyTorch runs does not depend on it. By content, as a mask may
        be changed without a trace in its version, through its `data`."""
        pairs = zip(self.masks, map(kept, masks), strict=True)
        return self.decision.strategy == "pytorch" or all(torch.equal(was, now) for was, now in pairs)

    def captured(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensors[at] if isinstance(at, int) else at for at in self.places]


def run(module: nn.Module, forward: ForwardFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `forward(*args, **kwargs)` of `module` returns; NotImplemented where PyTorch is to run the call."""
    path = state_of(module).path
    leaves = pytree.tree_leaves((args, kwargs))
    tensors = tensors_in(leaves)
    found = unusual(module, tensors) or find(module, forward, args, kwargs, leaves, tensors)
    if isinstance(found, Reason):
        if found != OWN_CHAIN:  # the scan tells itself what it did
            note(Decision(path, "chain", "pytorch", str(found)))
        return NotImplemented
    plan, captured = found
    note(plan.decision)
    if plan.decision.strategy == "pytorch":
        return NotImplemented
    outputs = iter(autograd.apply(plan.program, [*tensors, *captured]))
    return pytree.tree_map_only(fx.Node, lambda node: next(outputs), plan.result)


def unusual(module: nn.Module, tensors: Sequence[Tensor]) -> Reason | None:
    """Why a call is left to PyTorch whatever the module."""
    if not torch.is_grad_enabled():
        return Reason("without gradients there is only the forward")
    if reason := unusual_moment():
        return reason
    if reason := mixed(tensors):
        return reason
    if torch.is_autocast_enabled(tensors[0].device.type):
        return Reason("autocast decides dtypes op by op")
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        return Reason("what autograd saves is taken elsewhere (a checkpoint, or saved_tensors_hooks)")
    return hooked(module)


def hooked(module: nn.Module) -> Reason | None:
    """Hooks inside would not run: the module's own run around it."""
    if any((module_hooks._global_forward_hooks, module_hooks._global_forward_pre_hooks)):
        return Reason("there are hooks for all modules", mend="remove them")
    for path, inner in module.named_modules():
        if inner is module:
            continue
        before = inner._forward_pre_hooks
        of_others = len(before) > (len(hooks_of(inner)) if before else 0)
        if of_others or inner._forward_hooks or inner._backward_hooks or inner._backward_pre_hooks:
            return Reason(f"{path} has hooks", mend="remove them, or put them on the module that is compiled")
    return None


_plans: PlanCache[ChainPlan | Reason] = PlanCache(MOST)


def find(
    module: nn.Module,
    forward: ForwardFunction,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Any],
    tensors: Sequence[Tensor],
) -> tuple[ChainPlan, list[Tensor]] | Reason:
    """The plan of the module for arguments like these, made once, and the tensors it closes over."""
    environment, weights = known_environment(module), pruned(module)
    make_weights(weights)
    reached = [*environment.tensors, *(part.weight for part in weights)]
    if not any(t.requires_grad for t in (*tensors, *reached)):
        return Reason("nothing requires a gradient")
    masks = [part.mask for part in weights]
    if not all(isinstance(leaf, (Tensor, *SIMPLE)) for leaf in leaves):  # another may change, and stay equal to itself
        return Reason("an argument that cannot be compared", mend="pass tensors, numbers and strings")
    kinds = tuple((t.shape, t.dtype, t.device, t.requires_grad) if isinstance(t, Tensor) else exact(t) for t in leaves)
    state = state_of(module)
    spec = state.path, state.options, pytree.tree_structure((args, kwargs))
    key = (environment.key, spec, kinds, torch.get_default_dtype())
    plan = _plans.find(
        key,
        lambda: make(module, forward, args, kwargs, reached, masks),
        environment.opaque,
        lambda plan: isinstance(plan, Reason) or plan.is_of(masks),
    )
    if isinstance(plan, Reason):
        return plan
    captured = plan.captured(reached)
    return mixed((*tensors, *captured)) or (plan, captured)


def make(
    module: nn.Module,
    forward: ForwardFunction,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    reached: Sequence[Tensor],
    given: Sequence[Tensor],
) -> ChainPlan | Reason:
    """given: the masks of the last of the tensors reached, which are pruned weights."""
    state = state_of(module)
    path, options = state.path, state.options
    assert options is not None
    engine.install(Kernels())
    masks = list(map(kept, given))
    try:
        recording = record_model(forward, module, args, kwargs)
        places = tuple(place(tensor, reached, "model") for tensor, _ in recording.captured)
        tensors = tensors_in((args, kwargs))
        needs = [tensor.requires_grad for tensor in (*tensors, *(tensor for tensor, _ in recording.captured))]
        first = len(reached) - len(masks)
        of_weights = {
            node: masks[at - first].expand_as(tensor)
            for (tensor, node), at in zip(recording.captured, places, strict=True)
            if isinstance(at, int) and at >= first
        }
        program, decision = program_of(recording, needs, of_weights, options, path)
    except Unsupported as unsupported:
        if options.strict:
            raise ChainError(f"{path or '<model>'}: {unsupported.reason}; strict=True wants a scan") from unsupported
        return unsupported.reason
    return ChainPlan(program, places, recording.result, decision, masks)


def kept(mask: Tensor) -> Tensor:
    return mask != 0
