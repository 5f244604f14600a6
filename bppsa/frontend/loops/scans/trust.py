"""When a plan is trusted: it gives what its log gives, on other numbers than the call's and on the call's own.

Float32 may not tell: in chaos rounding grows until the numbers are others, and it turns a choice that is nearly even.
Then loop and plan are made once more in float64, which decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, fx

from bppsa.errors import Unsupported, first_line
from bppsa.frontend.call_log import unnoted
from bppsa.frontend.loops.scans.fuse import fuse
from bppsa.frontend.loops.scans.verify import (
    GROWN,
    NAMELESS,
    TOLERANCE,
    Differs,
    OtherNumbers,
    TensorNames,
    check_alike,
    check_numbers,
)
from bppsa.frontend.ordinary import device_of
from bppsa.fxpasses.reroll.find import reroll
from bppsa.fxpasses.reroll.log.doubled import Doubler, in_double
from bppsa.fxpasses.reroll.log.ops import LoggedValue
from bppsa.fxpasses.reroll.log.replay import MOVES, Replay, unmoved
from bppsa.fxpasses.reroll.program import LoopProgram, program_of
from bppsa.fxpasses.theirs import raise_if_ours, theirs

MoveTensor = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Witness:
    """A log and the program that was made of it. result: the values that both give; tensors: what the call gives.
    names: of the result, and of these tensors."""

    program: LoopProgram
    replay: Replay
    result: Sequence[LoggedValue]
    tensors: Mapping[LoggedValue, Tensor]
    names: TensorNames


def is_trusted_in_double(
    witness: Witness,
    run: fx.GraphModule,
    expected: Sequence[Tensor],
    tensors: Sequence[Tensor],
    names: TensorNames,
    random: Tensor | None,
    known: bool,
) -> bool:
    """Whether it took float64 to trust a program. expected: what the call returned, for the given `tensors`, which have
    these names. random: the state of the generator before the call, where it draws. known: whether the same was trusted
    before, on other numbers.

    Raises `Unsupported` where the program is not trusted.
    """
    doubted = False
    if not known:
        try:
            check_moved(witness)
        except OtherNumbers as differs:
            check_in_double(witness, differs)
            doubted = True
    try:
        believe(run, expected, tensors, random, names)
    except OtherNumbers as differs:
        check_log(witness, expected, random, differs)
        if not doubted:
            check_in_double(witness, differs)
        doubted = True
    return doubted


def check_log(witness: Witness, expected: Sequence[Tensor], random: Tensor | None, differs: OtherNumbers) -> None:
    """Raises `Unsupported` where the log, run op by op on the call's own tensors, does not give what the call returned:
    then no rounding is to blame."""
    after = torch.get_rng_state()
    try:
        torch.set_rng_state(after if random is None else random)
        made = witness.replay.run(witness.tensors)
        check_numbers(
            expected, [made[value] for value in witness.result], list(witness.tensors.values()), names=witness.names
        )
    except OtherNumbers as wrong:
        raise wrong from differs
    finally:
        torch.set_rng_state(after)


def check_in_double(witness: Witness, differs: OtherNumbers) -> None:
    """Raises `Unsupported` where loop and scan differ in float64 too."""
    double = Doubler(witness.replay)
    if not double.changes:
        raise differs
    replay, result = Replay(double.log), [double.values[value] for value in witness.result]
    rerolled = reroll(double.log, result, partial(fuse, device=device_of(witness.tensors.values())))
    if all(one.scan is None for one in rerolled.found):
        raise differs
    program = program_of(double.log, rerolled.ops, rerolled.result)
    tensors = {double.values[value]: in_double(tensor) for value, tensor in witness.tensors.items()}
    try:
        for moves in (MOVES, (unmoved,)):
            check_moved(Witness(program, replay, result, tensors, witness.names), moves, GROWN)
    except OtherNumbers as again:
        raise OtherNumbers(replace(again.reason, what=f"{again.reason.what}, in float64 too")) from differs


def check_moved(
    witness: Witness, moves: Sequence[MoveTensor] = MOVES, tolerance: Mapping[torch.dtype, float] = TOLERANCE
) -> None:
    """Raises `Unsupported` where the program and the log, on other numbers than the call's, do not give the same."""
    state = torch.get_rng_state()
    try:
        given, expected = others(witness, moves)
        torch.set_rng_state(state)
        with unnoted():
            ours = ran(witness.program.run, [given[value] for value in witness.program.given])
    finally:
        torch.set_rng_state(state)
    check_numbers(expected, ours, list(given.values()), tolerance, witness.names)


def others(witness: Witness, moves: Sequence[MoveTensor]) -> tuple[dict[LoggedValue, Tensor], list[Tensor]]:
    """Other numbers for what is given, and what the log makes of them.

    Raises `Unsupported` where it cannot be run again.
    """
    state = torch.get_rng_state()
    for move in moves:
        generator = torch.Generator().manual_seed(0)
        given = {value: move(tensor, generator) for value, tensor in witness.tensors.items()}
        torch.set_rng_state(state)
        try:
            made = witness.replay.run(given)
        except RuntimeError as error:  # as a probability above one is
            raise_if_ours(error)
            failed = error
            continue
        expected = [made[value] for value in witness.result]
        if move is unmoved or not any(map(has_nan, expected)):
            return given, expected
    raise Unsupported(f"its ops do not run again: {first_line(failed)}") from failed


def has_nan(tensor: Tensor) -> bool:
    return bool(torch.isnan(tensor).any())


def believe(
    run: fx.GraphModule,
    expected: Sequence[Tensor],
    tensors: Sequence[Tensor],
    random: Tensor | None,
    names: TensorNames = NAMELESS,
) -> None:
    """Raises `Unsupported` where the program, run on the same tensors and random numbers, gives something else."""
    after = torch.get_rng_state()
    try:
        if random is not None:
            torch.set_rng_state(random)
        with unnoted():
            ours = ran(run, tensors)
        if random is not None and not torch.equal(torch.get_rng_state(), after):
            raise Differs("draws other random numbers than PyTorch")
    finally:
        if random is not None:
            torch.set_rng_state(after)
    check_alike(expected, ours, tensors, names)


def ran(program: fx.GraphModule, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """What a program returns; where PyTorch's ops take what it gives them for wrong, it is none."""
    try:
        results: Sequence[Tensor] = theirs(program, *tensors)
    except RuntimeError as error:
        raise_if_ours(error)
        raise Unsupported(f"its ops do not run as a graph: {first_line(error)}") from error
    return results
