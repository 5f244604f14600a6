"""What is tried on ARM: the calls of each kernel, its results, and what the interpreter or float64 has for them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bppsa.codegen.cpu import print_cpp, products, sparse
from bppsa.codegen.language import interpret
from bppsa.codegen.language.ir import Kernel
from bppsa.codegen.lowering.lower import ColumnRun
from bppsa.codegen.sparse_conv import print_conv
from bppsa.codegen.sparse_conv.window import Window
from bppsa.runtime.sparse_conv.entries import Entries
from bppsa.sparsity import Pattern
from bppsa.sparsity.patterns import product
from tests.aarch64.emulated import Job, Room, differs
from tests.codegen.kernels import operands
from tests.codegen.programs import kernels
from tests.triton.models import MODELS, WITH_HEADS, built

DTYPES = {"float": torch.float32, "double": torch.float64}
TOLERANCE = {"float": 2e-5, "double": 1e-12}
ROUNDING = 4  # times as far as the interpreter is from float64 a kernel may be
STEPS, ROWS = 6, 5
WIDTHS = {**dict.fromkeys(MODELS, 20), **dict.fromkeys(WITH_HEADS, 4)}
PASSES = ("forward", "inference", "backward")


@dataclass(frozen=True)
class Result:
    got: Tensor
    expected: Tensor  # float64
    own: float = 0.0  # by how much the interpreter differs in the kernel's dtype


@dataclass(frozen=True)
class Trial:
    """made: for "float" or "double" the job, and what comes of it."""

    name: str
    made: Callable[[str], tuple[Job, list[Result]]]

    def differs(self, real: str) -> tuple[float, bool]:
        """By how much the worst of the results differs, and whether all are within what rounding explains."""
        job, results = self.made(real)
        job.run()
        found = [differs(result.got, result.expected) for result in results]
        fine = [error <= max(TOLERANCE[real], ROUNDING * r.own) for error, r in zip(found, results, strict=True)]
        return float(torch.tensor(found).max()), all(fine)  # NaN if there is one


def trials() -> Iterator[Trial]:
    for model in WIDTHS:
        for i, name in enumerate(PASSES):
            yield Trial(f"{model}, {name}", lambda real, model=model, i=i: sweep(model, i, real))
    yield Trial("products", outer_and_projection)
    yield Trial("sparse products", sparse_product)
    yield Trial("sparse sweep", sparse_vector)
    for stride in (1, 2):
        yield Trial(f"pruned convolution, stride {stride}", lambda real, stride=stride: convolution(real, stride))


def sweep(model: str, part: int, real: str) -> tuple[Job, list[Result]]:
    """One kernel, by one thread, then by two, then with all threads on the columns of few rows."""
    kernel = kernels(built(model, WIDTHS[model]))[part]
    text = print_cpp.printed(kernel, real)
    job, results = Job(text.source), []
    for rows, threads, split in ((ROWS, 1, False), (ROWS, 2, False), (1, 2, text.shares > 1)):
        given = operands(kernel, STEPS, rows, DTYPES[real])
        if model in WITH_HEADS:
            for tensor in given:  # some divide by norms, which are positive
                tensor.abs_().add_(1).div_(2)
        expected, rounded = [clone(t, torch.float64) for t in given], [clone(t, t.dtype) for t in given]
        for tensors in (expected, rounded):
            interpret.run(kernel, tensors, steps=STEPS, rows=rows)
        call_sweep(job, kernel, given, array("q", text.dims), rows, threads, split)
        results += [Result(g, e, differs(r, e)) for g, e, r in zip(given, expected, rounded, strict=True)]
    return job, results


def clone(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """With the same strides."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype).copy_(tensor)


def call_sweep(
    job: Job, kernel: Kernel, given: list[Tensor], dims: array[int], rows: int, threads: int, split: bool
) -> None:
    job.hold(*given)
    strides = [tensor.stride() for tensor in given]
    pointers = array("q", [tensor.data_ptr() for tensor in given])
    first, second = array("q", [s[0] for s in strides]), array("q", [s[1] if len(s) > 1 else 0 for s in strides])
    job.call("bppsa_workspace", dims, rows, threads)
    job.call("bppsa_sweep", pointers, first, second, dims, STEPS, rows, 1, None, 0, threads, int(split), Room())


