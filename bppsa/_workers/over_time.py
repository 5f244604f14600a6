"""Training of a recurrent model whose time axis is cut: its batch is cut into micro-batches, and each into chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from bppsa._workers.batches import Batch
from bppsa._workers.losses import Share
from bppsa._workers.time_batches import TimeBatch
from bppsa._workers.time_losses import TimeLoss, time_loss
from bppsa._workers.time_parts import Parts, lengths, pieces
from bppsa._workers.training import Training
from bppsa.errors import InputError, ScheduleError
from bppsa.runtime.worker.draws import Seed
from bppsa.runtime.worker.modes import Modes
from bppsa.runtime.worker.over_time.work import reads, writes
from bppsa.runtime.worker.pipeline import Call
from bppsa.runtime.worker.results import Outcome
from bppsa.schedule.messages import Items
from bppsa.schedule.spec import Schedule
from bppsa.stages import OverTime


class TimeTraining(Training):
    """Of a model cut over time."""

    stages: OverTime
    losses: TimeLoss | None = None  # as the first step's target shows

    def items(self, schedule: Schedule) -> tuple[Items, Items]:
        assert schedule.inputs is not None
        return partial(reads, schedule.inputs, self.stages.chunks), writes

    def batch(self, args: Sequence[Any], kwargs: Mapping[str, Any], modes: Modes) -> TimeBatch:
        """Cut into micro-batches; jobs cut these into chunks.

        Raises InputError where there are no rows, or fewer steps than chunks; ScheduleError for a norm in training.
        """
        self.check()
        model = self.stages
        arguments = model.bind(*args, **kwargs)
        leaves, spec = tree_flatten(arguments)
        parts = self.parts(leaves)
        by_row = [pieces(x, of.rows, parts.rows) for x, of in zip(leaves, model.arguments_axes, strict=True)]
        count = len(parts.rows)
        tensors = [[x for x in tree_leaves(argument) if isinstance(x, Tensor)] for argument in arguments]
        axes = iter([of for x, of in zip(leaves, model.arguments_axes, strict=True) if isinstance(x, Tensor)])
        shapes = [(tuple(x.shape), x.dtype) for of_argument in tensors for x in of_argument]
        call = Call(
            arguments=[tree_unflatten([column[b] for column in by_row], spec) for b in range(count)],
            modes=modes,
            seeds=[Seed(self.seed, self.calls, b) for b in range(count)],
            signature=repr((modes, shapes)),
            training=self.model.training,
        )
        self.calls += 1
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
        if self.settings.local:
            raise ScheduleError("data='local' goes with ranks that have rows of their own; blelloch(K) cuts time")
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

    def loss(self, batch: Batch, target: Any) -> Share:
        assert isinstance(batch, TimeBatch)
        if self.losses is None:
            self.losses = time_loss(self.stages, self.settings.loss_fn, self.settings.loss_weight, target, batch.parts)
        return self.losses.share(target, batch.parts)

    def outputs(self, found: Outcome, batch: Batch) -> Any:
        return batch.outputs(found.outputs)
