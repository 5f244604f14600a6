"""Every rule against torch.func: a new op is a rule and a row of SAMPLES."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from bppsa.errors import Reason
from bppsa.fxpasses.recording.capture import saving_to
from bppsa.fxpasses.recording.recorder import Recorder
from bppsa.sparsity import add, compose, lookup
from bppsa.sparsity.rules.registry import RULES, rule
from tests.sparsity.functions import FUNCTION_SAMPLES
from tests.sparsity.images import IMAGE_SAMPLES
from tests.sparsity.matrices import MATRIX_SAMPLES
from tests.sparsity.samples import ACROSS, DIAG, ROW_SAMPLES, B, Random, Sample

aten = torch.ops.aten
SAMPLES = [*ROW_SAMPLES, *IMAGE_SAMPLES, *FUNCTION_SAMPLES, *MATRIX_SAMPLES]


def operators_of(sample: Sample, args: Any) -> tuple[list[Tensor], list[list[Any]]]:
    """The op's outputs, and for each of them the operators of each tensor argument."""
    out = sample.op(*args, **sample.kwargs)
    operators = lookup(sample.op)(*args, out=out, **sample.kwargs)
    several = not isinstance(out, Tensor)
    return (list(out), list(map(list, operators))) if several else ([out], [list(operators)])


def as_function(sample: Sample, args: Any, output: int, argument: int) -> tuple[Any, Tensor]:
    """One output of the op as a function of one tensor argument, and that argument."""
    tensors = [a for a in tree_leaves(args) if isinstance(a, Tensor)]

    def function(x: Tensor) -> Tensor:
        swapped = iter([*tensors[:argument], x, *tensors[argument + 1 :]])
        out = sample.op(*tree_map(lambda a: next(swapped) if isinstance(a, Tensor) else a, args), **sample.kwargs)
        return out if isinstance(out, Tensor) else out[output]

    return function, tensors[argument]


def close(got: Tensor, expected: Tensor, rtol: float = 1e-12) -> None:
    torch.testing.assert_close(got.to(expected.dtype), expected, rtol=rtol, atol=rtol)


def check_rows(op: Any, jacobian: Tensor, x: Tensor, y: Tensor, rtol: float) -> Tensor:
    """Compare with the jacobian [*y, *x] of the batch; return bool [N, M], where some row's J^T is not zero."""
    n, m = op.shape
    assert (op.in_size, op.out_size) == (x.shape[1:], y.shape[1:])
    blocks = jacobian.reshape(B, m, B, n).permute(0, 2, 3, 1)  # [B, B, N, M]
    own = torch.arange(B)
    transposed = blocks[own, own]
    assert blocks.flatten(2).abs().sum(2).fill_diagonal_(0).eq(0).all(), "the rows are not independent"
    close(op.dense().expand(B, n, m), transposed, rtol)
    entries, pattern = op.entries(), op.pattern
    assert entries.shape[-1] == pattern.nnz
    close(entries.expand(B, -1), transposed[:, pattern.rows, pattern.indices], rtol)
    assert op.pattern.covers((transposed != 0).any(0))
    return (transposed != 0).any(0)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_rule(sample):
    seen: dict[tuple[int, int], Tensor] = {}
    for seed in range(8):
        args = sample.make(Random(seed))
        outs, operators = operators_of(sample, args)
        assert [op and op.structure for row in operators for op in row] == sample.expected()
        for i, (y, row) in enumerate(zip(outs, operators, strict=True)):
            for j, op in enumerate(row):
                function, x = as_function(sample, args, i, j)
                if op is None:
                    check_no_gradient(function, x)
                    continue
                jacobian = torch.func.jacrev(function)(x)  # [*y, *x], rows of the batch included
                check_product(op, jacobian, x, Random(seed)(*y.shape), sample.rtol)
                if op.structure != ACROSS:
                    seen[i, j] = seen.get((i, j), False) | check_rows(op, jacobian, x, y, sample.rtol)
    for (i, j), mask in seen.items():
        assert torch.equal(operators[i][j].pattern.mask(), mask), "the pattern is wider than needed"


def check_product(op, jacobian, x, g, rtol):
    product = op.mv(g)
    assert product.shape == x.shape
    flat = jacobian.reshape(g.numel(), x.numel()).double()
    close(product, (flat.T @ g.flatten()).view(x.shape), rtol)


def check_no_gradient(function, x):
    if x.is_floating_point():
        x = x.clone().requires_grad_()
        y = differentiable(function, x)
        if y is not None and y.requires_grad:
            (gradient,) = torch.autograd.grad(y.sum(), x, allow_unused=True)
            assert gradient is None or not gradient.any()


def differentiable(function, x):
    """None where PyTorch refuses an argument that requires a gradient, as it does running statistics."""
    try:
        return function(x)
    except RuntimeError as error:
        if "not differentiable with respect to" not in str(error):
            raise
        return None


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_rule_on_meta_tensors(sample):
    """A rule decides nothing on data, and keeps a narrow dtype."""

    def meta(a):
        return a.to("meta", sample.narrow if a.is_floating_point() else a.dtype) if isinstance(a, Tensor) else a

    args = tree_map(meta, sample.make(Random(0)))
    outs, operators = operators_of(sample, args)
    tensors = [a for a in tree_leaves(args) if isinstance(a, Tensor)]
    for y, row in zip(outs, operators, strict=True):
        assert len(row) == len(tensors)
        for x, op in zip(tensors, row, strict=True):
            if op is not None:
                product = op.mv(torch.empty_like(y))
                assert (product.shape, product.dtype, product.device.type) == (x.shape, y.dtype, "meta")


