"""bppsa.jacobian and bppsa.transposed_jacobian of networks, against PyTorch's autograd; their plans and refusals."""

import math
import re

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import bppsa
from bppsa.api import jacobians
from bppsa.errors import ArgumentError, BudgetError, InputError, RuleError
from tests.sparsity.samples import Random

r = Random(0)
IMAGE = (3, 2, 6, 6)


def local(channels=2, hidden=3):
    convolutions = [nn.Conv2d(a, b, 3, padding=1) for a, b in ((channels, hidden), (hidden, hidden), (hidden, 1))]
    return nn.Sequential(convolutions[0], nn.Tanh(), convolutions[1], nn.ReLU(inplace=True), convolutions[2])


class SqueezeExcite(nn.Module):
    """A residual block with a gate: branches, a broadcast, a normalisation of blocks."""

    def __init__(self):
        super().__init__()
        self.body, self.gate, self.norm = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 1), nn.GroupNorm(1, 2)

    def forward(self, x):
        y = torch.relu(self.body(x))
        return self.norm(x + y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True))))


def classifier():
    convolution = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    return nn.Sequential(convolution, nn.Flatten(), nn.Linear(12, 4), nn.LayerNorm(4), nn.Softmax(1)).eval()


NETWORKS = {
    "local": (local, IMAGE),
    "squeeze-excite": (SqueezeExcite, IMAGE),
    "classifier": (classifier, IMAGE),
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Dropout(), nn.Linear(4, 2)).eval(), (3, 5)),
    "upsample": (lambda: nn.Sequential(nn.Upsample(scale_factor=2), nn.ReflectionPad2d(1), nn.AvgPool2d(3)), IMAGE),
    "pixel shuffle": (lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.PixelShuffle(2), nn.SiLU()), IMAGE),
    "normalised": (lambda: nn.Sequential(nn.Linear(5, 4), nn.RMSNorm(4), nn.LogSoftmax(1)), (3, 5)),
}
NETWORKS |= {
    "several places": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2, bias=False)), (3, 2, 4)),
    "instances": (lambda: nn.Sequential(nn.Conv2d(2, 2, 3), nn.InstanceNorm2d(2, affine=True)), (3, 2, 4, 4)),
    "one number": (lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0), nn.Tanh()), (3, 4)),
    "circular": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), nn.Tanh()), IMAGE),
}
WITHOUT_A_RULE = {
    "one number": (lambda: lambda x: x.prod(1), (3, 4)),
    "cumsum": (lambda: lambda x: x.cumsum(1), (3, 4)),
    "across rows": (lambda: lambda x: x * x.mean(0), (3, 4)),
    "training": (lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), (3, 4)),
}


def reference(model, x):
    """[B, M, N]: of each row of the output with respect to its own row of x."""
    rows = [
        torch.autograd.functional.jacobian(lambda row, b=b: model(torch.cat([x[:b], row[None], x[b + 1 :]]))[b], x[b])
        for b in range(len(x))
    ]
    return torch.stack(rows).reshape(len(x), -1, x[0].numel())


def close(got, expected):
    torch.testing.assert_close(got.expand(expected.shape), expected, rtol=1e-10, atol=1e-10)


def made(factory):
    torch.manual_seed(0)
    model = factory()
    return model.double() if isinstance(model, nn.Module) else model


@pytest.mark.parametrize("name", NETWORKS)
def test_of_a_network(name):
    factory, shape = NETWORKS[name]
    model, seen = made(factory), False
    for seed in range(4):
        x = Random(seed)(*shape)
        expected, jt = reference(model, x), bppsa.transposed_jacobian(model, x)
        close(bppsa.jacobian(model, x).to_dense(), expected)
        alone = bppsa.jacobian_plan(model, x[:1])
        assert alone.report.decisions[0].strategy != "rows"
        close(alone(x[:1]).to_dense(), expected[0])
        close(jt.dense(), expected.mT)
        g = Random(seed)(3, *jt.out_size)
        close(jt.mv(g).flatten(1), torch.einsum("bmn,bm->bn", expected, g.reshape(3, -1)))
        seen = seen | (expected != 0).any(0).T
    assert jt.shape == expected.mT.shape[1:]
    assert torch.equal(jt.pattern.mask(), seen), "the pattern is not that of the values"


