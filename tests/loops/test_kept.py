"""What is kept of a loop's calls: bounded, for threads, and told of what has changed alone."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

from bppsa.common.recent import RecentMap
from bppsa.frontend.loops import state
from bppsa.frontend.loops.state import LoopState
from tests.loops.beside import Pair
from tests.loops.cells import x
from tests.loops.models import Stack


def test_the_map_keeps_what_was_used_last() -> None:
    known: RecentMap[int] = RecentMap(2)
    known.keep("a", 1)
    known.keep("b", 2)
    assert known.get("a") == 1
    known.keep("c", 3)
    assert (known.get("a"), known.get("b"), known.get("c")) == (1, None, 3)
    assert known.find("b", lambda: 4) == 4 == known.find("b", lambda: 5)
    known.drop("b")
    assert len(known) == 1
    for again in (copy.deepcopy(known), pickle.loads(pickle.dumps(known))):
        assert (len(again), again.most) == (0, 2)


def test_threads_share_the_map() -> None:
    known: RecentMap[int] = RecentMap(4)

    def use(start: int) -> None:
        for i in range(2000):
            known.find((start + i) % 9, lambda: i)  # noqa: B023
            known.get(i % 9)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(8)))
    assert len(known) == 4


def test_a_kind_that_comes_again_has_not_moved() -> None:
    """A call that was left without a plan, or whose plan went, comes with the very same numbers."""
    loop = LoopState("")
    assert not loop.has_moved("kind", ("kind", 1.0))
    assert not loop.has_moved("kind", ("kind", 1.0))
    assert loop.has_moved("kind", ("kind", 2.0))
    assert not loop.has_moved("kind", ("kind", 3.0)), "that is known by now"


def test_a_plan_is_used_behind_odd_calls() -> None:
    """As of a hook that records one call of each epoch."""
    pair, seen = Pair(Stack()), list[object]()
    for _ in range(state.TRIALS + 2):
        for _ in range(2):
            assert [decision.strategy for decision in pair.call(x())] == ["sequential"]
        hooks = [
            model.cell.register_forward_hook(lambda *given: seen.append(given)) for model in (pair.plain, pair.fast)
        ]
        assert [decision.strategy for decision in pair.call(x())] in (["pytorch"], [])
        for hook in hooks:
            hook.remove()
