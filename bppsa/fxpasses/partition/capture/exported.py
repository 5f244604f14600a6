"""A model's forward as an ExportedProgram: torch.export sees it, with all dimensions dynamic that can be."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from bppsa.errors import PartitionError
from bppsa.fxpasses.lines import place_here
from bppsa.fxpasses.network.models import restore, state_of
from bppsa.fxpasses.partition.call.arguments import Arguments
from bppsa.fxpasses.partition.call.refusals import BY_HAND, refusal
from bppsa.fxpasses.partition.capture.intricate import Intricate, bearable
from bppsa.fxpasses.partition.capture.lines import lines_noted
from bppsa.fxpasses.partition.capture.whole import OpaqueCalls, kept_whole
from bppsa.fxpasses.theirs import RELEASE, is_ours, theirs

INSIDE = "model."  # where the model is in what is exported


@dataclass(frozen=True)
class Exported:
    """The program takes the tensors among the arguments, and gives the leaves of what the model returns. spec: of that.
    calls: what the program has as one op each. places: of what the forward decided by sizes, the user's lines."""

    program: ExportedProgram
    spec: TreeSpec
    calls: OpaqueCalls
    places: Mapping[str, str]


EXPORTS = (2, 13)  # the torch of which it was seen what export gives


def check_version() -> None:
    if RELEASE != EXPORTS:
        raise PartitionError(
            f"torch {torch.__version__} does not export models so that they can be cut, {'.'.join(map(str, EXPORTS))} "
            f"does; take that, or {BY_HAND}"
        )


class Flat(nn.Module):
    """A model as a function from tensors to leaves. Export loses its way in signatures with **kwargs."""

    def __init__(self, model: nn.Module, arguments: Arguments, specs: Callable[[TreeSpec], None]) -> None:
        """specs: is told that of the result, whenever it has run."""
        super().__init__()
        self.model, self.arguments, self.specs = model, arguments, specs
        self.leaves, self.spec = tree_flatten(list(arguments.examples))
        self.training = model.training  # of this module alone: others may be in another mode

    def forward(self, *tensors: Tensor) -> tuple[Any, ...]:
        given = iter(tensors)
        values = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        args, kwargs = self.arguments.call(tree_unflatten(values, self.spec))
        leaves, spec = tree_flatten(theirs(self.model, *args, **kwargs))
        self.specs(spec)
        return tuple(leaves)


def exported(model: nn.Module, arguments: Arguments) -> Exported:
    """The model in its present mode; it is left as it was. Raises PartitionError where it cannot be exported."""
    check_version()
    specs: list[TreeSpec] = []
    flat = Flat(model, arguments, specs.append)
    tensors = of_two_rows([leaf for leaf in flat.leaves if isinstance(leaf, Tensor)])
    rows = {len(tensors[0])} if tensors and tensors[0].dim() else set()
    before = state_of(model)  # export puts equal containers in the place of a module's own
    try:
        try:
            with bearable():
                found = run_export(flat, tensors, lambda size: size > 1)
        except Intricate:
            found = run_export(flat, tensors, lambda size: size in rows)
    except PartitionError as error:
        raise PartitionError(f"{type(model).__name__}: {error}") from error
    except Exception as error:  # export raises what it likes
        if is_ours(error):
            raise
        raise refusal(model, error) from None
    finally:
        restore(before)
    return replace(found, spec=specs[-1])


def run_export(flat: Flat, tensors: tuple[Tensor, ...], is_open: Callable[[int], bool]) -> Exported:
    """Exports the model with those sizes left open that may differ in later calls."""
    sizes = tuple({i: Dim.AUTO for i, n in enumerate(x.shape) if is_open(n)} or None for x in tensors)
    with quiet(), guards_told() as places, lines_noted(), torch.enable_grad(), kept_whole(flat.model) as calls:
        program = theirs(torch.export.export, flat, tensors, dynamic_shapes={"tensors": sizes}, strict=False)
    return Exported(program, flat.spec, calls, places)


def of_two_rows(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """The example, its rows repeated where it has only one: export takes a size of one for what never changes."""
    first = next((x for x in tensors if x.dim()), None)
    if first is None or len(first) != 1:
        return tuple(tensors)
    return tuple(torch.cat([x, x]) if x.dim() and len(x) == 1 else x for x in tensors)


class Guards(logging.Handler):
    """Hears of each guard where it is added: the line of the user's code is on the stack then, and nowhere later."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if "[guard added]" in record.msg and isinstance(record.args, tuple):
            self.places.setdefault(str(record.args[1]), place_here())


@contextmanager
def guards_told() -> Iterator[Mapping[str, str]]:
    logger, heard = logging.getLogger("torch.fx.experimental.symbolic_shapes"), Guards()
    before = logger.level, logger.propagate, logger.handlers
    logger.setLevel(logging.INFO)
    logger.propagate, logger.handlers = False, [heard]
    try:
        yield heard.places
    finally:
        logger.setLevel(before[0])
        logger.propagate, logger.handlers = before[1:]


class WithoutGraphs(io.TextIOBase):
    """Standard error, but for the graph that export prints of what it could not export."""

    def __init__(self) -> None:
        self.before, self.dropped = sys.stderr, False

    def write(self, text: str) -> int:
        dropping = text.lstrip().startswith("def forward(self") or (self.dropped and text == "\n")
        self.dropped = dropping
        return len(text) if dropping else self.before.write(text)

    def flush(self) -> None:
        self.before.flush()


LOGS = ("torch.export", "torch._export", "torch.fx", "torch._dynamo", "torch._subclasses")


@contextmanager
def quiet() -> Iterator[None]:
    """Silences what export logs and warns of: PyTorch's graphs, and attributes that it has itself set."""
    loggers = [logging.getLogger(name) for name in LOGS]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings(), redirect_stderr(WithoutGraphs()):
        warnings.filterwarnings("ignore", message=r"The tensor attributes? ", category=UserWarning)
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)
