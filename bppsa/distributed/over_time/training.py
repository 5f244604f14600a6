"""Training of a recurrent model whose time axis is cut: its batch is cut into micro-batches, and each into chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_flatten, tree_unflatten

from bppsa.common.graph import tensors_in
from bppsa.common.stages import OverTime
from bppsa.distributed.batch.batches import Batch, by_leaf, comparable
from bppsa.distributed.batch.whole import check_wholes_over_time
from bppsa.distributed.losses.reads import check_wants, names_in
from bppsa.distributed.losses.weighted import WeightedLoss
from bppsa.distributed.over_time.batches import TimeBatch
from bppsa.distributed.over_time.losses import TimeLoss, time_loss
from bppsa.distributed.over_time.parts import Parts, lengths, pieces
from bppsa.distributed.steps.training import Settings, Training
from bppsa.errors import InputError, ScheduleError
from bppsa.runtime.worker.draws import Seed
from bppsa.runtime.worker.modes import Modes
from bppsa.runtime.worker.over_time.work import reads, writes
from bppsa.runtime.worker.pipeline import PipelineCall
from bppsa.runtime.worker.results import Outcome
from bppsa.schedule.job_graph.spec import Schedule
from bppsa.schedule.programs.messages import Items
from bppsa.schedule.zoo.time_chunks import END, with_ends


class TimeTraining(Training):
    """Trains a model that is cut over time."""

    stages: OverTime

    def __init__(self, model: nn.Module, settings: Settings, stages: OverTime) -> None:
        super().__init__(model, settings, stages)
        self.time_loss: TimeLoss | None = None
        self.extremes: set[int] = set()  # of the targets that it was tried with

    def items(self, schedule: Schedule) -> tuple[Items, Items]:
        assert schedule.inputs is not None
        return partial(reads, schedule.inputs, self.stages.chunks), writes

    def bound(self, count: int) -> Schedule:
        return with_ends(super().bound(count), len(self.stages), self.stages.chunks)

    def costs(self, schedule: Schedule) -> dict[str, list[float]]:
        """A summary is a sweep of the columns of a matrix, in twice the precision; to combine summaries costs nothing
        beside it. Where R is B's own sweep, B is what is left of it. L goes forward and back."""
        assert schedule.inputs is not None
        forward = super().costs(schedule)["F"]
        found = {d: [0.0] * len(forward) for _, _, d in schedule.jobs or ()} | {"F": forward}
        found[END] = [3 * self.stages.end_cost] * len(forward)
        for s, cost in enumerate(forward):
            is_sweep = (s, 0, "R") in (schedule.inputs(s, 0, "B") or ())
            found["B"][s] = cost if is_sweep else 2 * cost
            if "R" in found:
                found["R"][s] = cost if is_sweep else 2 * cost * self.columns(s // self.stages.chunks)
        return found

    def columns(self, layer: int) -> int:
        """How many columns the matrix has that the layer's summary is found with."""
        module: Any = self.stages.stages[0].module.get_submodule(self.stages.layers[layer].path)
        return (module.proj_size or module.hidden_size) + module.hidden_size * (module.mode == "LSTM") + 2

    def batch(self, number: int, args: Sequence[Any], kwargs: Mapping[str, Any], modes: Modes) -> TimeBatch:
        """Cut into micro-batches; jobs cut these into chunks. number: of the call.

        Raises InputError where there are no rows, or fewer steps than chunks; ScheduleError for a norm in training.
        """
        self.check()
        model = self.stages
        arguments = model.bind(*args, **kwargs)
        leaves, spec = tree_flatten(arguments)
        parts = self.parts(leaves)
        if len(parts) > 1:
            check_wholes_over_time(leaves, model.arguments_axes, model.shapes)
        by_row = [pieces(x, of.rows, parts.rows) for x, of in zip(leaves, model.arguments_axes, strict=True)]
        count = len(parts.rows)
        tensors = list(map(tensors_in, arguments))
        axes = iter([of for x, of in zip(leaves, model.arguments_axes, strict=True) if isinstance(x, Tensor)])
        shapes = [(tuple(x.shape), x.dtype) for of_argument in tensors for x in of_argument]
        call = PipelineCall(
            arguments=[tree_unflatten([column[b] for column in by_row], spec) for b in range(count)],
            modes=modes,
            seeds=[Seed(self.seed, number, b) for b in range(count)],
            signature=repr((modes, shapes)),
            brought=comparable(leaves),
        )
        return TimeBatch(
            call=call,
            mine=range(count),
            rows=sum(parts.rows),
            sizes=list(parts.rows),
            arguments=tensors,
            model=model,
            parts=parts,
            axes=[[next(axes) for _ in of_argument] for of_argument in tensors],
        )

    def check(self) -> None:
        """Raises ScheduleError for what no chunk can do alone."""
        for path, module in self.stages.stages[0].module.named_modules():
            if isinstance(module, _NormBase) and self.model.get_submodule(path).training:
                raise ScheduleError(
                    f"{path} ({type(module).__name__}) is in training, where it takes its statistics over all steps, "
                    f"and a chunk has only its own; call .eval() on it, or take nn.LayerNorm"
                )

    def parts(self, leaves: Sequence[Any]) -> Parts:
        """leaves: of the arguments."""
        steps, rows, chunks = self.size(leaves, "time"), self.size(leaves, "rows"), self.stages.chunks
        if not rows:
            raise InputError("a batch without rows cannot be cut into micro-batches; give at least one")
        if steps < chunks:
            raise InputError(f"{steps} steps cannot be cut into {chunks} chunks; give more, or blelloch({steps})")
        return Parts(lengths(rows, min(self.settings.microbatches, rows)), lengths(steps, chunks))

    def size(self, leaves: Sequence[Any], axis: str) -> int:
        """Along the axis of "time" or of "rows", 1 where none has such. Raises InputError where leaves disagree."""
        places = [(leaf, getattr(of, axis)) for leaf, of in zip(leaves, self.stages.arguments_axes, strict=True)]
        found = {leaf.shape[at] for leaf, at in places if at is not None}
        if len(found) > 1:
            raise InputError(f"arguments have {' and '.join(map(str, sorted(found)))} {axis}, which have to be as many")
        return found.pop() if found else 1

    def loss(self, batch: Batch, target: Any) -> WeightedLoss:
        """How a loss is to be cut is found again where a target has a number beyond those before, which may be one that
        counts otherwise than others, such as `ignore_index`, and where the axes of a target are not where they were."""
        assert isinstance(batch, TimeBatch)
        if self.settings.loss_fn is not None:
            check_wants(self.settings.loss_fn, target)
        extremes = extremes_of(target)
        if self.time_loss is None or not extremes <= self.extremes or not self.time_loss.fits(target, batch.parts):
            self.extremes |= extremes
            self.time_loss = time_loss(
                self.stages, self.settings.loss_fn, self.settings.loss_weight, target, batch.parts
            )
        return self.time_loss.weighted(target, batch.parts, names_in(self.model))

    @property
    def returns_loss(self) -> bool:
        return False

    def outputs(self, found: Outcome, batch: Batch) -> Any:
        return batch.outputs(found.outputs)

    def cotangents(self, made: Any, batch: Batch, grads: Sequence[Tensor | None]) -> list[list[Tensor | None]]:
        return batch.cotangents(by_leaf(self.stages.example, self.stages.assemble, grads))


def extremes_of(target: Any) -> set[int]:
    """The least and the largest of its whole numbers."""
    leaves = [x for x in tensors_in(target) if x.numel()]
    whole = [x for x in leaves if not (x.is_floating_point() or x.is_complex())]
    return {int(end) for x in whole for end in (x.min(), x.max())}
