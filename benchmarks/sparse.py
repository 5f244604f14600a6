"""bppsa beside scipy, torch.sparse and autograd on transposed Jacobians, in one process: medians and ratios.

    python benchmarks/sparse.py                       everything, some two minutes; nothing else should run
    python benchmarks/sparse.py --only products       some parts; the others stay as they were in the file
    python benchmarks/sparse.py --quick               sizes of nothing: only shows that all of it runs
    python benchmarks/sparse.py --show                measures nothing: prints what is kept

Results are kept in benchmarks/results/, a file for each machine. Needs scipy, which the package itself does not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console

import machine
import sparse_chain
import sparse_jacobians
import sparse_products
import store
from comparison import Options
from parts import Part, measure_part, names_of, show

RESULTS = Path(__file__).parent / "results"

PARTS = {
    "products": Part(sparse_products.product_cases, sparse_products.products),
    "scalings": Part(sparse_products.scaling_cases, sparse_products.scalings),
    "auto": Part(sparse_chain.overhead_cases, sparse_chain.overhead),
    "strategies": Part(sparse_chain.strategy_cases, sparse_chain.strategies),
    "vectors": Part(sparse_products.vector_cases, sparse_products.vectors),
    "values": Part(sparse_jacobians.value_cases, sparse_jacobians.values),
    "jacobian": Part(sparse_jacobians.jacobian_cases, sparse_jacobians.jacobians),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=names_of(PARTS), default=list(PARTS), help=f"parts: {', '.join(PARTS)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, help="interleaved samples of each side (default: 7, with --quick 3)")
    parser.add_argument("--quick", action="store_true", help="keeps nothing unless --results is given")
    parser.add_argument("--show", action="store_true", help="measure nothing, print what is kept")
    parser.add_argument("--results", type=Path, help="folder (default: benchmarks/results)")
    arguments = parser.parse_args()
    folder = arguments.results or (None if arguments.quick else RESULTS)
    console, hardware = Console(), machine.hardware()
    kept = folder and folder / machine.file_name(hardware)
    results: store.Results = store.load(kept) if kept else {}
    results["machine"] = hardware
    torch.set_num_threads(arguments.threads)
    options = Options(arguments.threads, arguments.repeats or (3 if arguments.quick else 7), arguments.quick)
    for name in arguments.only:
        if arguments.show:
            for measured in results.get(name, ()):
                show(name, measured["rows"], console)
            continue
        results[name] = measure_part(name, PARTS[name], options, console)
        if kept:
            store.save(kept, results)


if __name__ == "__main__":
    main()
