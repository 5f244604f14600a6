"""The ops of torch, by PyTorch's own samples of their arguments, on gradients that hold kept entries alone."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from bppsa.errors import InputError
from bppsa.runtime.sparse_conv.gradient import KeptGradient, gradient_of
from bppsa.runtime.sparse_conv.kept import KeptValues
from tests.pruned.support import holds_all

PARTS, SAMPLES, EVERY = 8, 4, 3  # an op's first samples; each third number is kept
UNKNOWN_NUMBERS = {"empty", "empty_like", "new_empty", "empty_strided", "empty_permuted", "new_empty_strided"}
PASSING = {"nn.functional.dropout3d", "resize_", "resize_as_"}  # squeezed again in the end, or done to a copy
UNSTABLE = {"linalg.lstsq", "svd_lowrank", "pca_lowrank"}  # of matrices that are singular here


@dataclass(frozen=True)
class Call:
    """An op's call; `at` is the place among its arguments' leaves where the gradient is put."""

    name: str
    function: Callable[..., Any]
    leaves: list[Any]
    spec: Any
    at: int

    def run(self, gradient: Tensor) -> tuple[Any, list[Any]]:
        """What it gives, or the error that it raises, and the arguments as they are afterwards."""
        given = [fresh(x) for x in self.leaves]
        given[self.at] = gradient
        first, args, kwargs = tree_unflatten(given, self.spec)
        torch.manual_seed(0)
        try:
            return self.function(first, *args, **kwargs), given
        except Exception as error:  # noqa: BLE001  # whatever PyTorch raises
            return error, []

    def gradient(self) -> KeptGradient:
        x = self.leaves[self.at]
        places = torch.arange(0, x.numel(), EVERY, dtype=torch.int32)
        return gradient_of(KeptValues(x.flatten()[::EVERY].clone(), places, x.shape))


def fresh(x: Any) -> Any:
    return x.clone() if type(x) is Tensor and x.layout is torch.strided else x


def can_be_kept(x: Any) -> bool:
    plain = type(x) is Tensor and x.layout is torch.strided and x.dtype is torch.float64
    return plain and x.dim() > 0 and x.numel() > 0 and x.is_contiguous() and x._base is None


@functools.cache
def infos() -> list[Any]:
    """PyTorch's table takes seconds to import."""
    methods = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    return [info for info in methods.op_db if info.supports_dtype(torch.float64, "cpu")]


