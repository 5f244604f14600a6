"""Products of the transposed Jacobians of pruned VGG-11 layers: scipy, torch.sparse, and ours by plans made before."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Size, Tensor

from bppsa.codegen.cpu.sparse import LANES, as_lanes
from bppsa.runtime.sparse import Kernels
from bppsa.sparsity import Pattern
from bppsa.sparsity.patterns.windows import Windows, conv_plan
from harness.comparison import Options, Row
from harness.timing import Step, interleave, milliseconds, ratio, significant

SAMPLES = LANES["float"]  # as many as a vector has lanes
GOAL, GOAL_A_SAMPLE = 4, 20
WINDOWS = Windows((3, 3), (1, 1), (1, 1), (1, 1))
KERNELS = Kernels()


@dataclass(frozen=True)
class Layer:
    """A convolution 3x3 with padding over a square image, of whose weights a random share is kept."""

    inputs: int
    outputs: int
    size: int

    def __str__(self) -> str:
        return f"{self.inputs}->{self.outputs}@{self.size}"

    def pattern(self, kept: float) -> Pattern:
        mask = torch.rand(self.outputs, self.inputs, 3, 3) < kept
        grid = self.size, self.size
        return (
            conv_plan(WINDOWS, False, 1, Size((self.inputs, *grid)), Size((self.outputs, *grid))).masked(mask).pattern
        )


@dataclass(frozen=True)
class Case:
    first: Layer
    second: Layer
    kept: float
    share: int = 1  # of the rows of the first, one in so many

    def __str__(self) -> str:
        return f"{self.first} x {self.second}"

    def patterns(self) -> tuple[Pattern, Pattern]:
        a = self.first.pattern(self.kept)
        rows = a.shape[0] // self.share
        indptr = a.indptr[: rows + 1]
        return Pattern(indptr, a.indices[: indptr[-1]], (rows, a.shape[1])), self.second.pattern(self.kept)


SMALL, MIDDLE = Layer(512, 512, 2), (Layer(128, 256, 8), Layer(256, 256, 8))
CASES = [
    *(Case(SMALL, SMALL, kept) for kept in (0.01, 0.03, 0.1)),
    *(Case(*MIDDLE, kept) for kept in (0.01, 0.03)),
    Case(Layer(256, 512, 4), Layer(512, 512, 4), 0.1, share=8),
]
QUICK, QUICK_NEXT = Layer(3, 4, 4), Layer(4, 3, 4)


def product_cases(options: Options) -> list[Case]:
    return [Case(QUICK, QUICK_NEXT, 0.3)] if options.quick else CASES


def products(case: Case, options: Options) -> list[Row]:
    torch.manual_seed(0)
    a, b = case.patterns()
    start = time.perf_counter()
    plan = KERNELS.symbolic(a, b)
    symbolic_ms = significant(1e3 * (time.perf_counter() - start))
    left, right = torch.randn(a.nnz), torch.randn(b.nnz)
    many = lanes(a), lanes(b)
    ours = KERNELS.multiply(plan, left, right)
    exact = scipy_csr(a, left.double()) @ scipy_csr(b, right.double())
    row = {
        "product": str(case) + (f", 1 in {case.share} rows" if case.share > 1 else ""),
        "pruned": 1 - case.kept,
        "nnz": [a.nnz, b.nnz, plan.c.nnz],
        "density": significant(plan.density, 3),
        "products": plan.products,
        "slots": plan.slots is not None,
        "symbolic_ms": symbolic_ms,
        "difference": relative(plan.c, ours, exact),
    }
    peers = {
        "scipy": product_of(scipy_csr(a, left), scipy_csr(b, right)),
        "torch": product_of(torch_csr(a, left), torch_csr(b, right)),
    }
    ours_by_way = {
        "ours": lambda: KERNELS.multiply(plan, left, right),
        "lanes": lambda: KERNELS.multiply(plan, *many),
        "lanes_shared": lambda: KERNELS.multiply(plan, many[0], right),  # B of a convolution: the batch shares it
    }
    return [row | measured(peers, ours_by_way, options)]


def scaling_cases(options: Options) -> list[tuple[Layer, float]]:
    return [(QUICK, 0.3)] if options.quick else [(Layer(64, 128, 16), kept) for kept in (0.1, 0.03, 0.01)]


def scalings(case: tuple[Layer, float], options: Options) -> list[Row]:
    """J^T of a convolution times that of the ReLU after it, which drops half of its columns."""
    torch.manual_seed(0)
    layer, kept = case
    a = layer.pattern(kept)
    m = a.shape[1]
    values, passed, diagonal = torch.randn(a.nnz), (torch.randn(m) > 0).float(), Pattern.identity(m)
    many, masks = lanes(a), as_lanes((torch.randn(SAMPLES, m) > 0).float(), SAMPLES)
    how = {"rows": False, "select": True}
    ours = KERNELS.scale(a, values, passed, **how)
    exact = scipy_csr(a, values.double()) @ scipy_csr(diagonal, passed.double())
    row = {"product": f"{layer} x ReLU", "pruned": 1 - kept, "nnz": [a.nnz], "difference": relative(a, ours, exact)}
    peers = {
        "scipy": product_of(scipy_csr(a, values), scipy_csr(diagonal, passed)),
        "torch": product_of(torch_csr(a, values), torch_csr(diagonal, passed)),
    }
    ours_by_way = {
        "ours": lambda: KERNELS.scale(a, values, passed, **how),
        "lanes": lambda: KERNELS.scale(a, many, masks, **how),
        "lanes_shared": lambda: KERNELS.scale(a, values, masks, **how),
    }
    return [row | measured(peers, ours_by_way, options)]


def vector_cases(options: Options) -> list[tuple[Layer, float]]:
    return [(QUICK, 0.3)] if options.quick else [(Layer(64, 128, 16), 0.03), (SMALL, 0.03), (MIDDLE[1], 0.03)]


def vectors(case: tuple[Layer, float], options: Options) -> list[Row]:
    """J^T g, a step of the linear sweep. The batch shares J^T."""
    torch.manual_seed(0)
    layer, kept = case
    a = layer.pattern(kept)
    values, g = torch.randn(a.nnz), torch.randn(1, a.shape[1])
    many = as_lanes(torch.randn(SAMPLES, a.shape[1]), SAMPLES)
    ours, exact = (
        KERNELS.mv(a, values, g)[0].double(),
        torch.from_numpy(scipy_csr(a, values.double()) @ g[0].double().numpy()),
    )
    difference = significant(((ours - exact).norm() / exact.norm()).item(), 2)
    row = {"product": f"{layer} x g", "pruned": 1 - kept, "nnz": [a.nnz], "difference": difference}
    peers = {
        "scipy": product_of(scipy_csr(a, values), g[0].numpy()),
        "torch": product_of(torch_csr(a, values), g[0]),
    }
    each = lanes(a)
    ours_by_way = {
        "ours": lambda: KERNELS.mv(a, values, g),
        "lanes": lambda: KERNELS.mv(a, each, many),
        "lanes_shared": lambda: KERNELS.mv(a, values, many),
    }
    return [row | measured(peers, ours_by_way, options, goals=(None, None))]


def measured(
    peers: dict[str, Step],
    ours: dict[str, Callable[[], Tensor]],
    options: Options,
    goals: tuple[int | None, int | None] = (GOAL, GOAL_A_SAMPLE),
) -> Row:
    """ours: of one sample, and of SAMPLES. Ratios are those to the faster of the peers, of which each takes one sample
    after the other."""
    samples = interleave({**peers, **{way: timed(call) for way, call in ours.items()}}, options.repeats)
    best = samples[min(peers, key=lambda name: milliseconds(samples[name]))]
    batch = [tuple(SAMPLES * second for second in sample) for sample in best]
    return {
        **{f"{name}_ms": milliseconds(taken) for name, taken in samples.items()},
        "ratio": asdict(ratio(best, samples["ours"])),
        "goal": goals[0],
        **{f"{way}_ratio": asdict(ratio(batch, samples[way])) for way in ours if way != "ours"},
        "lanes_goal": goals[1],
    }


def timed(call: Callable[[], Any]) -> Step:
    def step() -> tuple[float]:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start,)

    return step


def product_of(a: Any, b: Any) -> Step:
    return timed(lambda: a @ b)


def lanes(pattern: Pattern) -> Tensor:
    return as_lanes(torch.randn(SAMPLES, pattern.nnz), SAMPLES)


def scipy_csr(pattern: Pattern, values: Tensor) -> scipy.sparse.csr_array:
    parts = values.numpy(), pattern.columns.numpy(), pattern.indptr.int().numpy()
    return scipy.sparse.csr_array(parts, shape=pattern.shape)


def torch_csr(pattern: Pattern, values: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in beta
        return torch.sparse_csr_tensor(pattern.indptr.int(), pattern.columns, values, pattern.shape)


def relative(pattern: Pattern, values: Tensor, exact: scipy.sparse.csr_array) -> float:
    """Norm of the difference over that of the exact."""
    difference = scipy_csr(pattern, values.double()) - exact
    return significant(scipy.sparse.linalg.norm(difference) / scipy.sparse.linalg.norm(exact), 2)
