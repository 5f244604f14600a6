"""What went wrong, where, and the fix: every exception of the project, and the reason why something is left to
PyTorch."""

from __future__ import annotations

import re
from dataclasses import dataclass

AS_A_VOWEL = re.compile(r"[AEIOaeio]|[Uu][np](?!i)|nd|[FHLMNRSX][A-Z]")  # an Embedding, an ndarray, an LSTM


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its type where it says nothing."""
    said = str(error).strip()
    return said.splitlines()[0] if said else type(error).__name__


def kind_of(value: object) -> str:
    """What a message calls it: "a GRU", "an int", "None"."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if AS_A_VOWEL.match(name) else 'a'} {name}"


class BppsaError(Exception):
    """Base of every exception raised here. Its text names the place, the facts and the fix."""


class InputError(BppsaError, RuntimeError):
    """A tensor of the wrong shape, dtype or device: a RuntimeError, as PyTorch raises there."""


class InputValueError(BppsaError, ValueError):
    """A wrong value or rank where PyTorch raises a ValueError."""


class InputIndexError(BppsaError, IndexError):
    """A dimension or a part that is not there, where PyTorch raises an IndexError."""


class ArgumentError(BppsaError, TypeError):
    """An argument that is missing, or of a kind that cannot be used."""


class InputKindError(ArgumentError, AttributeError):
    """No tensor where one is taken, and where PyTorch raises an AttributeError over what it lacks."""


class CarryError(BppsaError, TypeError):
    """What goes into a cell is no pytree of tensors, or what it returns is not (a carry like the one given, y)."""


class StrategyError(BppsaError, ValueError):
    """A value that an option cannot have, and the known ones; or an option that has no effect on what is asked for, and
    the fix."""


class ChainError(BppsaError, RuntimeError):
    """With strict=True: a stage of a feed-forward model that has no rule, or a scan over more memory than allowed; the
    text names module, op, shape and the fix."""


class MachineError(BppsaError, ValueError):
    """BPPSA_MACHINE names a file that holds no record of a machine, BPPSA_ISA instructions that are not known, that the
    CPU lacks, or that the compiler does not know, or a device cannot be measured."""


class ScheduleError(BppsaError, ValueError):
    """A schedule that cannot run: the text names the job, the workers and what they wait for."""


class PartitionError(BppsaError, RuntimeError):
    """A model that cannot be traced, or cut into so many stages; the text names the line, or how many there can be."""


class WorkerError(BppsaError, RuntimeError):
    """A worker failed: the text names it and the job in flight, and carries its traceback where there is one."""


class BuildError(BppsaError, RuntimeError):
    """The system compiler is missing or refused a generated kernel."""


class GradientError(BppsaError, RuntimeError):
    """With BPPSA_CHECK=1: a gradient that is not PyTorch's; the text names it, and by how much it differs."""


class RuleError(BppsaError, NotImplementedError):
    """A transposed Jacobian that no rule gives; the text names the module and its op."""


class BudgetError(BppsaError, MemoryError):
    """A pattern larger than the memory budget; the text names the module, its op, the shape and the non-zeros."""


# Ours for what PyTorch raises over sizes, dtypes, dimensions and kinds of arguments.
OURS: dict[type[Exception], type[BppsaError]] = {
    RuntimeError: InputError,
    ValueError: InputValueError,
    IndexError: InputIndexError,
    TypeError: ArgumentError,
}


@dataclass(frozen=True)
class Reason:
    """Why something is not rewritten: data, printed by `explain`."""

    what: str
    op: str = ""
    mend: str = ""
    path: str = ""  # of the module, or the user's line

    def __str__(self) -> str:
        path = self.path.removesuffix(":")  # of a line that begins a block
        what = ": ".join(part for part in (path, self.op, self.what) if part)
        return f"{what}; {self.mend}" if self.mend else what


class Unsupported(BppsaError):
    """Raised inside the passes, caught at their border: carries the `Reason`."""

    def __init__(self, reason: Reason | str, op: str = "", mend: str = "", path: str = "") -> None:
        """reason: a whole one, which takes nothing beside it, or what it says."""
        if isinstance(reason, Reason) and (op or mend or path):
            raise TypeError("a Reason has its op, mend and path already")
        self.reason = Reason(reason, op, mend, path) if isinstance(reason, str) else reason
        super().__init__(str(self.reason))
