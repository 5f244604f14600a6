"""What is known of the calls of one module that has a loop, in its record (`bppsa.frontend.state`)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from bppsa.common.recent import RecentMap
from bppsa.decisions import Decision, Report
from bppsa.errors import Reason
from bppsa.frontend.loops.changing import Changes, ChangingNumbers, exactly
from bppsa.frontend.loops.scans.shared import SharedSteps
from bppsa.frontend.plan_cache import PlanCache, WeakReference

MOST = 64  # plans, one for each kind of call and number of steps
TRIALS = 4  # logs in vain, after which the module is left alone
LONG_S = 3.0  # of one log in vain, which counts as another
PAYS = 12  # runs of a plan, about which gain what it has cost to make it
SHARED = 1  # the same of one whose cells are those of another length
FREE = 8  # plans that may be made before any has paid
MUCH = 4  # times the size of all calls before
IDLE = 64  # the same for calls that PyTorch runs: to see of which kind each is takes as long as a small layer
MOST_ROOTS = 16  # functions of what one loop looks up
SLOW_S = 4e-3  # to find the kind of a call, as of a model that reads a whole library
SLOWER = 2  # times as long as a run of the plan
MOST_IDLE = 7  # calls that one call may count as, besides itself
SIGHTINGS = 1024  # of kinds of calls, how often each has been seen


NEW_KINDS = Reason(
    f"of a new kind, in its sizes or in what it reads, as many calls before: a plan pays after some {PAYS} runs, so"
    " one is made where the kind comes again",
    mend="keep what changes in a tensor, and pad to a few sizes",
)


@dataclass(frozen=True)
class LeftCall:
    """A call that PyTorch runs, and what is told of it; nothing where no loop over time was found. around_others: it
    has effects, and what has loops of its own was called within it. is_short: its loop
    has too few steps, which says nothing of other calls. begins: it gave an object or a module an attribute that it did
    not have, as the first call of a model that keeps its state does, which says nothing of the next call. writes: it
    changed a tensor in place that it was given."""

    decisions: tuple[Decision, ...] = ()
    around_others: bool = False
    is_short: bool = False
    begins: bool = False
    writes: bool = False


@dataclass(eq=False)
class LoopState:
    """plans: by the key of a call, what runs it. in_vain: logs that gave no plan, since the last that did. Both belong
    to one object in one process: a copy begins anew."""

    path: str
    place: str = field(default="", kw_only=True)  # "file:line" of a loop that no function of its own has
    is_part: bool = False  # of a function: one loop of it
    plans: PlanCache[Any] = field(default_factory=lambda: PlanCache(MOST))
    in_vain: int = 0
    has_plans: bool = False
    debt: int = 0  # of all plans made, in runs that would have to pay for them yet
    sightings: RecentMap[int] = field(default_factory=lambda: RecentMap(SIGHTINGS))  # of kinds that wait for a plan
    changes: RecentMap[Changes] = field(default_factory=lambda: RecentMap(MOST))  # of kinds that differ in numbers
    moves: bool = False  # whether numbers that it reads beside its arguments have changed
    kinds: RecentMap[Hashable] = field(default_factory=lambda: RecentMap(MOST))  # without these numbers: with them
    shared: SharedSteps = field(default_factory=SharedSteps)
    largest: int = 0  # size of a call
    gives_way: bool = False  # to the loops of what it calls, or of other methods
    writes: bool = False  # of a loop: whether what it calls changes tensors that it was given
    idle: int = 0  # calls left to PyTorch since the last plan was made
    pays: bool = False  # whether a plan gains more than its kind takes to find, where that is long
    costs: bool = False  # whether none does
    last: LeftCall = LeftCall()
    report: Report = field(default_factory=Report)  # of a function
    outlined: Mapping[Any, FunctionType] | None = None  # of a function: it, with its loops as calls of their own
    methods: Mapping[Any, FunctionType] | None = None  # the same for methods that are not called by forward
    wholes: frozenset[FunctionType] = frozenset()  # methods whose loops cannot be such calls
    parts: dict[Hashable, LoopState] = field(default_factory=dict)  # of these loops and methods
    roots: RecentMap[FunctionType] = field(default_factory=lambda: RecentMap(MOST_ROOTS))  # of one such loop

    def __getstate__(self) -> dict[str, Any]:
        return {**self.of_clone().__dict__}

    def of_clone(self) -> LoopState:
        return LoopState(self.path, self.is_part, place=self.place, gives_way=self.gives_way and not self.is_part)

    @property
    def is_closed(self) -> bool:
        tried = self.is_tried and not self.has_plans
        return tried or self.idle >= IDLE or self.gives_way

    @property
    def is_tried(self) -> bool:
        """Whether no further kind of call is looked at."""
        return self.in_vain >= TRIALS

    def look_at(self, size: int) -> None:
        """size: of what a call is given. One that is given far more than any before, as behind the single steps of a
        rollout, is looked at even where those were left alone."""
        if size > MUCH * self.largest:
            self.largest = size
            self.in_vain, self.idle = min(self.in_vain, TRIALS - 1), 0

    @property
    def is_in_vain(self) -> bool:
        """Whether calls were logged, and none of them as a whole got a plan that is for more of them."""
        tells = bool(self.last.decisions) and not self.last.is_short
        made = list(self.plans)
        only_begun = len(made) == 1 and isinstance(made[0], LeftCall) and made[0].begins
        in_vain = tells and not only_begun and all(isinstance(each, LeftCall) for each in made)
        return self.moves or self.costs or in_vain

    def find(self, key: Hashable) -> Any:
        found = self.plans.get(key)
        if found is not None:
            self.debt = max(0, self.debt - 1)
        return found

    def waits(self, key: Hashable) -> bool:
        """Whether a call of a kind that has no plan is left to PyTorch without a log: the more plans have not paid yet,
        the more often a kind has to be seen."""
        needed = min(1 + self.debt // (FREE * PAYS), PAYS)
        if needed == 1:
            return False
        seen = (self.sightings.get(key) or 0) + 1
        if seen >= needed:
            self.sightings.drop(key)
            return False
        self.sightings.keep(key, seen)
        return True

    def changing(self, numbers: ChangingNumbers) -> Changes:
        return self.changes.find(numbers.key, lambda: Changes(exactly(numbers)))

    def has_moved(self, kind: Hashable, key: Hashable) -> bool:
        """Whether a number that is read beside the arguments has changed, for the first time. key: of the call; kind:
        the same without these numbers, of which a call may come again because it got no plan or has lost it."""
        before = self.kinds.get(kind)
        moved = before is not None and before != key and not self.moves
        self.moves |= moved
        self.kinds.keep(kind, key)
        return moved

    def part(self, key: Hashable, is_part: bool = True) -> LoopState:
        """Of one loop of a function, or of a method that is no forward as a whole."""
        if key not in self.parts:
            self.parts[key] = LoopState(self.path, is_part=is_part)
        return self.parts[key]

    def leave(self, left: LeftCall, asked: float = 0.0) -> None:
        """A call is left to PyTorch once more. asked: the seconds in which its kind was found."""
        self.idle += 1 + min(int(asked / SLOW_S), MOST_IDLE)
        self.tell(left)

    def weigh(self, gains: bool, asked: float) -> None:
        """gains: whether a plan was found to gain more than it takes to find. Where none does, Python runs what is
        around the loops, whose own kinds are found sooner; where nothing can be run so, calls are left alone."""
        self.pays |= gains
        self.costs = not self.pays
        if self.costs:
            what = f"of a kind that takes {asked * 1e3:.0f} ms to find, which is more than a plan gains"
            self.idle, self.last = IDLE, LeftCall((Decision(self.path, "loop", "pytorch", what),))

    def tell(self, left: LeftCall) -> None:
        """What is told once the module is left alone: of its calls that had a loop over time, the last."""
        self.last = left if left.decisions else self.last

    def keep(self, key: Hashable, made: Any, named: Sequence[WeakReference]) -> None:
        if isinstance(made, LeftCall) and made.writes and self.is_part and not self.writes:
            self.writes = True  # the next call is looked at with copies
            self.tell(made)
            return
        if isinstance(made, LeftCall):
            self.in_vain += 1
            self.gives_way = made.around_others and self.is_part
            self.tell(made)
        else:
            self.in_vain = self.idle = 0
            self.has_plans = True
            self.debt += SHARED if made.is_shared else PAYS
        self.plans.keep(key, made, named)
