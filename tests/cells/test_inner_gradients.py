"""Cells that take gradients themselves: of energies, of losses by which fast weights learn, of dynamics."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import bppsa
from bppsa.errors import BppsaError
from bppsa.frontend.cell import plans
from tests.cells.support import B, Cell, H, Table, fuses, h, random, x
from tests.scan.support import check
from tests.scan.zoo import example

K, M = random(H, H), random(5, H)


def mlp(between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(H, 6), between, nn.Linear(6, 1)).double()


def slope(energy: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    with torch.enable_grad():
        at = at if at.requires_grad else at.detach().requires_grad_()
        (found,) = torch.autograd.grad(energy(at), at, create_graph=True)
    return found


def descends(energy: Callable[[Tensor], Tensor]) -> Cell:
    def cell(z: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        z = z + u
        return torch.tanh(z) - 0.1 * torch.tanh(slope(energy, z)), z

    return cell


ENERGIES: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("Hopfield", lambda z: (0.5 * (z * z).sum(-1) - torch.logsumexp(z @ M.T, -1)).sum()),
    ("softmax", lambda z: ((F.softmax(z @ M.T, -1) @ M - z) ** 2).mean()),
    ("norms", lambda z: F.layer_norm(z, (H,)).pow(3).sum() + z.norm(dim=-1).sum() + z.abs().amax(-1).sum()),
    ("losses", lambda z: F.mse_loss(z, torch.ones_like(z)) + F.smooth_l1_loss(z, torch.zeros_like(z))),
    ("views", lambda z: (torch.stack(z.chunk(2, -1), 1).transpose(1, 2).flatten(1)[:, ::2] * z[:, 1:4]).sum()),
    ("running sums", lambda z: z.cumsum(-1).sin().sum() + torch.where(z > 0, z * z, z.exp()).sum()),
    ("a convolution", lambda z: F.conv1d(z[:, None], M[None, :1, :3], padding=1, stride=2).sin().sum()),
    ("a transposed convolution", lambda z: F.conv_transpose1d(z[:, None], M[None, :1, :3], stride=2).sin().sum()),
    ("a slope's slope", lambda z: slope(lambda q: (q @ K).tanh().sum(), z).pow(2).sum()),
]
BETWEEN = [nn.Tanh(), nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Softplus(), nn.LogSigmoid(), nn.Softshrink(), nn.LayerNorm(6)]


@pytest.mark.parametrize("energy", [row[1] for row in ENERGIES], ids=[row[0] for row in ENERGIES])
def test_down_the_slope_of_an_energy(energy: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    fuses(descends(energy), h(), x(H), K, M)


@pytest.mark.parametrize("between", BETWEEN, ids=lambda between: type(between).__name__)
def test_down_the_slope_of_a_network(between: nn.Module) -> None:
    """On a bias before a kink a slope does not depend: it has no gradient, of which PyTorch makes zeros."""
    net = mlp(between)
    fuses(descends(lambda z: net(z).sum()), h(), x(H), *net.parameters(), absent=True)


def fast(W: Tensor, x: Tensor) -> Tensor:
    return torch.bmm(W, x.unsqueeze(-1)).squeeze(-1)


def by_autograd(W: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    for _ in range(2):
        W = W - 0.05 * slope(lambda at: F.mse_loss(fast(at, x), x @ K, reduction="sum"), W)
    return W, fast(W, x)


def by_func(W: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    W = W - 0.05 * torch.func.grad(lambda at: (fast(at, x) - x @ K).square().sum())(W)
    return W, fast(W, x)


def for_each_row(W: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    def loss(W: Tensor, x: Tensor, wanted: Tensor) -> Tensor:
        return F.mse_loss(W @ x, wanted)

    slopes, losses = torch.func.vmap(torch.func.grad_and_value(loss))(W, x, x @ K)
    return W - 0.05 * slopes, losses


def of_first_order(W: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Nothing flows back through the slope, but through what it is of."""
    with torch.enable_grad():
        at = W.detach().requires_grad_()
        (found,) = torch.autograd.grad((fast(at, x) - x @ K).square().sum(), [at])
    return W - 0.05 * found, fast(W, x)


@pytest.mark.parametrize("cell", [by_autograd, by_func, for_each_row, of_first_order], ids=lambda cell: cell.__name__)
def test_fast_weights(cell: Cell) -> None:
    torch.manual_seed(0)
    fuses(cell, random(B, H, H), x(H), K)


def hamiltonian(state: Any, u: Tensor) -> tuple[Any, Tensor]:
    dq, dp = torch.func.grad(lambda q, p: torch.tanh(torch.cat([q, p], -1) @ K).sum(), argnums=(0, 1))(*state)
    return (state[0] + 0.1 * dp, state[1] - 0.1 * dq + u), dq


def extended_kalman(state: Any, u: Tensor) -> tuple[Any, Tensor]:
    def moved(x: Tensor) -> Tensor:
        return torch.tanh(x @ K)

    slopes = torch.func.vmap(torch.func.jacrev(moved))(state[0])
    return (moved(state[0]) + u, slopes @ state[1] @ slopes.mT + torch.eye(H, dtype=u.dtype)), state[0]


