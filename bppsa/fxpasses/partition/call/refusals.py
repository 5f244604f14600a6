"""Why a model cannot be cut, for somebody who has never seen its graph: the line, what happens there, and the mend."""

from __future__ import annotations

from torch import nn

from bppsa.errors import PartitionError, first_line
from bppsa.fxpasses.lines import place_of
from bppsa.fxpasses.partition.call.layers import layer_of

WHAT_FORWARDS_RAISE = (
    *(TypeError, ValueError, AttributeError, RuntimeError),  # and torch.fx's TraceError, a ValueError
    *(LookupError, NameError, AssertionError, ArithmeticError),
)
BY_HAND = "cut the model by hand, with stages=[module, ...]"
VALUE = (
    "Python needs the value of a tensor (as in if, while, int() or float()), which is there only when the model runs; "
    "compute with torch.where or a mask, or take the test out"
)
REAL = "an activation is given to code that takes nothing but real tensors; do the same by functions of torch"
# Part of what Python or PyTorch says while a model is traced -> what that tells the model's author.
MEANINGS = {
    "data-dependent": VALUE,
    ".numpy()": REAL,
    "fake tensor": REAL,
    "dynamo-optimized": "a part of the model was made by torch.compile; cut the model as it was before",
    "does not require grad": "the forward differentiates, and stages run it without the autograd graph of the whole",
    "argument of type: <class 'function'>": "a function is given to an op; call the function itself",
}


class StateChanged(PartitionError):
    """The forward changes state of Python's. what: its name. place: the user's line, "" where it is not known."""

    what = place = ""


def state_changed(model: nn.Module, place: str, what: str, why: str) -> StateChanged:
    error = StateChanged(str(untraced(model, place, why)))
    error.what, error.place = what, place
    return error


def untraced(model: nn.Module, place: str, why: str) -> PartitionError:
    """What to raise where a model cannot be traced. place: the user's line, "" where it is not known."""
    return PartitionError(
        f"{type(model).__name__} cannot be traced{f' at {place}' if place else ''}: {why}; or {BY_HAND}"
    )


def refusal(model: nn.Module, error: BaseException) -> PartitionError:
    """What to raise for an error of a model's forward that came while it was traced."""
    return untraced(model, place_of(error), meaning(error))


def failure(model: nn.Module, error: BaseException) -> PartitionError:
    """What to raise for an error of a model's forward that came while it ran on the example."""
    layer = layer_of(model, error)
    if not layer:
        return refusal(model, error)
    place = place_of(error)
    return PartitionError(
        f"{type(model).__name__} does not run on the example{f' at {place}' if place else ''}: {layer}"
    )


def meaning(error: BaseException) -> str:
    said = first_line(error)
    return next((told for part, told in MEANINGS.items() if part in said), said)
