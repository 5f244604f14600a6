"""One call of nn.RNN, nn.GRU or nn.LSTM, its tensors laid out with time first, by generated sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from bppsa.common.recent import remember
from bppsa.decisions import Decision, Report, warn_without_kernels
from bppsa.errors import BuildError, first_line
from bppsa.frontend.call_log import explaining, note
from bppsa.frontend.ordinary import is_ordinary_moment
from bppsa.frontend.planning.forward import open_forward, solver_of, told
from bppsa.frontend.planning.rates import machine_of
from bppsa.frontend.planning.sweeps import UNSCANNED, compile_recurrence, with_structure
from bppsa.frontend.rnn.by_pytorch import by_pytorch, in_one, layer_by_pytorch
from bppsa.frontend.rnn.calls import is_sound
from bppsa.frontend.rnn.spec import Spec
from bppsa.frontend.state import show, state_of
from bppsa.plan.choose import Numbers, PlannedCall, choose, multiply_inline
from bppsa.plan.cost import Machine
from bppsa.plan.forward import LIBRARY, SEQUENTIAL, Forward
from bppsa.plan.strategy import AUTO, Strategy, strategy_of
from bppsa.plan.work import Size
from bppsa.runtime.chain.autograd import random_state, set_random_state
from bppsa.runtime.recurrent import autograd
from bppsa.runtime.recurrent.autograd import RecurrenceCall
from bppsa.runtime.recurrent.library import Library
from bppsa.runtime.recurrent.newton import Solver
from bppsa.runtime.recurrent.programs.stack import StackPrograms, may_be_programs
from bppsa.runtime.recurrent.scan.extent import Extent, Given
from bppsa.runtime.recurrent.stack import Stack
from bppsa.runtime.recurrent.sweep import Sweep

States = tuple[Tensor, ...]
FEW = 32  # steps; PyTorch is never the faster one by its start beyond, on a CPU
BY_LIBRARY = str(LIBRARY)
MOST_SIZES = 1024  # sizes whose decisions a module keeps at hand


def run(
    module: Any, x: Tensor, batch_sizes: Tensor | None, states: States | None, weights: Sequence[Tensor]
) -> tuple[Tensor, States] | Any:
    """module: a rewritten one; x: [T, B, I], or the data of a packed sequence, [sum of batch_sizes, I]; states: [L * D,
    B, n] each, or None for zeros. Returns y and the final states in the same form; NotImplemented where PyTorch is to
    run the call."""
    spec, state, training = Spec.of(module), state_of(module), torch.is_grad_enabled()
    asked, memory, drops = state.forward, state.memory, module.training and module.dropout > 0
    ahead, machine = open_forward(asked, memory), machine_of(x.device.type)
    key = (x.shape[0], x.shape[1], x.dtype, x.device, training, module.training, explaining())
    usual = batch_sizes is None and not drops
    settled = state.settled.get(key) if usual else None
    if settled is not None and settled.holds(spec, ahead, machine):
        return by_settled(module, settled, x, states, weights)
    steps, rows = x.shape[:2] if batch_sizes is None else (len(batch_sizes), int(batch_sizes[0]))
    how = state.strategy, spec, steps, rows, x.dtype, training, x.device.type, ahead, explaining()
    decision = decide(state.path, *how, library=is_cudnns(spec, x))
    if decision.strategy == "pytorch":
        noted(module, decision)
        return NotImplemented
    solver = solver_of(decision.forward, memory)
    undrawn = random_state([x]) if drops else None
    try:
        strategy, library = strategy_of(decision.strategy), decision.forward == BY_LIBRARY
        call, result = by_sweeps(module, x, batch_sizes, states, weights, strategy, solver, library=library)
    except BuildError as error:
        if undrawn is not None:
            set_random_state(undrawn)  # PyTorch draws the masks again
        return without_kernels(module, decision, error)
    noted(module, told(decision, memory, solver, rested=ahead is not asked))
    if usual and solver is None and ahead is asked and x.dtype == dtype_of(x):
        remember(state.settled, key, Settled(spec, ahead, machine, decision, call), MOST_SIZES)
    return result


def own(x: Tensor) -> Tensor:
    """What a backward may read, though the caller changes x: PyTorch copies what it has to lay out otherwise."""
    return x.contiguous() if torch.is_grad_enabled() else x


class Settled(NamedTuple):
    """All that there is to decide for a call of one size, where nothing changes from one call to the next."""

    spec: Spec
    ahead: Forward
    machine: Machine
    decision: Decision
    call: RecurrenceCall

    def holds(self, spec: Spec, ahead: Forward, machine: Machine) -> bool:
        """machine: that calls are predicted with now; another one where it was measured since."""
        return self.spec is spec and self.ahead is ahead and self.machine is machine


def by_settled(
    module: Any, settled: Settled, x: Tensor, states: States | None, weights: Sequence[Tensor]
) -> tuple[Tensor, States] | Any:
    """What `run` does once another call of the size has been made."""
    try:
        y, *finals = autograd.apply(settled.call, [own(x), *(states or settled.spec.zeros), *weights])
    except BuildError as error:
        return without_kernels(module, settled.decision, error)
    noted(module, settled.decision)
    return y, tuple(finals)


def without_kernels(module: Any, decision: Decision, error: BuildError) -> Any:
    warn_without_kernels(error)
    noted(module, replace(decision, strategy="pytorch", forward="sequential", reason=first_line(error)))
    return NotImplemented


def dtype_of(x: Tensor) -> torch.dtype:
    """The dtype in which it is computed: half precision is rounded once, at the end."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def is_left_alone(module: nn.RNNBase, input: Any) -> bool:
    """Whether PyTorch is to run the call, for its few steps or on a GPU: asked before anything else, so that it costs
    such a call next to nothing. Of a module whose weights are computed it is asked for any size, as reading them is a
    step of a spectral norm, or draws random numbers: only one of us may."""
    computed = "parametrizations" in module._modules
    sizes = sizes_of(module, input, packed=computed)
    if sizes is None:
        return False
    steps, rows = sizes
    state = state_of(module)
    ahead, decided = state.forward, state.decided
    asked = state.strategy.name != "auto" or ahead.name == "newton"
    if (steps > FEW and not input.is_cuda and not computed) or asked or explaining():
        return False
    x = input if type(input) is Tensor else input.data
    device = "cuda" if x.is_cuda else "cpu"
    key, machine = (steps, rows, x.dtype, torch.is_grad_enabled(), device), machine_of(device)
    predicted, known = decided.get(key, (None, None))
    if known is None or predicted is not machine:
        if not is_ordinary_moment():  # what is recorded for a decision would be transformed or watched too
            return False
        spec = Spec.of(module)
        known = decide(state.path, AUTO, spec, *key, ahead, library=is_cudnns(spec, x))
        remember(decided, key, (machine, known), MOST_SIZES)
    if known.strategy != "pytorch":
        return False
    noted(module, known)
    return True