class Branches(nn.Module):
    """Two ways from one value to the next, pools that overlap, and a mask for each row."""

    def __init__(self):
        super().__init__()
        self.first, self.left, self.right = (nn.Conv2d(a, 2, k, padding=k // 2) for a, k in ((2, 3), (2, 1), (2, 3)))

    def forward(self, x):
        y = torch.relu(self.first(x))
        return nn.functional.max_pool2d(y + self.left(y) * torch.tanh(self.right(y)), 3, 2, 1)


WRITTEN_OUT = {
    "local": (local, IMAGE),
    "shared by the batch": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 3)), IMAGE),
    "branches": (Branches, IMAGE),
    "mlp": NETWORKS["mlp"],
    "flattened": (lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.SiLU(), nn.Flatten(), nn.Linear(144, 3)), IMAGE),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_by_products(name, monkeypatch):
    monkeypatch.setattr(jacobians, "coloured_ns", lambda jt, colours: math.inf)
    factory, shape = WRITTEN_OUT[name]
    model = made(factory)
    for rows in (1, 3):
        plan = bppsa.jacobian_plan(model, r(rows, *shape[1:]))
        assert plan.report.decisions[0].strategy == "products"
        for _ in range(2):
            x = r(rows, *shape[1:])
            expected, found = reference(model, x), plan(x)
            close(found.to_dense(), expected if rows > 1 else expected[0])
        jt = bppsa.transposed_jacobian(model, x)
        assert found.col_indices().shape[-1] == jt.nnz


def test_what_is_predicted_to_cost_less_is_taken():
    few_products = bppsa.jacobian_plan(made(local), r(1, 2, 12, 12)).report.decisions[0]
    assert few_products.strategy == "products"
    assert few_products.numbers["predicted_ms"] < few_products.numbers["coloured_ms"]
    few_outputs = bppsa.jacobian_plan(nn.Sequential(nn.Linear(60, 50), nn.ReLU(), nn.Linear(50, 1)), torch.zeros(1, 60))
    assert few_outputs.report.decisions[0].strategy == "coloured"


def test_products_beyond_the_budget_are_not_formed():
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 1, 3, padding=1))
    x = torch.zeros(1, 1, 12, 12)
    assert bppsa.jacobian_plan(model, x).report.decisions[0].strategy == "products"
    assert bppsa.jacobian_plan(model, x, budget=110_000).report.decisions[0].strategy == "coloured"


@pytest.mark.parametrize("name", WITHOUT_A_RULE)
def test_without_a_rule(name):
    factory, shape = WITHOUT_A_RULE[name]
    model, x = made(factory), r(*shape)
    buffers = [buffer.clone() for buffer in model.buffers()] if isinstance(model, nn.Module) else []
    plan = bppsa.jacobian_plan(model, x)
    assert plan.report.decisions[0].strategy == "rows"
    close(plan(x).to_dense(), reference(made(factory), x))
    close(bppsa.jacobian(model, x).to_dense(), plan(x).to_dense())
    if buffers:
        assert all(map(torch.equal, buffers, model.buffers()))
    with pytest.raises(RuleError):
        bppsa.transposed_jacobian(model, x)


def test_a_missing_rule_names_module_and_op():
    class Sums(nn.Module):
        def forward(self, x):
            return x.cumsum(1)

    model = nn.Sequential(nn.Linear(4, 4), Sums())
    with pytest.raises(RuleError, match=r"1: aten.cumsum.default: no rule for its transposed Jacobian; kept as a VJP"):
        bppsa.transposed_jacobian(model, torch.zeros(2, 4))


def test_what_no_gradient_reaches_is_zero():
    jt = bppsa.transposed_jacobian(lambda x: torch.zeros_like(x), r(2, 3))
    assert jt.nnz == 0
    assert not jt.mv(r(2, 3)).any()
    assert not bppsa.jacobian(lambda x: (x + 1).detach(), r(2, 3)).to_dense().any()