def in_a_thread(fn: Callable[[], list[Any]]) -> list[Any]:
    """PyTorch reads all of the stack at each op, in search of a test case of its own: a thread's is not deep."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(fn).result()


def calls(info: Any) -> Iterator[Call]:
    functions = [info.op] + ([info.inplace_variant] if info.inplace_variant is not None else [])
    for sample in in_a_thread(
        lambda: [*islice(info.sample_inputs("cpu", torch.float64, requires_grad=False), SAMPLES)]
    ):
        found, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        for at in (i for i, x in enumerate(found) if can_be_kept(x)):
            for function in functions:
                yield Call(info.name, function, found, spec, at)


def dense(tree: Any) -> list[Any]:
    return [x.to_dense() if isinstance(x, KeptGradient) else x for x in tree_flatten(tree)[0]]


def assert_same(expected: Any, got: Any, numbers: bool) -> None:
    for a, b in zip(dense(expected), dense(got), strict=True):
        if isinstance(a, Tensor):
            assert (type(a), a.dtype, a.shape, a.layout) == (type(b), b.dtype, b.shape, b.layout)
            assert a.layout is not torch.strided or a.stride() == b.stride()
            if numbers:
                torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-12, atol=1e-13)


def changes_form(call: Call, refused: KeptGradient) -> bool:
    """Which a gradient refuses: in PyTorch the tensor has another shape or order in memory afterwards, or has had."""
    numbers = copy.deepcopy(call.gradient().to_dense())
    shape, stride = numbers.shape, numbers.stride()
    call.run(numbers)
    assert refused.shape == refused.to_dense().shape == shape
    return numbers.shape != shape or numbers.stride() != stride or call.name in PASSING


@pytest.mark.parametrize("part", range(PARTS))
def test_ops_give_what_they_give_for_dense_gradients(part: int) -> None:
    tried = 0
    for info in infos()[part::PARTS]:
        for call in calls(info):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                gradient = call.gradient()
                expected, given = call.run(copy.deepcopy(call.gradient().to_dense()))
                got, ours = call.run(gradient)
            if isinstance(expected, Exception):
                assert type(expected) is type(got), call.name
            elif isinstance(got, InputError):
                assert changes_form(call, gradient), f"{call.name}: {got}"
            else:
                assert not isinstance(got, Exception), f"{call.name}: {got}"
                assert_same([expected, given], [got, ours], call.name not in UNKNOWN_NUMBERS | UNSTABLE)
            tried += 1
    assert tried > 100


CHANGES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "set_ nothing": lambda g, other: g.set_(),
    "set_ of a tensor": lambda g, other: g.set_(other[:3]),
    "set_ of a storage": lambda g, other: g.set_(other.untyped_storage(), 0, (2, 3), (3, 1)),
    "resize_ to more": lambda g, other: g.resize_(20, 20),
    "resize_ to less": lambda g, other: g.resize_(2),
    "as_strided_": lambda g, other: g.as_strided_((2, 3), (3, 1)),
    "squeeze_": lambda g, other: g.unsqueeze_(0),
    "out=": lambda g, other: torch.stack([other, other], out=g),
    "swapaxes_": lambda g, other: g.swapaxes_(0, 1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("written", [False, True])
def test_a_form_that_is_refused_leaves_a_gradient_that_can_be_used(
    change: Callable[[Tensor, Tensor], object], written: bool
) -> None:
    places = torch.arange(0, 36, EVERY, dtype=torch.int32)
    g = gradient_of(KeptValues(torch.ones(12, dtype=torch.float64), places, torch.Size((6, 6))))
    if written:
        g[5, 5] = 0
    with pytest.raises(InputError, match="assign a new tensor"):
        change(g, torch.full((6, 6), 3.0, dtype=torch.float64))
    assert g.shape == (6, 6) == g.to_dense().shape
    assert float(g.mul_(0).sum()) == 0
    assert torch.equal(g.add_(2) + 0, torch.full((6, 6), 2.0, dtype=torch.float64))


FOREACH: list[Callable[[list[Tensor], list[Tensor]], Any]] = [
    lambda g, x: torch._foreach_add(g, x, alpha=2),
    lambda g, x: torch._foreach_add(x, g, alpha=2),
    lambda g, x: torch._foreach_add_(x, g, alpha=2),
    lambda g, x: torch._foreach_add_(g, 1.0),
    lambda g, x: torch._foreach_sub_(g, x),
    lambda g, x: torch._foreach_mul(g, torch.tensor(2.0)),
    lambda g, x: torch._foreach_mul_(g, [2.0, 3.0, 4.0]),
    lambda g, x: torch._foreach_div_(g, x),
    lambda g, x: torch._foreach_neg_(g),
    lambda g, x: torch._foreach_zero_(g),
    lambda g, x: torch._foreach_norm(g, 1),
    lambda g, x: torch._foreach_abs(g),
    lambda g, x: torch._foreach_sqrt(torch._foreach_abs(g)),
    lambda g, x: torch._foreach_maximum_(x, g),
    lambda g, x: torch._foreach_clamp_max_(g, 0.1),
    lambda g, x: torch._foreach_lerp_(x, g, 0.3),
    lambda g, x: torch._foreach_addcmul_(x, g, g, 0.5),
    lambda g, x: torch._foreach_addcdiv_(x, g, torch._foreach_exp(g), [1.0, 2.0, 3.0]),
    lambda g, x: torch._foreach_copy_(g, x),
    lambda g, x: torch._foreach_copy_(x, g),
    lambda g, x: torch._foreach_pow(g, 2),
    lambda g, x: torch._foreach_sign(g),
    lambda g, x: torch._amp_foreach_non_finite_check_and_unscale_(g, torch.zeros(1), torch.tensor([0.5])),
    lambda g, x: torch._foreach_max(g),
]


@pytest.mark.parametrize("op", FOREACH)
@pytest.mark.parametrize("holds", [False, True], ids=["kept", "all"])
def test_ops_on_lists_of_kept_and_dense_gradients(op: Callable[..., Any], holds: bool) -> None:
    def made(i: int) -> KeptGradient:
        values = torch.randn(12, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        return gradient_of(KeptValues(values, torch.arange(0, 36, EVERY, dtype=torch.int32), torch.Size((6, 6))))

    ours: list[Tensor] = [made(0), made(1).to_dense(), made(2)]
    if holds:
        ours[2].add_(0)
    assert holds_all(ours[0]) is False
    theirs = [copy.deepcopy(made(i).to_dense()) for i in range(3)]
    others = [[torch.full((6, 6), float(i), dtype=torch.float64) for i in range(3)] for _ in range(2)]
    assert_same([op(theirs, others[0]), theirs, others[0]], [op(ours, others[1]), ours, others[1]], True)