def sizes_of(module: nn.RNNBase, input: Any, *, packed: bool) -> tuple[int, int] | None:
    """T and B; None of what is neither a tensor of 2 or 3 dimensions nor, where these count, a packed sequence."""
    if type(input) is Tensor and input.dim() in (2, 3):
        steps, rows = (input.size(0), 1) if input.dim() == 2 else input.shape[:2]
        return (rows, steps) if input.dim() == 3 and module.batch_first else (steps, rows)
    if packed and isinstance(input, PackedSequence) and is_sound(input):
        return len(input.batch_sizes), int(input.batch_sizes[0])
    return None


def is_cudnns(spec: Spec, x: Tensor) -> bool:
    """Whether cuDNN runs the whole forward where PyTorch does."""
    return x.is_cuda and torch.backends.cudnn.is_acceptable(x) and spec.fits_in_one


def noted(module: nn.RNNBase, decision: Decision) -> None:
    note(decision)
    report = state_of(module).report  # of a module that is the whole model
    if report is not None and (not report.taken or report.taken[0] is not decision):
        show(module, Report((decision,)))


def by_sweeps(
    module: nn.RNNBase,
    x: Tensor,
    batch_sizes: Tensor | None,
    states: States | None,
    weights: Sequence[Tensor],
    strategy: Strategy,
    solver: Solver | None,
    *,
    library: bool,
) -> tuple[RecurrenceCall, tuple[Tensor, States]]:
    """What `run` does once it is decided: in a dtype that has kernels, packed sequences padded, and back again."""
    spec, dtype = Spec.of(module), dtype_of(x)
    masks = dropout_masks(module, x)
    lengths = None
    if batch_sizes is None:
        extent = Extent(x.shape[0], x.shape[1], device=x.device)
    else:
        batch_sizes = batch_sizes.clone()  # the backward reads them, and the caller's may change meanwhile
        (source, *masks), lengths = pad([x, *masks], batch_sizes)
        extent = Extent(len(batch_sizes), len(lengths), active=batch_sizes, lengths=lengths, device=x.device)
    inline = multiply_inline(extent.rows, extent.device.type)
    tensors = [own(x) if lengths is None else source, *(states or spec.zeros), *weights, *masks]
    tensors = [t if t is None or t.dtype == dtype else t.to(dtype) for t in tensors]
    how = spec, dtype, extent, bool(masks), strategy, solver, inline, module.training, library
    call = known_call(*how) if solver is None and lengths is None else stack(*how)
    y, *finals = autograd.apply(call, tensors)
    if lengths is not None:
        y = torch._VF._pack_padded_sequence(y, lengths, False)[0]
    if y.dtype != x.dtype:
        y, finals = y.to(x.dtype), [final.to(x.dtype) for final in finals]
    return call, (y, tuple(finals))