def test_jacobian_is_csr_and_detached():
    model, x = made(local), r(1, 2, 6, 6).requires_grad_()
    found = bppsa.jacobian(model, x)
    assert found.layout == torch.sparse_csr
    assert not found.requires_grad
    assert found.shape == (36, 72)
    assert bppsa.jacobian(model, r(2, 2, 6, 6)).shape == (2, 36, 72)
    columns = [row.col_indices().tolist() for row in (found,)]
    assert len(columns[0]) == bppsa.transposed_jacobian(model, x).nnz


def test_a_plan_follows_the_weights_and_a_call_the_modules():
    model, x = made(local), r(1, 2, 6, 6)
    plan = bppsa.jacobian_plan(model, x)
    close(bppsa.jacobian(model, x).to_dense(), plan(x).to_dense())
    with torch.no_grad():
        model[0].weight.mul_(2)
    close(plan(x).to_dense(), reference(model, x)[0])
    close(bppsa.jacobian(model, x).to_dense(), reference(model, x)[0])
    model[0].weight = nn.Parameter(r(3, 2, 3, 3))
    model[1] = nn.Sigmoid()
    close(bppsa.jacobian(model, x).to_dense(), reference(model, x)[0])


def test_a_plan_names_what_it_is_for():
    plan = bppsa.jacobian_plan(made(local), r(1, 2, 6, 6))
    with pytest.raises(InputError, match=r"this plan is for x \[1, 2, 6, 6\] torch.float64 on cpu, not \[1, 2, 7, 6\]"):
        plan(r(1, 2, 7, 6))


@pytest.mark.parametrize("layer", [lambda: nn.Conv2d(2, 3, 3), lambda: nn.ConvTranspose2d(2, 3, 3)])
def test_a_mask_takes_entries_away(layer):
    model, x = made(layer), r(2, 2, 5, 5)
    mask = r.mask(*model.weight.shape)
    with torch.no_grad():
        model.weight.mul_(mask)
    full, jt = bppsa.transposed_jacobian(model, x), bppsa.transposed_jacobian(model, x, masks={"weight": mask})
    assert torch.equal(jt.pattern.mask(), full.dense() != 0)
    close(jt.dense(), full.dense())
    close(bppsa.jacobian(model, x, masks={"weight": mask}).to_dense(), reference(model, x))


def test_a_mask_of_several_places_and_one_that_changes():
    model, x = made(lambda: nn.Linear(3, 3, bias=False)), r(2, 4, 3)
    mask = torch.tensor([[True, False, False], [True, True, False], [False, True, False]])
    for kept in (mask, mask.logical_not_()):
        with torch.no_grad():
            model.weight.copy_(r(3, 3) * kept)
        jt = bppsa.transposed_jacobian(model, x, masks={"weight": kept})
        assert jt.nnz == 4 * kept.sum()
        close(jt.dense().mT, reference(model, x)[0])


def test_masks_of_prune_are_found():
    model, x = made(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))), r(2, 6)
    for layer in (model[0], model[2]):
        prune.random_unstructured(layer, "weight", 0.7)
    expected = reference(model, x)
    jt = bppsa.transposed_jacobian(model, x)
    reachable = (model[0].weight_mask.T @ model[2].weight_mask.T) > 0
    assert torch.equal(jt.pattern.mask(), reachable)
    close(bppsa.jacobian(model, x).to_dense(), expected)


@pytest.mark.parametrize(
    ("masks", "text"),
    [
        ({"weight": torch.ones(2, 2, dtype=torch.bool)}, r"bool \[2, 2\]; it must be .* \[3, 2, 3, 3\]"),
        ({"weight": torch.ones(3, 2, 3, 3)}, "torch.float32"),
        ({"wieght": torch.ones(1)}, r"no such parameter; it has weight, bias"),
    ],
)
def test_masks_that_do_not_fit(masks, text):
    with pytest.raises(InputError, match=text):
        bppsa.transposed_jacobian(nn.Conv2d(2, 3, 3), torch.zeros(1, 2, 5, 5), masks=masks)


