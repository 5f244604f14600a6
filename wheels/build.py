"""Build the kernels that a wheel holds, for one level of instructions, into a library of an index.

    BPPSA_ISA=x86-64-v3 python -m wheels.build build/kernels

What the index has already is left as it is. The level need not be this machine's.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bppsa.codegen import isa
from bppsa.codegen.cpu import shipped
from wheels import ahead
from wheels.kernels import texts


def main(index: str) -> None:
    """The last line says how many kernels there are, and what they are for."""
    target, counts = isa.chosen(), Counter[str]()
    library = Path(index, shipped.place(target.name, shipped.abi()))
    folder = library.with_suffix("")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        building = []
        for family, text in texts():
            counts[family.partition(",")[0].partition(" with")[0]] += 1
            building.append(pool.submit(ahead.compile_into, folder, text, target))
        objects = []
        for i, done in enumerate(building, 1):
            objects.append(done.result())
            if i % 100 == 0:
                print(f"{target.name}: {i} of {len(building)} kernels", flush=True)
    for old in set(folder.glob("*.o")) - set(objects):  # of another version
        old.unlink()
    ahead.join(objects, library)
    print(f"{target.name}: {counts.total()} kernels: {', '.join(f'{n} {name}' for name, n in counts.items())}")


if __name__ == "__main__":
    main(sys.argv[1])
