"""The four products of `bppsa.compile`: each makes a compiled model of a model and of its own record of options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from bppsa.api.exact_classes import class_question
from bppsa.api.options import InductorOptions, KernelOptions, ProductOptions, ScanOptions, ScheduleOptions
from bppsa.decisions import Decision, Report
from bppsa.distributed.start import check_stages, counterparts, scheduled
from bppsa.distributed.steps.training import Settings
from bppsa.errors import Reason
from bppsa.frontend import call_log
from bppsa.frontend.clone import clone
from bppsa.frontend.feedforward import classes
from bppsa.frontend.loops.adopt import adopt_loops, may_go_over_time
from bppsa.frontend.loops.classes import Looped
from bppsa.frontend.pruned.adopt import adopt_pruned
from bppsa.frontend.pruned.classes import Pruned
from bppsa.frontend.pruned.masking.masked import give_masks
from bppsa.frontend.pruned.masking.masks import given_masks
from bppsa.frontend.rnn.classes import Recurrent, rewrite
from bppsa.frontend.state import show, state_of
from bppsa.plan.chain_choice import may_gain
from bppsa.plan.chain_options import ChainOptions

STAGES = 8
NOT_YET = "no call has run yet; this is what was found before one (scans appear once they run)"


def compiled(model: nn.Module, options: ProductOptions) -> nn.Module:
    """The product that the options are of; nothing is rewritten in a model whose forward would tell by the classes."""
    fast = PRODUCTS[type(options)](model, options)
    asked = class_question(fast)
    return fast if asked is None else as_it_is(model, options, asked)


def as_it_is(model: nn.Module, options: Any, asked: Reason) -> nn.Module:
    """The model with no class changed but those of layers that were given a mask. Inductor takes it as any other."""
    fast, _ = clone(model)
    if not isinstance(options, ScanOptions):
        give_masks(fast, given_masks(model, options.masks, options.sparse))
    reporting(fast, options, (left(asked),), "")
    return by_inductor(fast, options) if isinstance(options, InductorOptions) else fast


def left(asked: Reason) -> Decision:
    return Decision("", "model", "pytorch", str(asked))


def with_kernels(model: nn.Module, options: KernelOptions) -> nn.Module:
    """What is not rewritten runs as it is."""
    fast, by_path = masked(model, options)
    pruned = adopt_pruned(fast, lambda: bool(by_path) or any(map(may_go_over_time, fast.modules())))
    if options.loops and not pruned:
        adopt_loops(fast)
    by_path |= pruned or chains(fast, ChainOptions(options.strategy))
    return reporting(fast, options, tuple(by_path.values()), NOT_YET)


def masked(model: nn.Module, options: KernelOptions | InductorOptions) -> tuple[nn.Module, dict[str, Decision]]:
    """A copy with rewritten recurrences and masks, and what is decided of the recurrences."""
    given = given_masks(model, options.masks, options.sparse)
    fast, by_path = rewrite(model, options.strategy, options.forward)
    give_masks(fast, given)
    return fast, by_path


def with_scan(model: nn.Module, options: ScanOptions) -> nn.Module:
    """The backward of feed-forward parts is a scan, which is given pruned layers as they are."""
    fast, by_path = rewrite(model, options.strategy, options.forward)
    if options.loops:
        adopt_loops(fast)
    by_path |= chains(fast, ChainOptions(options.strategy, options.strict, options.budget))
    return reporting(fast, options, tuple(by_path.values()), NOT_YET)


def with_inductor(model: nn.Module, options: InductorOptions) -> nn.Module:
    """What is not rewritten goes to Inductor, which is given pruned layers and chains as they are."""
    fast, by_path = masked(model, options)
    runs = "sequential" if options.strategy.name == "auto" else str(options.strategy)
    reason = "one op of the graph, where the call can be traced"  # for all calls, as it is decided in the trace
    found = (replace(d, strategy=runs, reason=reason) if d.strategy == "waiting" else d for d in by_path.values())
    return by_inductor(reporting(fast, options, tuple(found), ""), options)


def by_inductor(fast: nn.Module, options: InductorOptions) -> nn.Module:
    from bppsa.frontend.dynamo.backend import backend  # Dynamo takes a second to import

    asked = {"fallback": "inductor", "strategy": str(options.strategy), "forward": str(options.forward)}
    fast.compile(backend=backend, options=asked)
    return fast


def with_schedule(model: nn.Module, options: ScheduleOptions) -> nn.Module:
    """A model that trains on several workers, its recurrences by generated kernels."""
    settings = Settings(
        options.schedule,
        options.microbatches,
        options.workers,
        options.loss_fn,
        options.loss_weight,
        options.seed,
        options.data == "local",
        (options.strategy, options.forward),
        options.recompute,
        options.balance,
        tuple(options.speeds or ()),
    )
    check_stages(settings, options.stages)
    fast, by_path = rewrite(model, options.strategy, options.forward)
    asked = class_question(fast)
    if asked is not None:
        fast, by_path = clone(model)[0], {"": left(asked)}
    stages = counterparts(model, fast, options.stages or STAGES)
    trained = scheduled(fast, settings, stages, options.example_inputs, options.example_kwargs, model)
    show(trained, Report(tuple(by_path.values()), NOT_YET))
    return trained


PRODUCTS: Mapping[type[ProductOptions], Callable[[nn.Module, Any], nn.Module]] = {
    KernelOptions: with_kernels,
    ScanOptions: with_scan,
    InductorOptions: with_inductor,
    ScheduleOptions: with_schedule,
}


def reporting(fast: nn.Module, options: ProductOptions, found: tuple[Decision, ...], note: str) -> nn.Module:
    """Have each call of `fast` note its decisions in a report. found: for the report until then."""
    state = state_of(fast)
    state.asked = options.strategy, options.forward
    state.left = tuple(decision for decision in found if decision.strategy != "waiting")
    show(fast, Report(found, note))
    if not isinstance(fast, (Recurrent, Pruned, Looped)):  # which keep their own
        fast.register_forward_pre_hook(begin_report)
        fast.register_forward_hook(end_report, always_call=True)
    return fast


def chains(model: nn.Module, options: ChainOptions) -> dict[str, Decision]:
    """Have the feed-forward modules of a clone follow a strategy. One stage after the other is what PyTorch does
    anyway, and so does "auto" unless a scan may be faster where they are; then only an explanation looks at them."""
    device = next((parameter.device.type for parameter in model.parameters()), "cpu")
    asked = options.strategy.name not in ("auto", "sequential")
    if not (asked or (options.strategy.name == "auto" and may_gain(device)) or call_log.explaining()):
        return {}
    found = list(classes.candidates(model))
    for path, module in found:
        classes.adopt(module, path, options)
    return {path: Decision(path, "chain", "waiting", "decided in its first call") for path, _ in found}


def begin_report(module: nn.Module, args: Any) -> None:
    call_log.begin(module)


def end_report(module: nn.Module, args: Any, output: Any) -> None:
    call_log.end(module)
