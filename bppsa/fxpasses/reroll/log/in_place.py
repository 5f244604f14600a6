"""Changes in place, written down as ops that make new values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bppsa.errors import Unsupported
from bppsa.fxpasses.recording.aliases import RETURN_NEW, marked_geometry
from bppsa.fxpasses.recording.functional import functional
from bppsa.fxpasses.reroll.log.ops import Like, LoggedValue, flatten
from bppsa.fxpasses.reroll.log.targets import DRAWS, FILLS_PLACE, sized, without_rows
from bppsa.sparsity.rules.own_gradient import ATTACHED

aten = torch.ops.aten

if TYPE_CHECKING:
    from bppsa.fxpasses.reroll.log.record import Logger


class ChangesInPlace:
    """What a logger writes down where an op changes a tensor."""

    def __init__(self, logger: Logger) -> None:
        self.logger = logger

    def write(self, func: Any, args: Any, kwargs: Any, leaves: list[Any], spec: Any, out: Any) -> None:
        changed, name = args[0] if args else None, str(func)
        unusual = not func._opname.endswith("_") or torch.Tag.inplace_view in func.tags
        if unusual or not isinstance(changed, Tensor) or kwargs.get("generator") is not None:
            raise Unsupported("changes a tensor in place", op=name, mend=RETURN_NEW)
        if self.logger.memory.is_detached(changed):
            raise Unsupported("changes a detached view in place", op=name, mend=RETURN_NEW)
        place = marked_geometry(changed)
        shared = [t for t in tensors_of(args[1:], kwargs) if t.untyped_storage()._cdata == place[0]]
        if any(marked_geometry(tensor) != place for tensor in shared) and func is not aten.copy_.default:
            self.check_disjoint(changed, shared, name)
        value = self.made(func, changed, leaves, spec)
        if changed.requires_grad and not torch.is_grad_enabled():
            value = self.unseen(leaves[0], value)
        self.logger.memory.write(changed, value, name)

    def unseen(self, old: LoggedValue, new: LoggedValue) -> LoggedValue:
        """The new numbers with the gradient of the old: autograd has not seen that they were changed."""
        slope = self.logger.emit(aten.ones_like.default, [old], (((None,), ()), old))
        return self.logger.emit(ATTACHED, [new, old, slope], (((None, None, None), ()), old))

    def check_disjoint(self, changed: Tensor, others: Sequence[Tensor], name: str) -> None:
        """Checks that what is read was not changed meanwhile: pieces of one split are apart."""
        here = self.logger.memory.places[marked_geometry(changed)]
        for other in others:
            there = self.logger.memory.places[marked_geometry(other)]
            apart = here.parent is there.parent is not None and there not in here.meeting()
            if not apart and here is not there:
                raise Unsupported("reads what it changes in place through another view", name, RETURN_NEW)

    def made(self, func: Any, changed: Tensor, leaves: list[Any], spec: Any) -> LoggedValue:
        """The value that `changed` has after `func`."""
        if func is aten.copy_.default:
            return self.copied(leaves[1], changed)
        if func in FILLS_PLACE:
            number = leaves[1] if func is aten.fill_.Scalar else 0
            target, leaves, spec = sized(aten.full_like.default, [leaves[0], number], changed)
            return self.logger.append(target, leaves, spec, [changed]).outs[0]
        if func is aten.bernoulli_.float and len(leaves) == 1:
            leaves, spec = [*leaves, 0.5], ((None, None), ())
        target = DRAWS.get(func) or functional(func)
        if target is None:
            raise Unsupported("changes a tensor in place", op=str(func), mend=RETURN_NEW)
        return self.logger.append(*without_rows(target, leaves, spec), [changed]).outs[0]

    def copied(self, source: LoggedValue, changed: Tensor) -> LoggedValue:
        if source.dtype != changed.dtype:
            spec: Any = (None,), (("dtype", None),)
            source = self.logger.append(
                aten._to_copy.default, [source, changed.dtype], spec, [Like(source.shape, changed.dtype)]
            ).outs[0]
        if source.shape != changed.shape:
            spec = (None, (None,) * changed.dim()), ()
            source = self.logger.append(aten.expand.default, [source, *changed.shape], spec, [changed]).outs[0]
        if torch.is_grad_enabled():
            return source
        return self.logger.append(aten.detach.default, [source], ((None,), ()), [changed]).outs[0]


def tensors_of(args: Any, kwargs: Any) -> list[Tensor]:
    return [leaf for leaf in flatten(args, kwargs)[0] if isinstance(leaf, Tensor)]
