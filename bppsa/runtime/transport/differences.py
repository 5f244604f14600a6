"""Which ranks say what, where they should all say the same."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

_SHOWN = 5
_LONGEST = 300  # characters of a value


class Signatures:
    """What ranks say of steps, pickled."""

    def __init__(self) -> None:
        self.known: dict[int, dict[int, bytes]] = {}  # by step, by rank

    def begin(self, step: int) -> None:
        """Forgets earlier steps."""
        self.known = {number: known for number, known in self.known.items() if number >= step}

    def add(self, step: int, rank: int, signature: bytes) -> str:
        """Says in what a signature differs from the others', "" where it does not."""
        known = self.known.setdefault(step, {})
        known[rank] = signature
        if len(set(known.values())) == 1:
            return ""
        return differences({rank: pickle.loads(each) for rank, each in known.items()})


def differences(tables: Mapping[int, Mapping[str, object]]) -> str:
    """tables: by rank. Each key whose value is not the same on all ranks, with the values; "" where there is none."""
    keys = dict.fromkeys(key for _, table in sorted(tables.items()) for key in table)
    found = [text for key in keys if (text := _difference(key, tables))]
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(found[:_SHOWN]) + more


def _difference(key: str, tables: Mapping[int, Mapping[str, object]]) -> str:
    ranks: dict[str, list[str]] = {}
    for rank, table in sorted(tables.items()):
        ranks.setdefault(str(table[key]) if key in table else "nothing", []).append(str(rank))
    if len(ranks) == 1:
        return ""
    return f"{key}: " + ", ".join(f"{_short(value)} on worker {' and '.join(at)}" for value, at in ranks.items())


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