def test_the_budget_names_module_op_shape_and_non_zeros():
    model = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    text = r"0: aten.convolution.default: J\^T is 512 x 2048 with 33856 non-zeros, .*; raise budget"
    with pytest.raises(BudgetError, match=text):
        bppsa.jacobian(model, torch.zeros(1, 2, 16, 16), budget=1 << 20)
    with pytest.raises(BudgetError, match=r"J is 100 x 100 with 10000 non-zeros"):
        bppsa.jacobian(lambda x: x.cumsum(1), torch.zeros(1, 100), budget=1 << 10)
    jt = bppsa.transposed_jacobian(model, torch.zeros(1, 2, 16, 16), budget=1 << 20)
    assert jt.mv(torch.ones(1, 8, 16, 16)).shape == (1, 2, 16, 16)


CALLS = {"jacobian": bppsa.jacobian, "jacobian_plan": bppsa.jacobian_plan, "operator": bppsa.transposed_jacobian}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_wrong_arguments_are_named(call):
    x, model = torch.zeros(1, 3, 8, 8), nn.Sequential(nn.ReLU(), nn.Sequential(nn.Conv2d(5, 2, 3)))
    with pytest.raises(ArgumentError, match="the model is an int; give a module or function"):
        call(3, x)
    with pytest.raises(ArgumentError, match="x is a list; give a tensor"):
        call(model, [1.0])
    with pytest.raises(InputError, match=r"x \[1, 3, 8, 8\] is torch.int64, which has no derivative"):
        call(nn.Tanh(), x.long())
    with pytest.raises(InputError, match=r"x has no dimension"):
        call(nn.Tanh(), torch.tensor(1.0))
    with pytest.raises(InputError, match=r"^1.0 \(Conv2d\): fails for x \[1, 3, 8, 8\] .*to have 5 channels"):
        call(model, x)
    with pytest.raises(InputError, match=r"^1.0 \(Conv2d\): fails for .* torch.float64"):
        call(model, torch.zeros(1, 5, 8, 8, dtype=torch.float64))


def test_a_plan_takes_tensors():
    with pytest.raises(ArgumentError, match=r"x is None; give a tensor \[1, 2\] torch.float32"):
        bppsa.jacobian_plan(nn.Tanh(), torch.zeros(1, 2))(None)


def test_an_error_of_the_models_own_passes():
    class Own(RuntimeError):
        pass

    def model(x):
        raise Own("mine")

    with pytest.raises(Own):
        bppsa.jacobian(model, torch.zeros(1, 2))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("width", [3, 6])
def test_one_sample_without_its_batch_dimension(call, width):
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, width))
    with pytest.raises(InputError, match=r"x \[6\] is .*; x needs a batch dimension: give x.unsqueeze\(0\), \[1, 6\]"):
        call(model, torch.zeros(6))


class Overwrites(nn.Module):
    def forward(self, x):
        y = x * 1
        y.unfold(-1, 2, 1)[..., 0] = x[..., :3].exp()
        return y


class Turned(nn.Module):
    def forward(self, x):
        y = x * 1
        y.mT[..., :2] = x.mT[..., :2].exp()
        return y


def test_a_write_through_a_transposed_view_has_a_jacobian():
    model, x = nn.Sequential(nn.Tanh(), Turned()), torch.randn(3, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    y = model(x)
    g = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, g)
    found = bppsa.transposed_jacobian(model, x.detach()).mv(g)
    torch.testing.assert_close(found.view_as(expected), expected)


REASONS = {
    "a view of windows": (
        nn.Sequential(nn.Tanh(), Overwrites()),
        r"aten.copy_.default: changes in place what is read again through another view .*; return a new tensor",
    ),
    "dropout": (nn.Sequential(nn.Tanh(), nn.Dropout()), r"1: aten.*: draws random numbers; .* call model.eval\(\)"),
}


@pytest.mark.parametrize("name", REASONS)
def test_the_reason_names_the_module_and_a_mend(name):
    model, text = REASONS[name]
    with pytest.raises(RuleError, match=text):
        bppsa.transposed_jacobian(model, torch.zeros(1, 2, 4, 4))
    assert re.search(text, str(bppsa.jacobian_plan(model, torch.zeros(1, 2, 4, 4)).report))
