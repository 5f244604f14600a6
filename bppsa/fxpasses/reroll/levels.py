"""What each op of a step waits for: nothing that changes, what each step is given, or the step before."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from bppsa.fxpasses.reroll.log.ops import LoggedOp, draws
from bppsa.fxpasses.reroll.repetition.relate import Made, Outside, UnrolledLoop, VaryingNumber


class Level(IntEnum):
    SAME = 0  # in all steps
    GIVEN = 1  # to the step from outside
    CARRIED = 2


def levels(loop: UnrolledLoop, model: Sequence[LoggedOp]) -> list[Level]:
    """The level of each op of a step. model: the ops of one step."""
    roots = recurrent(loop)
    carried = reaching(loop, roots)
    numbers = of_numbers(loop, model, carried)
    if not roots <= numbers:
        carried -= numbers
    found: list[Level] = []
    for j, relations in enumerate(loop.relations):
        if j in carried:
            found.append(Level.CARRIED)
        elif draws(model[j]) or any(changes(relation, found) for relation in relations):
            found.append(Level.GIVEN)
        else:
            found.append(Level.SAME)
    return found


def of_numbers(loop: UnrolledLoop, model: Sequence[LoggedOp], carried: set[int]) -> set[int]:
    """Returns the ops that make single numbers of nothing but such numbers and what waits for no carry: a counter that
    is a tensor is computed by PyTorch before the others, which are given what it is in each step."""
    found = {j for j in carried if not any(value.shape for value in model[j].outs)}

    def waiting() -> set[int]:
        others = carried - found
        return {
            j
            for j in found
            if any(isinstance(relation, Made) and relation.op in others for relation in loop.relations[j])
        }

    while for_others := waiting():
        found -= for_others
    return found


def changes(relation: object, found: Sequence[Level]) -> bool:
    if isinstance(relation, Made):
        return relation.before > 0 or found[relation.op] is not Level.SAME
    return isinstance(relation, VaryingNumber) or (isinstance(relation, Outside) and not relation.is_same)


def recurrent(loop: UnrolledLoop) -> set[int]:
    """Ops that read, over some steps, what they have made themselves."""
    reads = [{relation.op for relation in relations if isinstance(relation, Made)} for relations in loop.relations]
    crossing = {
        (j, relation.op)
        for j, relations in enumerate(loop.relations)
        for relation in relations
        if isinstance(relation, Made) and relation.before > 0
    }
    return {made for reader, made in crossing if reader in above(reads, made)}


def above(reads: Sequence[set[int]], op: int) -> set[int]:
    """`op`, and all that it is computed from."""
    found, waiting = {op}, [op]
    while waiting:
        new = reads[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def reaching(loop: UnrolledLoop, roots: set[int]) -> set[int]:
    """`roots` and all ops that wait for one of them, over any number of steps."""
    found = set(roots)
    grew = bool(found)
    while grew:
        before = len(found)
        for j, relations in enumerate(loop.relations):
            if any(isinstance(relation, Made) and relation.op in found for relation in relations):
                found.add(j)
        grew = len(found) > before
    return found
