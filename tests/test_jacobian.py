"""bppsa.transposed_jacobian against torch.func."""

import re

import pytest
import torch
from torch import nn

import bppsa
from bppsa.errors import ArgumentError, InputError
from tests.sparsity.samples import Random

r = Random(0)
IMAGE = (3, 2, 6, 5)

LAYERS = {
    "conv": (nn.Conv2d(2, 3, 3, stride=2, padding=1), IMAGE),
    "transposed conv": (nn.ConvTranspose2d(2, 3, 3, stride=2), IMAGE),
    "relu": (nn.ReLU(), IMAGE),
    "linear": (nn.Linear(5, 4), (3, 5)),
    "flatten": (nn.Flatten(), IMAGE),
    "identity": (nn.Identity(), IMAGE),
}


@pytest.mark.parametrize("name", LAYERS)
def test_of_a_layer(name):
    layer, shape = LAYERS[name]
    layer, x = layer.double(), r(*shape)
    jt = bppsa.transposed_jacobian(layer, x)
    n, m = x[0].numel(), layer(x)[0].numel()
    reference = torch.vmap(torch.func.jacrev(lambda row: layer(row[None])[0]))(x).reshape(-1, m, n).mT

    def close(got, expected=reference):
        torch.testing.assert_close(got.expand(expected.shape), expected, rtol=1e-12, atol=1e-12)

    assert jt.shape == (n, m)
    assert jt.nnz == len(jt.pattern.indices)
    close(jt.dense())
    close(jt.to_sparse_csr().to_dense())
    shared, own = r(m, 4), r(3, m, 4)
    close(jt.mm(shared), reference @ shared)
    close(jt.mm(own), reference @ own)
    g = r(3, *jt.out_size)
    close(jt.mv(g).flatten(1), (reference @ g.reshape(3, m, 1)).squeeze(2))


def test_the_first_convolution_of_vgg11():
    """BPPSA, table 1: 3 to 64 channels, 3 x 3, on images of 32 x 32."""
    jt = bppsa.transposed_jacobian(nn.Conv2d(3, 64, 3, padding=1), torch.zeros(1, 3, 32, 32))
    assert (jt.shape, jt.nnz) == ((3072, 65536), 1_696_512)
    assert jt.to_sparse_csr().shape == (3072, 65536)


def test_mv_takes_rows_in_their_shape_or_flat_and_one_sample():
    x = r(1, 3, 8, 8)
    jt, g = bppsa.transposed_jacobian(nn.Conv2d(3, 4, 3, padding=1).double(), x), r(2, 4, 8, 8)
    expected = jt.mv(g)
    assert expected.shape == (2, 3, 8, 8)
    assert torch.equal(jt.mv(g.flatten(1)), expected.flatten(1))
    torch.testing.assert_close(jt.mv(g[1].flatten()), expected[1].flatten())


def one_scalar_a_row(x):
    return x.tanh().sum(1)


TAKEN = {  # a model, its x, and what mv must not take
    "a larger grid": (nn.Conv2d(3, 4, 3, padding=1), (1, 3, 8, 8), (1, 4, 8, 9)),
    "a sample of another size": (nn.Conv2d(3, 4, 3, padding=1), (1, 3, 8, 8), (255,)),
    "another batch": (nn.Tanh(), (2, 8), (1, 8)),
    "one sample of several": (nn.Tanh(), (2, 8), (8,)),
    "what broadcasts": (nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()), (1, 8), (1,)),
    "a larger window": (nn.MaxPool2d(2), (1, 1, 8, 8), (1, 1, 4, 5)),
    "no dimension": (one_scalar_a_row, (2, 8), ()),
}


@pytest.mark.parametrize("name", TAKEN)
def test_mv_names_the_shapes_it_takes(name):
    model, size, wrong = TAKEN[name]
    model = model.double() if isinstance(model, nn.Module) else model
    jt = bppsa.transposed_jacobian(model, r(*size))
    with pytest.raises(InputError, match=rf"mv takes \[.*\] torch.float64 on cpu, not {re.escape(str(list(wrong)))}"):
        jt.mv(torch.ones(wrong, dtype=torch.float64))


def test_mv_and_mm_name_dtype_device_and_kind():
    jt = bppsa.transposed_jacobian(nn.ReLU(), r(3, 4))
    for product, g in ((jt.mv, r(3, 4)), (jt.mm, r(4, 2))):
        with pytest.raises(InputError, match=r"torch.float64 on cpu, not .* torch.float32 on cpu"):
            product(g.float())
        with pytest.raises(InputError, match=r"torch.float64 on cpu, not .* torch.float64 on meta"):
            product(g.to("meta"))
        with pytest.raises(ArgumentError, match="not a Checked"):
            product(jt)


def test_mm_names_the_shapes_it_takes():
    jt = bppsa.transposed_jacobian(nn.ReLU(), r(3, 4))
    with pytest.raises(InputError, match=r"\[4, K\] or \[3, 4, K\] torch.float64 on cpu, not \[5, 2\]"):
        jt.mm(r(5, 2))


def test_reprs_take_one_line():
    x = torch.zeros(1, 1, 8, 8)
    conv = nn.Conv2d(1, 4, 3, padding=1)
    jt, plan = bppsa.transposed_jacobian(conv, x), bppsa.jacobian_plan(conv, x)
    assert repr(jt) == "Convolution 64 x 256, 1,936 non-zeros"
    assert repr(jt.pattern) == "Pattern 64 x 256, 1,936 non-zeros"
    assert repr(bppsa.transposed_jacobian(nn.Tanh(), r(3, 4))) == "Diagonal 4 x 4, 4 non-zeros, 3 of them"
    assert repr(bppsa.transposed_jacobian(nn.Sequential(conv, nn.Tanh()), x)) == "Network 64 x 256 of 2 ops"
    assert repr(plan).startswith("JacobianPlan for x [1, 1, 8, 8] torch.float32 on cpu: <model> (jacobian; N=64, M=256")
    assert not re.search(r"\n|tensor\(", repr(plan))
