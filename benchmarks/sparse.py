"""bppsa beside scipy, torch.sparse and autograd on transposed Jacobians, in one process: medians and ratios.

    python benchmarks/sparse.py                       everything, some two minutes; nothing else should run
    python benchmarks/sparse.py --only products       some parts; the others stay as they were in the file
    python benchmarks/sparse.py --quick               sizes of nothing: only shows that all of it runs
    python benchmarks/sparse.py --show                measures nothing: prints what is kept

Results are kept in benchmarks/results/, a file for each machine. Needs scipy, which the package itself does not.
"""

from __future__ import annotations

from pathlib import Path

from harness.command import Command, run
from harness.parts import Part, names_of
from rows import sparse_chain, sparse_jacobians, sparse_products

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
    command = Command(__doc__, (7, 3), 1).shows()
    command.add_argument("--only", type=names_of(PARTS), default=list(PARTS), help=f"parts: {', '.join(PARTS)}")
    arguments = command.given()
    run(arguments, {part: PARTS[part] for part in arguments.only})


if __name__ == "__main__":
    main()
