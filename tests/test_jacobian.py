"""bppsa.transposed_jacobian against torch.func."""

import pytest
import torch
from torch import nn

import bppsa
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


def test_mm_names_the_shapes_it_takes():
    jt = bppsa.transposed_jacobian(nn.ReLU(), r(3, 4))
    with pytest.raises(bppsa.errors.InputError, match=r"\[4, K\] or \[B, 4, K\], not \[5, 2\]"):
        jt.mm(r(5, 2))