def outer_and_projection(real: str) -> tuple[Job, list[Result]]:
    """The gradient of a weight, and that of what it is multiplied with."""
    job, results = Job(products.source(real)), []
    for rows, inputs, depth, threads in ((1, 3, 5, 1), (70, 13, 37, 1), (300, 20, 33, 2)):
        generator = torch.Generator().manual_seed(rows)

        def draw(*shape: int, generator: torch.Generator = generator) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=DTYPES[real])

        x, d, w = draw(rows, inputs), draw(rows, depth + 3), draw(depth, inputs)
        runs = (ColumnRun(0, 2, depth),)
        to_w, to_x = torch.zeros(inputs, depth, dtype=x.dtype), torch.zeros_like(x)
        outer, projection = products.OuterProduct(to_w, x, d, runs), products.Projection(to_x, d, w, runs)
        job.hold(x, d, w, to_w, to_x)
        words = array("q", [1, 1, *products.of_outer(outer), *products.of_projection(projection)])
        job.call("bppsa_products_workspace", words, rows, threads)
        job.call("bppsa_products", words, rows, threads, Room())
        own = d.double()[:, 2 : 2 + depth]
        results += [Result(to_w, x.double().t() @ own), Result(to_x, own @ w.double())]
    return job, results


def drawn_pattern(n: int, m: int, seed: int) -> Pattern:
    kept = torch.rand(n, m, generator=torch.Generator().manual_seed(seed)) < 0.3
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), kept.sum(1).cumsum(0)])
    return Pattern(indptr, kept.nonzero()[:, 1].contiguous(), (n, m))


def dense(pattern: Pattern, values: Tensor) -> Tensor:
    """[B, N, M], float64."""
    whole = torch.zeros(len(values), *pattern.shape, dtype=torch.float64)
    rows = torch.arange(pattern.shape[0]).repeat_interleave(pattern.indptr.diff())
    whole[:, rows, pattern.columns.long()] = values.double()
    return whole


def drawn_values(real: str, lanes: bool, samples: int, count: int, seed: int) -> Tensor:
    values = torch.randn(samples, count, generator=torch.Generator().manual_seed(seed), dtype=DTYPES[real])
    return sparse.as_lanes(values, sparse.LANES[real]) if lanes else values


def room(real: str, lanes: bool, samples: int, count: int) -> Tensor:
    empty = torch.full((samples, count), torch.nan, dtype=DTYPES[real])
    return sparse.as_lanes(empty, sparse.LANES[real]) if lanes else empty


def sparse_product(real: str) -> tuple[Job, list[Result]]:
    """C = A B, sample by sample and in lanes."""
    a, b = drawn_pattern(23, 31, 0), drawn_pattern(31, 40, 1)
    plan, samples, (job, results) = product.symbolic(a, b), 5, (Job(sparse.source(real)), [])
    assert plan.slots is not None
    patterns = [t for p in (plan.a, plan.b, plan.c) for t in (p.indptr, p.columns)]
    job.hold(*patterns, plan.starts, plan.slots)
    numbers = [word for p in (plan.a, plan.b, plan.c) for word in sparse.csr(p)]
    words = array("q", [*numbers, plan.starts.data_ptr(), plan.slots.data_ptr(), *plan.c.shape])
    for lanes in (False, True):
        left, right = (drawn_values(real, lanes, samples, p.nnz, i) for i, p in enumerate((a, b)))
        out = room(real, lanes, samples, plan.c.nnz)
        given = [word for t in (left, right, out) for word in (t, sparse.steps(t)[1])]
        more = (b.shape[0], sparse.tile(plan), int(sparse.by_tiles(plan))) if lanes else ()
        job.call(f"bppsa_multiply{'_lanes' * lanes}", words, *given, samples, 2, *more)
        whole = dense(a, left) @ dense(b, right)
        rows = torch.arange(len(whole[0])).repeat_interleave(plan.c.indptr.diff())
        results.append(Result(out, whole[:, rows, plan.c.columns.long()]))
    return job, results