def with_forward_derivatives(state: Any, u: Tensor) -> tuple[Any, Tensor]:
    slopes = torch.func.vmap(torch.func.jacfwd(lambda x: torch.tanh(x @ K)))(state[0])
    moved, moving = torch.func.jvp(lambda x: torch.sin(x @ K), (state[0],), (u,))
    return (moved, slopes @ state[1]), moving


STATES: Table = [("hamiltonian", hamiltonian), ("extended_kalman", extended_kalman), ("jvp", with_forward_derivatives)]


@pytest.mark.parametrize("cell", [cell for _, cell in STATES], ids=[name for name, _ in STATES])
def test_of_several_states(cell: Cell) -> None:
    torch.manual_seed(0)
    carry = (random(B, 3), random(B, 3)) if cell is hamiltonian else (random(B, H), random(B, H, H))
    fuses(cell, carry, x(3 if cell is hamiltonian else H), K)


RAW = random(B, H)
ENCODED = torch.tanh(RAW)


def by_a_parameter(z: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The steps before have read it too, and the carry leads back to them."""
    (found,) = torch.autograd.grad((z @ K).tanh().sum(), K, create_graph=True)
    return torch.tanh(z @ K + u) + found.sum() / 9, z


def by_what_was_computed(z: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Its graph is the user's: it is there for their own backward."""
    (found,) = torch.autograd.grad((z * ENCODED).sum(), ENCODED, create_graph=True)
    return torch.tanh(z + found + u), z


def beyond_what_was_computed(z: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    (found,) = torch.autograd.grad((z * ENCODED).sum(), RAW, create_graph=True, retain_graph=True)
    return torch.tanh(z + found + u), z


def by_a_carry_of_another(state: Any, u: Tensor) -> tuple[Any, Tensor]:
    """The position has been computed from the momentum, in the step before."""
    q, p = state
    (found,) = torch.autograd.grad((q * p).sin().sum(), p, create_graph=True)
    p = p + 0.1 * found + u
    return (torch.tanh(q + p), p), q


def under_a_checkpoint(z: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    y = checkpoint(lambda at: (at @ K).tanh(), z, use_reentrant=False)
    return torch.tanh(z + u * torch.autograd.grad(y.sum(), z, create_graph=True)[0]), z


@pytest.mark.parametrize(
    "cell",
    [by_a_parameter, by_what_was_computed, beyond_what_was_computed, by_a_carry_of_another, under_a_checkpoint],
    ids=lambda cell: cell.__name__,
)
def test_what_a_recording_does_not_show_is_pytorchs(cell: Cell) -> None:
    carry = (h(), h()) if cell is by_a_carry_of_another else h()
    decision = check(example(cell, carry, x(H), K), tolerance=1e-9)
    assert "takes a gradient" in decision.reason


def test_a_recording_keeps_no_weights() -> None:
    def made() -> weakref.ref[Tensor]:
        weight = random(H, H)
        bppsa.scan(lambda z, u: ((n := torch.tanh(z @ weight + u)), n), h(), x(H), strategy="sequential")
        return weakref.ref(weight)

    weights = [made() for _ in range(4)]
    plans._plans.kept.forget(lambda kept: True)
    gc.collect()
    assert sum(weight() is not None for weight in weights) < 2


def test_forward_derivatives_of_products() -> None:
    def cell(z: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        y, slope = torch.func.jvp(lambda at: torch.einsum("bi,ij->bj", at, K), (z,), (u,))
        return torch.tanh(y + slope), z

    fuses(cell, h(), x(H), K)


def test_a_zero_has_its_sign() -> None:
    def cell(z: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        signs = torch.cat([torch.zeros(B, 3).to(z), -torch.zeros(B, 3).to(z)], 1)
        return torch.tanh(torch.copysign(z, signs) + u), z

    fuses(cell, h(), x(H))


def test_what_was_changed_in_place_since() -> None:
    def cell(z: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        y = z.sigmoid()
        loss = (y * y).sum()
        y.mul_(0.5)
        return torch.tanh(torch.autograd.grad(loss, z, create_graph=True)[0] + u), y

    with pytest.raises(BppsaError, match="modified by an inplace operation"):
        bppsa.scan(cell, h(), x(H))


def test_functions_with_a_gradient_of_their_own_beside_it() -> None:
    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(v: Tensor) -> Tensor:
            return (v > 0).to(v)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g / (1 + ctx.saved_tensors[0].abs()) ** 2

    def within(z: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(slope(lambda at: (Spike.apply(at) * at).sum(), z) + u), z

    def beside(z: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.grad(lambda at: torch.tanh(at @ K).sum())(z) + Spike.apply(z + u), z

    for cell in (within, beside):
        assert check(example(cell, h(), x(H), K), tolerance=1e-9).strategy == "pytorch"
