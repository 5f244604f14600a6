"""Linear algebra on a matrix for each row that waits for the carry: the ops and their gradients, filters made of them,
and what runs by PyTorch."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

import bppsa
from bppsa.frontend.call_log import collecting
from bppsa.frontend.cell import plans
from tests.breadth import chosen
from tests.cells.support import Cell, fuses, random
from tests.scan.support import check
from tests.scan.zoo import example

B, T = 3, 5


def mixed(P: Tensor) -> Tensor:
    """Regular, with small numbers on most of the diagonal: rows have to be exchanged."""
    return 0.2 * torch.tanh(P) + torch.eye(P.shape[-1], dtype=P.dtype).roll(1, 0)


def definite(P: Tensor) -> Tensor:
    return 0.2 * P @ P.mT + torch.eye(P.shape[-1], dtype=P.dtype)


def factor(P: Tensor) -> Tensor:
    """Numbers above the diagonal, which nobody may read, are there too."""
    return torch.tanh(P) + 2 * torch.eye(P.shape[-1], dtype=P.dtype)


def accumulated(of: Any) -> Any:
    return lambda P, x: x + of(P)[:, None, None]


OPS: dict[str, Any] = {
    "inv": lambda P, x: torch.linalg.inv(mixed(P)) @ x,
    "inverse": lambda P, x: definite(P).inverse() + x,
    "inv_ex": lambda P, x: torch.linalg.inv_ex(mixed(P)).inverse + x,
    "solve": lambda P, x: torch.linalg.solve(mixed(P), x),
    "solve a vector": lambda P, x: x + torch.linalg.solve(mixed(P), x[:, 0]).unsqueeze(1),
    "solve from the right": lambda P, x: torch.linalg.solve(mixed(P), x[:, :1], left=False) + x,
    "solve by what is the same for all": lambda P, x: torch.linalg.solve(mixed(W[: P.shape[1], : P.shape[1]]), P + x),
    "cholesky": lambda P, x: torch.linalg.cholesky(definite(P)) @ x,
    "cholesky of a triangle": lambda P, x: torch.linalg.cholesky(definite(P) + P.triu(1)) + x,
    "cholesky, upper": lambda P, x: torch.linalg.cholesky(definite(P) + P.tril(-1), upper=True) @ x,
    "cholesky_ex": lambda P, x: (made := torch.linalg.cholesky_ex(definite(P))).L @ x + made.info[:, None, None],
    "cholesky_solve": lambda P, x: torch.cholesky_solve(x, torch.linalg.cholesky(definite(P))),
    "cholesky_solve of any": lambda P, x: torch.cholesky_solve(x, factor(P)),
    "cholesky_solve, upper": lambda P, x: torch.cholesky_solve(x, factor(P), upper=True),
    "cholesky_inverse": lambda P, x: torch.cholesky_inverse(factor(P)) + x,
    "solve_triangular": lambda P, x: torch.linalg.solve_triangular(factor(P), x, upper=False),
    "solve_triangular, upper": lambda P, x: torch.linalg.solve_triangular(factor(P), x[:, :, :1], upper=True) + x,
    "solve_triangular, unit": lambda P, x: torch.linalg.solve_triangular(P, x, upper=False, unitriangular=True),
    "solve_triangular, right": lambda P, x: torch.linalg.solve_triangular(factor(P), x, upper=True, left=False),
    "det": accumulated(lambda P: torch.linalg.det(mixed(P))),
    "slogdet": accumulated(lambda P: (s := torch.linalg.slogdet(mixed(P)))[0] * s[1]),
    "logdet": accumulated(lambda P: torch.logdet(definite(P))),
    "logdet and inverse": lambda P, x: torch.linalg.inv(S := definite(P)) @ x + torch.logdet(S)[:, None, None],
    "matrix_power": lambda P, x: torch.linalg.matrix_power(mixed(P), -2) + x,
    "matrix_exp": lambda P, x: torch.linalg.matrix_exp(P) @ x,
    "matrix_exp of a larger one": lambda P, x: torch.matrix_exp(3 * P).tanh() + x,
    "diagonal": lambda P, x: x * P.diagonal(dim1=-2, dim2=-1).unsqueeze(-1),
    "diagonal beside": lambda P, x: x * P.diagonal(P.shape[1] - 1, 2, 1).unsqueeze(-1),
    "trace": accumulated(lambda P: P.diagonal(dim1=-2, dim2=-1).sum(-1)),
    "diag_embed": lambda P, x: torch.diag_embed(P[:, 0]) + x,
    "tril": lambda P, x: P.tril() @ x.triu(1) + P.triu(-1),
}
SIZES = (1, 2, 3, 5, 8)
W = random(8, 8)


EVERY = [(name, n) for name in OPS for n in SIZES]


@pytest.mark.parametrize(("name", "n"), chosen(EVERY, [(name, SIZES[i % 5]) for i, name in enumerate(OPS)]))
def test_equals_pytorchs(name: str, n: int) -> None:
    torch.manual_seed(0)

    def cell(P: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        P = torch.tanh(OPS[name](P, x))
        return P, P

    fuses(cell, random(B, n, n), random(T, B, n, n), W)


# Filters -------------------------------------------------------------------------------------------------------------


def by_inverse(S: Tensor, C: Tensor) -> Tensor:
    """C S^-1, S the covariance of what is measured and C its covariance with the state."""
    return C @ torch.linalg.inv(S)


def by_cholesky(S: Tensor, C: Tensor) -> Tensor:
    return torch.cholesky_solve(C.mT, torch.linalg.cholesky(S)).mT


def by_solving(S: Tensor, C: Tensor) -> Tensor:
    return torch.linalg.solve(S, C, left=False)


def by_einsum(S: Tensor, C: Tensor) -> Tensor:
    return torch.einsum("bij,bjk->bik", C, torch.inverse(S))


FILTERS = [(by_inverse, 2, 1), (by_cholesky, 4, 2), (by_solving, 3, 3), (by_einsum, 2, 2)]


def kalman(gain: Any, F: Tensor, H: Tensor, Q: Tensor, R: Tensor) -> Cell:
    def cell(state: Any, z: Tensor) -> Any:
        x, P, likelihood = state
        x, P = x @ F.T, F @ P @ F.T + Q @ Q.T
        S, C, error = H @ P @ H.T + R @ R.T, P @ H.T, z - x @ H.T
        K = gain(S, C)
        x = x + (K @ error.unsqueeze(-1)).squeeze(-1)
        P = (torch.eye(len(F), dtype=F.dtype) - K @ H) @ P
        weighed = torch.linalg.solve(S, error)
        likelihood = likelihood - 0.5 * ((error * weighed).sum(-1) + torch.logdet(S))
        return (x, P, likelihood), (x, P.diagonal(dim1=-2, dim2=-1))

    return cell


def parameters(n: int, m: int) -> tuple[Tensor, ...]:
    """F, H, Q, R"""
    torch.manual_seed(0)
    made = torch.eye(n) + 0.1 * torch.randn(n, n), torch.randn(m, n), 0.3 * torch.eye(n), torch.eye(m)
    return tuple(t.double().requires_grad_() for t in made)


def start(n: int, rows: int = B) -> tuple[Tensor, Tensor, Tensor]:
    P = torch.eye(n, dtype=torch.float64).expand(rows, n, n).clone()
    return random(rows, n), P.requires_grad_(), torch.zeros(rows, dtype=torch.float64)


@pytest.mark.parametrize(("gain", "n", "m"), FILTERS)
def test_a_kalman_filter_equals_the_loop(gain: Any, n: int, m: int) -> None:
    own = parameters(n, m)
    fuses(kalman(gain, *own), start(n), random(T, B, m), *own)


# What runs by PyTorch ------------------------------------------------------------------------------------------------


FAIL: dict[str, Any] = {
    "inv": torch.linalg.inv,
    "solve": lambda P: torch.linalg.solve(P, P[:, 0]),
    "cholesky": torch.linalg.cholesky,
}
SINGULAR = torch.tensor([[1.0, 2, 3], [2, 4, 6], [1, 1, 2]]).double()
ZERO_FIRST = torch.tensor([[0.0, 2, 3], [2, 0, 6], [1, 1, 0]]).double()
NEGATIVE = torch.diag(torch.tensor([1.0, -1, 1])).double()


def matrices_of_steps(bad: Tensor) -> tuple[Tensor, Tensor]:
    xs = torch.eye(3).double().expand(T, B, 3, 3).clone()
    xs[2, 1] = bad
    return torch.eye(3).double().expand(B, 3, 3), xs


@pytest.mark.parametrize("name", FAIL)
def test_a_matrix_that_pytorch_refuses_raises_its_error(name: str) -> None:
    """At the user's line, whether it is looked at in the sweep or for all steps at once."""
    P, xs = matrices_of_steps(SINGULAR if name != "cholesky" else NEGATIVE)
    of = FAIL[name]

    def in_sweep(s: Any, x: Tensor) -> Any:
        return (x, s[1] + of(s[0]).flatten(1).sum(1)), s[1]

    def behind(P: Tensor, x: Tensor) -> Any:
        return x, of(P)

    def before(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(h + of(x).flatten(1).sum(1, keepdim=True))
        return h, h

    start = torch.zeros(B, dtype=torch.float64)
    for cell, carry in ((in_sweep, (P, start)), (behind, P), (before, start[:, None])):
        with pytest.raises(torch.linalg.LinAlgError, match=r"Batch element 1") as caught:
            bppsa.scan(cell, carry, xs)
        assert any(entry.frame.code.raw is cell.__code__ for entry in caught.traceback)
        fine = xs.clone()
        fine[2, 1] = torch.eye(3)
        check(example(cell, carry, fine))


def test_what_is_told_instead_of_raised_is_told() -> None:
    P, xs = matrices_of_steps(SINGULAR)

    def cell(s: Any, x: Tensor) -> Any:
        made = torch.linalg.inv_ex(s[0])
        return (x, torch.where(made.info[:, None, None] == 0, made.inverse, s[1])), s[1]

    with collecting() as taken:
        check(example(cell, (P, P), xs))
        check(example(cell, (P, P), matrices_of_steps(torch.eye(3).double())[1]))
    assert [decision.strategy for decision in taken] == ["pytorch", "sequential"]
    assert "singular" in taken[0].reason


def test_rows_are_exchanged() -> None:
    """Zeros on the diagonal, and a pivot that gives an infinity to nobody."""
    P, xs = matrices_of_steps(ZERO_FIRST)
    with collecting() as taken:
        check(example(lambda s, x: ((x, s[1] + torch.linalg.inv(s[0])), s[1]), (P, 0 * P), xs), tolerance=1e-12)
    assert taken[0].strategy == "sequential"


@pytest.mark.parametrize("op", ["inv", "cholesky", "det"])
def test_a_larger_matrix_runs_by_pytorch(op: str) -> None:
    of = getattr(torch.linalg, op)

    def cell(P: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        made = of(definite(P))
        P = torch.tanh(x + made.view(B, *made.shape[1:], *[1] * (3 - made.dim())))
        return P, P

    with collecting() as taken:
        bppsa.scan(cell, random(B, 9, 9), random(T, B, 9, 9))
    line = inspect.getsourcelines(cell)[1] + 1
    assert f"test_matrices.py:{line}: made = of(definite(P)): " in taken[-1].reason
    assert "a matrix of 9 x 9, larger than 8 x 8" in taken[-1].reason


def test_several_matrices_for_each_row_run_by_pytorch() -> None:
    with collecting() as taken:
        bppsa.scan(
            lambda P, x: ((n := torch.linalg.inv(definite(P)) + x), n), random(B, 2, 3, 3), random(T, B, 2, 3, 3)
        )
    assert "several matrices for each row" in taken[-1].reason


ACROSS: dict[str, Any] = {
    "inv": torch.linalg.inv,
    "cholesky": torch.linalg.cholesky,
    "cholesky_inverse": torch.cholesky_inverse,
    "solve": lambda a: torch.linalg.solve(a, a),
    "solve_triangular": lambda a: torch.linalg.solve_triangular(a, a, upper=False),
    "det": lambda a: torch.linalg.det(a) * a,
    "slogdet": lambda a: torch.linalg.slogdet(a)[1] * a,
    "diagonal": lambda a: a.diagonal()[:, None] * a,
    "diag_embed": lambda a: torch.diag_embed(a[:, 0]) * a,
    "tril": torch.tril,
}


@pytest.mark.parametrize("name", ACROSS)
def test_a_matrix_whose_rows_are_the_batch_runs_by_pytorch(name: str) -> None:
    torch.manual_seed(0)
    cell = lambda a, x: ((n := torch.tanh(ACROSS[name](3 * torch.eye(B) + 0.1 * a) + x)), n)  # noqa: E731
    assert check(example(cell, random(B, B), random(T, B, B)), tolerance=1e-9).strategy == "pytorch"


STIFF = 9 * torch.eye(8, dtype=torch.float64) + torch.ones(8, 8, dtype=torch.float64).tril()


def test_rows_are_right_sides_of_what_is_the_same_for_all() -> None:
    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.linalg.solve_triangular(factor(W), torch.tanh(h + x).T, upper=False).T
        return torch.linalg.solve(mixed(W), h.mT).mT + torch.linalg.solve(STIFF, h.mT).mT, h

    fuses(cell, random(B, 8), random(T, B, 8), W)


@pytest.mark.parametrize(("size", "strategy"), [(1.0, "sequential"), (40.0, "pytorch")])
def test_the_exponential_of_a_large_matrix_is_pytorchs(size: float, strategy: str) -> None:
    def cell(P: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.matrix_exp(P - P.mT).sin() * size + x, P

    given = example(cell, random(B, 3, 3), random(T, B, 3, 3))
    assert check(given, tolerance=1e-9).strategy == strategy


ALONE: dict[str, Any] = {
    "x": lambda P, x: P + torch.linalg.cholesky(definite(x)) + torch.linalg.inv(mixed(x)),
    "x and what is the same for all": lambda P, x: P + torch.linalg.solve(mixed(W[:3, :3]), x),
    "what is the same for all and x": lambda P, x: P + torch.linalg.solve(mixed(x), W[:3, :2]).sum(2, keepdim=True),
    "the same for all": lambda P, x: P + x @ torch.linalg.inv(mixed(W[:3, :3])),
    "vectors of x": lambda P, x: P + torch.linalg.solve(mixed(x), x[:, 0]).unsqueeze(1),
}


@pytest.mark.parametrize("name", ALONE)
def test_what_needs_no_carry_stays_pytorchs_own(name: str) -> None:
    def cell(P: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        P = torch.tanh(ALONE[name](P, x))
        return P, P

    fuses(cell, random(B, 3, 3), random(T, B, 3, 3), W)
    assert {plan.recurrence.checks for plan in plans._plans} == {0}