def test_every_rule_has_a_sample():
    assert set(RULES) == {sample.op for sample in SAMPLES}


EDGES = torch.tensor([[-torch.inf, -3.0, -1.0, -0.5], [-0.0, 0.0, 0.5, 1.0], [3.0, 6.0, 25.0, torch.inf]]).double()


UNARY = [s for s in SAMPLES if s.expected() == [DIAG] and s.op is not aten.pow.Tensor_Scalar]


@pytest.mark.parametrize("sample", UNARY, ids=str)
def test_ties_and_bounds_are_pytorchs(sample):
    args = tree_map(lambda a: EDGES if isinstance(a, Tensor) else a, sample.make(Random(0)))
    _, [[op]] = operators_of(sample, args)
    function, x = as_function(sample, args, 0, 0)
    x = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(function(x).sum(), x)
    product = op.mv(torch.ones_like(x))
    torch.testing.assert_close(product, expected, rtol=sample.rtol, atol=sample.rtol, equal_nan=True)


@pytest.mark.parametrize("target", [aten.maximum.default, aten.minimum.default], ids=str)
def test_a_tie_is_shared(target):
    a, b = torch.tensor([[1.0, 2.0, 3.0, torch.nan]]), torch.tensor([[2.0, 2.0, 2.0, 2.0]])
    grads = [t.requires_grad_() for t in (a.clone(), b.clone())]
    expected = torch.autograd.grad(target(*grads).sum(), grads)
    for op, gradient in zip(lookup(target)(a, b, out=target(a, b)), expected, strict=True):
        torch.testing.assert_close(op.mv(torch.ones_like(a)), gradient, rtol=0, atol=0)


def test_amax_shares_between_equal_places():
    x = torch.tensor([[1.0, 3.0, 3.0, 0.0]])
    (op,) = lookup(aten.amax.default)(x, [1], out=x.amax([1]))
    assert op.mv(torch.ones(1)).tolist() == [[0.0, 0.5, 0.5, 0.0]]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_dropped_does_not_leak(bad):
    mask, x = torch.tensor([[True, False]]), torch.tensor([[1.0, -1.0]])
    g = torch.tensor([[2.0, bad]])
    _, taken, other = lookup(aten.where.self)(mask, x, x, out=x)
    assert taken.mv(g).tolist() == [[2.0, 0.0]]
    assert other.mv(g.flip(1)).tolist() == [[0.0, 2.0]]
    (relu,) = lookup(aten.relu.default)(x, out=x.relu())
    assert relu.mv(g).tolist() == [[2.0, 0.0]]
    kept, _ = lookup(aten.masked_fill.Scalar)(x, ~mask, 0.0, out=x)
    assert kept.mv(g).tolist() == [[2.0, 0.0]]


def test_relu_of_nan_passes_the_cotangent_as_pytorch_does():
    x = torch.tensor([[torch.nan]])
    (op,) = lookup(aten.relu.default)(x, out=x.relu())
    assert op.mv(torch.ones(1, 1)).item() == 1


def test_a_derivative_by_autograd_is_had_where_nothing_is_saved():
    x = Random(0)(B, 5)
    with saving_to(Recorder()):
        (op,) = lookup(aten.atan.default)(x, out=x.atan())
    close(op.mv(torch.ones_like(x)), 1 / (1 + x * x))


def test_repeated_argument_adds_up():
    x = Random(0)(B, 5)
    a, b = lookup(aten.mul.Tensor)(x, x, out=x * x)
    total = add(a, b)
    assert total.structure == DIAG
    close(total.dense(), torch.diag_embed(2 * x))


def test_broadcast_is_an_expand_before_the_op():
    r = Random(0)
    narrow, wide = r(B, 1), r(B, 5)
    full = narrow.expand(B, 5)
    (expand,) = lookup(aten.expand.default)(narrow, [B, 5], out=full)
    scale, _ = lookup(aten.mul.Tensor)(full, wide, out=full * wide)
    total = compose(expand, scale)
    close(total.dense(), wide.view(B, 1, 5))
    g = r(B, 5)
    close(total.mv(g), expand.mv(scale.mv(g)))


def test_a_second_rule_is_refused_and_named():
    with pytest.raises(RuntimeError, match=r"aten.tanh.default already has a rule, in bppsa.sparsity.rules.pointwise"):
        rule(aten.tanh.default)(lambda x, *, out: ())


@pytest.mark.parametrize("key", [torch.tanh, aten.tanh, "tanh"])
def test_a_rule_is_keyed_by_an_overload(key):
    with pytest.raises(TypeError, match="OpOverload"):
        rule(key)(lambda x, *, out: ())


def test_a_missing_rule_is_a_reason():
    missing = lookup(aten.cumsum.default)
    assert isinstance(missing, Reason)
    assert "aten.cumsum.default" in str(missing)
