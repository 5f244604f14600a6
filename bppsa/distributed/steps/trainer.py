"""Trains a model on several workers as a schedule says: by `step`, a whole training step, or as one autograd op."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_unflatten

from bppsa.common.stages import Stages
from bppsa.distributed.batch.batches import comparable
from bppsa.distributed.losses.metrics import gathered
from bppsa.distributed.script.given import given_for
from bppsa.distributed.script.scaling import scale_of, skip_together
from bppsa.distributed.script.states import like
from bppsa.distributed.script.step_loss import StepLoss
from bppsa.distributed.steps.called import ApplyModel, warn_of_step
from bppsa.distributed.steps.training import Settings, Training
from bppsa.errors import ScheduleError
from bppsa.fxpasses.partition.call.transient import mark
from bppsa.runtime.worker.modes import Modes
from bppsa.runtime.worker.shell import named_tensors
from bppsa.schedule.timeline import Timeline


class Trainer:
    """Trains a model that was compiled with a schedule; `bppsa.trainer(model)` gives it."""

    def __init__(self, model: nn.Module, given: nn.Module, settings: Settings, cut: Callable[..., Training]) -> None:
        """model: what the user calls, with the Parameters and buffers that are here. given: the model that is cut. cut:
        of the arguments of the first call, the model cut for its workers."""
        self.model, self.given, self.settings = model, given, settings
        self.training: Training | None = None
        # The user's own, as long as it is there: `given` is a copy of it, and a loss may read it.
        self.source: Callable[[], nn.Module | None] = lambda: None
        self.names = list(given.state_dict())  # of the whole model
        self._cut = cut

    def begin(self, *args: Any, **kwargs: Any) -> Training:
        """Cut the model, the first time, and for another mode."""
        if self.training is None:
            self.given.training = self.model.training  # its root is a module of its own, its children are the model's
            self.training = self._cut(self.model, args, kwargs)
        self.training = self.training.now(args, kwargs)
        for model in (self.model, self.source()):
            if model is not None:  # in each call: the script may have set them to None before it
                mark(model, self.training.stages.transient)
        return self.training

    def step(
        self,
        *inputs: Any,
        return_outputs: bool = False,
        scaler: GradScaler | None = None,
        share: float = 1.0,
        **kwargs: Any,
    ) -> Any:
        """Run one training step of the whole batch: gradients are added to `.grad`, and the loss [] is returned.

        The backward has run: nothing is left for `.backward()`, which is a WorkerError on what is returned.

        Args:
            inputs: the model's arguments and, last, the target; with loss_fn=None all are the model's, which returns
                its loss. Every tensor of a target has the batch's rows in dimension 0, or no dimension. Or a batch as
                one mapping, which is the same as its entries by name.
            return_outputs: True returns the loss and the outputs.
            scaler: gradients are those of the loss that it scales, and where one of any rank is infinite or no number,
                `scaler.step(optimizer)` skips on every rank.
            share: what this batch counts among the calls before one optimizer step, such as 1 / 4: gradients and the
                loss are multiplied by it.
            kwargs: the model's and, where no target is among the inputs, what the forward has no parameter for: the
                target, one entry as it is and several as a dict.

        What loss_fn returns beside the loss, as (loss, metrics), is the loss's `.metrics`.

        Raises:
            WorkerError: a job fails (a RuntimeError).
            InputError: the batch has no rows, or its target has others (a RuntimeError).
            ArgumentError: there is no loss (a TypeError).
        """
        given, kwargs, target = given_for(self.given, inputs, kwargs, has_target=self.settings.loss_fn is not None)
        training = self.begin(*given, **kwargs)
        with training.call() as number:
            batch = training.batch(number, given, kwargs, Modes(True, False, Modes.here().autocast))
            loss = training.loss(batch, target)
            brought = () if self.settings.local else (*batch.call.brought, *comparable(tree_leaves(target)))
            device = device_of(self.model)
            scale = scale_of(scaler, device) * share
            call = replace(
                batch.call, loss=loss, around=loss.around, outputs=return_outputs, brought=brought, scale=scale
            )
            found, _ = training.run("step", call)
        named = named_tensors(self.model)
        wanted = [named[name] for name in found.grads] + batch.wanted
        scaling = scaler if scaler is not None and scaler.is_enabled() else None
        together = nullcontext() if scaling is None else training.engine.call()
        with together:  # where a hook raises on one rank, all are told
            accumulate(wanted, [*found.grads.values(), *batch.gradients(found.arguments)])
            if scaling is not None:
                skip_together(scaling, self.model.parameters(), device, training.engine.all_gather)
        total = (torch.stack([found.losses[b] for b in sorted(found.losses)]).sum() * share).as_subclass(StepLoss)
        total.metrics, total.weights = gathered(found.metrics, batch.sizes), total.new_tensor(loss.weights)
        if not return_outputs:
            return total
        with torch.no_grad():
            return total, training.outputs(found, training.weighted(batch, loss))

    def outputs(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns for the whole batch: all forwards, and in `.backward()` all backwards."""
        training = self.begin(*args, **kwargs)
        with training.call() as number:
            return self._outputs(training, number, args, kwargs)

    def _outputs(self, training: Training, number: int, args: Any, kwargs: Mapping[str, Any]) -> Any:
        modes = Modes.here()
        batch = training.batch(number, args, kwargs, modes)
        if training.returns_loss:
            batch = training.weighted(batch, training.loss(batch, None))
        if not modes.grad:
            return training.outputs(training.run("forward", replace(batch.call, outputs=True))[0], batch)
        if self.settings.local:
            raise ScheduleError(
                "data='local': a rank's outputs are of its own rows, and a loss over them is not the "
                "batch's; call step(x, target)"
            )
        warn_of_step(training.plan("step", len(batch.sizes)))
        named = {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        spec: list[Any] = []
        leaves = ApplyModel.apply(training, batch, tuple(named), spec, *named.values(), *batch.wanted)
        return tree_unflatten(list(leaves), spec[0])

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip as torch.nn.utils.clip_grad_norm_ does, over the Parameters of all workers, each counted once.

        Every rank calls it. Returns the norm [] before.
        """
        engine = self._started().engine
        counted = engine.first_owned(name for name, _ in self.model.named_parameters())
        grads = [p.grad for name, p in self.model.named_parameters() if name in counted and p.grad is not None]
        with engine.call():
            norms = engine.all_gather(float(get_total_norm(grads, norm_type)))
        total = torch.linalg.vector_norm(torch.tensor(norms), norm_type)
        clip_grads_with_norm_(list(self.model.parameters()), max_norm, total)
        return total

    def full_state_dict(self) -> dict[str, Any]:
        """Return a copy of the whole model's state_dict, in its order, on every rank. Every rank calls it."""
        own = self.model.state_dict()
        tensors = {name: value.detach().clone() for name, value in own.items() if isinstance(value, Tensor)}
        others = {name: copy.deepcopy(value) for name, value in own.items() if not isinstance(value, Tensor)}
        found = {**self._started().engine.gather(tensors), **others}
        return like(own, {name: found[name] for name in self.names if name in found})

    def state_dict(self) -> dict[str, Any]:
        """Return what later steps depend on besides weights and data, the same on every rank: the seed of random draws,
        and the number of calls so far."""
        return vars(self._started().drawing).copy()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as the trainer did whose state it is: the next step draws what its next one draws."""
        drawing = self._started().drawing
        drawing.seed, drawing.calls = int(state["seed"]), int(state["calls"])

    def save(self, folder: str | Path, optimizer: Optimizer | None = None, **others: Any) -> Path:
        """Write a checkpoint into the folder: weights, the optimizer's state, `state_dict()` and others.

        Every rank calls it, with its own optimizer. It is written through torch.distributed.checkpoint by the model's
        names, so it is loaded under any schedule and number of ranks. Returns its place, which has its name once it is
        whole.

        Args:
            others: objects with a state_dict, such as schedulers and scalers, and values; the same on all ranks. What
                could not be loaded again is an ArgumentError (a TypeError).
        """
        from bppsa.distributed.script import checkpoints

        training = self._started()
        with training.engine.call():
            rest = {"trainer": self.state_dict(), "others": {name: state_of(one) for name, one in others.items()}}
            number = training.drawing.calls
            return checkpoints.save(Path(folder), number, training.engine, self.model, optimizer, rest)

    def load(self, folder: str | Path, optimizer: Optimizer | None = None, **others: Any) -> dict[str, Any] | None:
        """Load the newest whole checkpoint of the folder; every rank calls it.

        Returns the others that were saved, by name, those with a load_state_dict loaded too; None where there is no
        checkpoint. Raises ArgumentError where one that is to be loaded was not saved (a TypeError).
        """
        from bppsa.distributed.script import checkpoints

        loading = {name: one for name, one in others.items() if hasattr(one, "load_state_dict")}
        engine = self._started().engine
        with engine.call():
            (place, *_) = engine.all_gather(checkpoints.newest(Path(folder)))
            if place is None:
                return None
            rest = checkpoints.rest_of(place, loading)
            checkpoints.load(place, engine, self.model, optimizer)
            self.load_state_dict(rest["trainer"])
            for name, one in loading.items():
                one.load_state_dict(rest["others"][name])
            return dict(rest["others"])

    @property
    def stages(self) -> Stages:
        """The stages that the model was cut into. Raises ScheduleError before it is cut."""
        return self._started().stages

    @property
    def timeline(self) -> Timeline:
        """The simulated timeline of a step, in flops, or in seconds where stages were measured. Raises ScheduleError
        before the model is cut."""
        return self._started().plan("step", self.settings.microbatches).timeline

    @property
    def measured(self) -> Timeline:
        """The timeline of the last call, in seconds. Raises ScheduleError before the first."""
        return self._started().last()[1]

    @property
    def predicted(self) -> Timeline:
        """The last call's jobs, simulated with the times that they took. Raises ScheduleError before the first."""
        return self._started().predicted()

    def _started(self) -> Training:
        if self.training is None:
            raise ScheduleError("the model is cut in its first call; give example_inputs= to have it cut at once")
        return self.training


def state_of(one: Any) -> Any:
    return one.state_dict() if hasattr(one, "state_dict") else one


def device_of(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


@torch.no_grad()
def accumulate(tensors: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
    """Adds gradients up as a backward does: in place where there is a gradient, through hooks and graphs, and not where
    it is frozen."""
    through: list[tuple[Tensor, Tensor]] = []
    for x, grad in zip(tensors, grads, strict=True):
        if grad is None or not x.requires_grad:
            continue
        if x._backward_hooks or x._post_accumulate_grad_hooks or not x.is_leaf:
            through.append((x, grad))
        elif x.grad is None:  # a gradient may share memory with another one's, or with itself, where it is expanded
            x.grad = grad if isinstance(x, nn.Parameter) else grad.clone(memory_format=torch.contiguous_format)
        else:
            x.grad += grad
    if through:
        torch.autograd.backward([x for x, _ in through], [grad for _, grad in through])
