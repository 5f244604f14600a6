"""Cut a model into stages of equal cost, for a schedule to run.

`unseen` runs the model once for what no graph shows. `exported` has torch.export see it, where `whole` keeps calls of
PyTorch's own modules and custom Functions as they are, `copied` makes a graph of the program, with what each node does
(`effects`, `costs`), and `sizes` tells for which calls it holds. `order` says what may be cut where, `balance` where it
is cut, `building` makes a module of each stage, and `verify` compares these with the model. `situations` tells when a
model has to be exported again, as for evaluation, and `placement` leaves the weights in their stages then. `by_hand`
takes modules for stages. What cannot be cut is told by `refusals` and `unfit`, and which layer an example
does not fit by `layers`.

Belongs here: what a stage is, and what goes from stage to stage. Does not belong here: who runs a stage and when
(`bppsa.schedule`), and how (`bppsa.runtime.worker`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bppsa.fxpasses.partition.cutting import partition

__all__ = ["partition"]


def __getattr__(name: str) -> Any:
    """`partition`, when it is asked for: torch.export takes a second to import."""
    if name != "partition":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bppsa.fxpasses.partition.cutting import partition

    return partition