def sparse_vector(real: str) -> tuple[Job, list[Result]]:
    """J^T g, and J^T with its rows and its columns scaled."""
    j, samples, (job, results) = drawn_pattern(29, 37, 2), 5, (Job(sparse.source(real)), [])
    job.hold(j.indptr, j.columns)
    for lanes in (False, True):
        values, g = (drawn_values(real, lanes, samples, count, i) for i, count in enumerate((j.nnz, j.shape[1])))
        out, end = room(real, lanes, samples, j.shape[0]), "_lanes" * lanes
        given = [word for t in (values, g, out) for word in (t, sparse.steps(t)[1])]
        job.call(f"bppsa_mv{end}", sparse.csr(j), j.shape[0], *given, samples, 2)
        results.append(Result(out, (dense(j, values) @ g.double().unsqueeze(2)).squeeze(2)))
        scaled = room(real, lanes, samples, j.nnz)
        given = [word for t in (values, g, scaled) for word in (t, sparse.steps(t)[1])]
        job.call(f"bppsa_scale{end}", sparse.csr(j), j.shape[0], *given, samples, 2, 0, 0)
        results.append(Result(scaled, values.double() * g.double()[:, j.columns.long()]))
    return job, results


def convolution(real: str, stride: int) -> tuple[Job, list[Result]]:
    """A layer's forward, and the gradients of its input, its weight and its bias."""
    samples, inner, outer, side = 19, 5, 7, 6
    window = Window((side, side), (3, 3), (stride, stride), (1, 1))
    generator, dtype = torch.Generator().manual_seed(stride), DTYPES[real]
    x = torch.randn(samples, inner, side, side, generator=generator, dtype=dtype)
    kept = torch.rand(outer, inner, 3, 3, generator=generator) < 0.3
    weight = torch.randn(kept.shape, generator=generator, dtype=dtype) * kept
    bias = torch.randn(outer, generator=generator, dtype=dtype)
    leaves = [t.double().clone().requires_grad_() for t in (x, weight, bias)]
    y = F.conv2d(*leaves, stride=stride, padding=1)
    g = torch.randn(y.shape, generator=generator, dtype=dtype)
    to_x, to_weight, to_bias = torch.autograd.grad(y, leaves, g.double())
    entries, lanes = Entries(kept, window, 1, dtype), print_conv.LANES[real]
    source, cotangent = blocked(x, lanes), blocked(g, lanes)
    target, back = torch.full_like(cotangent, torch.nan), torch.full_like(source, torch.nan)
    values, others = (torch.full((entries.forward.count,), torch.nan, dtype=dtype) for _ in range(2))
    of_weight, of_bias = torch.full_like(weight, torch.nan), torch.full_like(bias, torch.nan)
    blocks, planes = len(source), (side * side * lanes, math.prod(window.out) * lanes)
    job = Job(print_conv.source(window, real))

    def call(name: str, *arguments: Tensor | int | None) -> None:
        job.hold(*(a for a in arguments if isinstance(a, Tensor)))
        numbers = [a.data_ptr() if isinstance(a, Tensor) else int(a or 0) for a in arguments]
        job.call(f"bppsa_{name}", array("q", numbers))

    ahead, behind, count = entries.forward, entries.backward, entries.forward.count
    call("gather", values, entries.places, entries.rank, weight, count, 2)
    sizes = ahead.rows, ahead.chunks, inner, *planes, blocks
    call("forward", source, target, None, ahead.at, ahead.offsets, values, bias, *sizes, 0, 2)
    call("reorder", others, entries.order, values, count, 2)
    back_sizes = behind.rows, behind.chunks, outer, planes[1], planes[0], blocks
    call("backward", cotangent, back, behind.at, behind.offsets, others, None, *back_sizes, 2)
    work = torch.empty(1 << 20, dtype=dtype)
    given = (source, cotangent, None, ahead.at, ahead.offsets, entries.places, entries.rank, of_weight, of_bias)
    call("weights", *given, entries.row_size, *sizes, 0, 2, work)
    results = [
        Result(target, blocked(y.detach(), lanes) + beyond(len(x), blocks, lanes) * bias.double().view(-1, 1, 1, 1)),
        Result(back, blocked(to_x, lanes)),
        Result(of_weight, to_weight * kept),
        Result(of_bias, to_bias),
    ]
    return job, results


def beyond(samples: int, blocks: int, lanes: int) -> Tensor:
    """1 in the lanes that no sample has, where a bias is all there is."""
    return (torch.arange(blocks * lanes) >= samples).double().view(blocks, 1, 1, 1, lanes)


def blocked(x: Tensor, lanes: int) -> Tensor:
    """[B, C, H, W] to [blocks, C, H, W, lanes], zeros beyond the last sample."""
    padded = F.pad(x, (0, 0, 0, 0, 0, 0, 0, -len(x) % lanes))
    return padded.unflatten(0, (-1, lanes)).permute(0, 2, 3, 4, 1).contiguous()