@lru_cache(maxsize=4096)
def decide(
    path: str,
    strategy: Strategy,
    spec: Spec,
    steps: int,
    rows: int,
    dtype: torch.dtype,
    training: bool,
    device: str,
    ahead: Forward = SEQUENTIAL,
    explained: bool = False,
    library: bool = False,
) -> Decision:
    """ahead: the forward that is asked for. library: whether PyTorch has a kernel for a whole forward."""
    numbers: Numbers = {"T": steps, "B": rows, "H": spec.hidden}
    call = PlannedCall(spec.counts(dtype, rows, device), Size(steps, rows), training, machine_of(device), library)
    choice = choose(strategy, call, numbers, ahead=ahead, explained=explained)
    decision = Decision(path, spec.mode.lower(), choice.strategy, choice.reason, choice.numbers, *choice.told)
    # a call that is left alone records no cell: it may be watched
    return with_structure(decision, spec.recurrence) if explained or choice.strategy not in UNSCANNED else decision


def dropout_masks(module: nn.RNNBase, x: Tensor) -> list[Tensor]:
    """Drawn as PyTorch draws them between layers, so that a seeded run gives the same numbers."""
    if not (module.training and module.dropout > 0):
        return []
    width = (module.proj_size or module.hidden_size) * (1 + module.bidirectional)
    return [
        functional.dropout(x.new_ones((*x.shape[:-1], width)), module.dropout) for _ in range(module.num_layers - 1)
    ]


def pad(packed: Sequence[Tensor], batch_sizes: Tensor) -> tuple[list[Tensor], Tensor]:
    """[sum of batch_sizes, n] each -> [T, B, n] each, and the length of every row, int64 [B]."""
    padded = [torch._VF._pad_packed_sequence(data, batch_sizes, False, 0.0, len(batch_sizes)) for data in packed]
    return [data for data, _ in padded], padded[0][1]


def stack(
    spec: Spec,
    dtype: torch.dtype,
    extent: Extent,
    masked: bool,
    strategy: Strategy,
    solver: Solver | None,
    inline: bool,
    training: bool = True,
    library: bool = False,
) -> Stack:
    pytorch = partial(by_pytorch, spec, training, extent)
    sweeps = sweeps_of(spec, dtype, inline, extent.device.type)
    ahead = library_of(spec, dtype, extent, inline) if library else None
    return Stack(sweeps, spec.states, spec.weights, masked, extent, strategy, pytorch, solver, ahead)


@lru_cache(maxsize=1024)
def known_call(spec: Spec, *how: Any) -> RecurrenceCall:
    """The call of a module that its sizes describe: without lengths or a solver."""
    call, weights = stack(spec, *how), spec.shapes.weights
    return StackPrograms(call, weights) if may_be_programs(call, weights) else call


@lru_cache(maxsize=1024)
def sweeps_of(spec: Spec, dtype: torch.dtype, inline: bool, device: str) -> tuple[tuple[Sweep, ...], ...]:
    return tuple(
        (compile_recurrence(recurrence, dtype, inline, device),) * spec.directions for recurrence in spec.recurrences
    )


@lru_cache(maxsize=1024)
def hidden_of(spec: Spec, dtype: torch.dtype, inline: bool, device: str) -> tuple[Sweep | None, ...]:
    return tuple(
        None if hidden is None else compile_recurrence(hidden, dtype, inline, device)
        for hidden in spec.hidden_recurrences
    )


def sweep_of(module: nn.RNNBase, layer: int, x: Tensor) -> Sweep:
    """The sweep of one layer of a module in one direction. x: [T, B, I]"""
    device = x.device.type
    return sweeps_of(Spec.of(module), dtype_of(x), multiply_inline(x.shape[1], device), device)[layer][0]


def library_of(spec: Spec, dtype: torch.dtype, extent: Extent, inline: bool) -> Library:
    def run(x: Tensor, states: Given, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """Without the memory that a backward of its own would read."""
        return layer_by_pytorch(spec, False, extent, x, states, in_one(weights) if spec.layers > 1 else weights)

    return Library(run, hidden_of(spec, dtype, inline, extent.device.type))
