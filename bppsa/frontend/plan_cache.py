"""The cache of plans: a plan is made once for each kind of call, and kept while what it was made for is there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from bppsa.common.process.forks import renewed_in_children
from bppsa.common.recent import RecentMap
from bppsa.errors import Unsupported

P = TypeVar("P")
WeakReference = Callable[[], Any]  # None where what it leads to is gone


class PlanCache(Generic[P]):
    """Plans by the key of a call, for threads and forked children; the `most` that were used last are kept.

    named: references to what a key names by its address. When one of them is gone, something else may have its address,
    and the plan is not found any more. A copy of the cache begins empty.
    """

    def __init__(self, most: int) -> None:
        self.kept: RecentMap[tuple[P, Sequence[WeakReference]]] = RecentMap(most)
        self.renew_lock()
        renewed_in_children(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kept.most,)

    def __iter__(self) -> Iterator[P]:
        return (plan for plan, _ in self.kept.values())

    def __len__(self) -> int:
        return len(self.kept)

    def renew_lock(self) -> None:
        self.making = threading.RLock()  # plans take long, and a call that finds its own does not wait for another's

    def get(self, key: Hashable) -> P | None:
        found = self.kept.get(key)
        return found[0] if found is not None and all_there(found[1]) else None

    def keep(self, key: Hashable, plan: P, named: Sequence[WeakReference]) -> None:
        self.kept.forget(lambda kept: not all_there(kept[1]))
        self.kept.keep(key, (plan, named))

    def find(
        self,
        key: Hashable,
        make: Callable[[], P],
        named: Sequence[WeakReference],
        fits: Callable[[P], bool] = lambda plan: True,
    ) -> P:
        """The plan with this key, made by one thread where there is none. fits: whether it is for the call at hand."""
        plan = self.get(key)
        if plan is None or not fits(plan):
            with self.making:
                plan = self.get(key)
                if plan is None or not fits(plan):
                    plan = make()
                    self.keep(key, plan, named)
        return plan


def all_there(references: Sequence[WeakReference]) -> bool:
    return all(refer() is not None for refer in references)


def place(tensor: Tensor, reached: Sequence[Tensor], whose: str) -> int | Tensor:
    """Where a captured tensor is among those that a cell or a model reaches, or itself where it is a constant."""
    for at, known in enumerate(reached):
        if known is tensor:
            return at
    if tensor.requires_grad:
        what = f"the {whose} reaches a tensor in a way that cannot be followed"
        raise Unsupported(what, mend="make it an attribute")
    return tensor
