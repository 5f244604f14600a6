"""A recorded graph computes what the function computes, with its gradients, for all values; or a reason is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from bppsa.errors import Unsupported
from bppsa.fxpasses.recording.capture import record
from tests.fxpasses.graphs import ops, record_cell, replay
from tests.scan.support import same
from tests.scan.zoo import CASES, B, Example, H, make, random

OWN, VECTOR, SCALE = random(H, H), random(H), random()
DETACHED = OWN.detach()
LINEAR = nn.Linear(H, H).double()


def changed_in_place(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros_like(a)
    total += a
    total.mul_(b).clamp_(min=-1)
    return torch.relu_(total)


def changed_twice(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    c = a * b
    before = c + 1
    c.sigmoid_()
    return before, c


def slices_changed(a: Tensor, b: Tensor) -> Tensor:
    c = a * b
    c[:, 1:3][:, 0] = a[:, 0]
    c[0] += b[1]
    c[1:, -1] = 0.5
    return c * a


def without_gradient(a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        gate = torch.sigmoid(a) * b
        half = gate[:, : H // 2]
    return gate * a + torch.cat([half, half], 1)


def partly_with(a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        gate = a.sigmoid()
        with torch.enable_grad():
            kept = b.tanh()
    return gate * kept


def constants(a: Tensor, b: Tensor) -> Tensor:
    ones = torch.ones(H, dtype=a.dtype)
    return a + ones + torch.tensor(0.25, dtype=a.dtype) * torch.full_like(b, 2.0) - torch.zeros(B, H, dtype=a.dtype)


def views(a: Tensor, b: Tensor) -> Tensor:
    left, right = a.chunk(2, 1)
    third, *_ = b.split([1, 2, 3], 1)
    rows = a.sum(1).unsqueeze(1)
    return torch.cat([right, left], 1) + third * rows + b.t().t() + a.view(B, 2, 3).flatten(1) + b[:, 0:1]


def same_view_twice(a: Tensor, b: Tensor) -> Tensor:
    return a[:, 1:3] * a[:, 1:3] + b[:, 1:3]


def containers(a: Tensor, b: Tensor) -> Any:
    return {"sum": a + b, "parts": [a, (b, 3)], "none": None}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "parameters": lambda a, b: torch.tanh(a @ OWN + functional.linear(b, OWN, VECTOR)) * SCALE,
    "a module": lambda a, b: LINEAR(a) + LINEAR(b).relu(),
    "views of a parameter": lambda a, b: a * VECTOR + a @ OWN[:, :2] @ OWN[:2] + b * OWN[0],
    "a parameter and its detached self": lambda a, b: a @ OWN + b @ DETACHED,
    "a parameter detached on the way": lambda a, b: a @ OWN + b @ OWN.detach(),
    "detach": lambda a, b: a.detach() * b + a,
    "detach of a view": lambda a, b: a[:, 1:].detach() * b[:, 1:] * a[:, 1:],
    "no_grad": without_gradient,
    "enable_grad within no_grad": partly_with,
    "in place": changed_in_place,
    "slices in place": slices_changed,
    "a value from before a change": changed_twice,
    "constants": constants,
    "views": views,
    "one view twice": same_view_twice,
    "containers": containers,
    "normalisation": lambda a, b: (
        functional.layer_norm(a, (H,), VECTOR, b[0], 0.1) + a.var(1, keepdim=True) + b.mean(1, True)
    ),
    "composites": lambda a, b: (
        torch.lerp(a, b, torch.sigmoid(a))
        + torch.addcmul(a, b, a, value=2)
        + torch.addmm(VECTOR, a, OWN, beta=2, alpha=3)
    ),
    "truth values": lambda a, b: torch.where((a > b) & ~(a < 0), a, 0.5) * (b != 0),
    "picked columns": lambda a, b: a @ OWN[:, torch.arange(H).flip(0)],
    "several results": lambda a, b: torch.max(a, 1),
    "checkpoint": lambda a, b: checkpoint(lambda a: torch.tanh(a @ OWN), a, use_reentrant=False) + b,
    "vmap": lambda a, b: torch.vmap(lambda a, b: torch.tanh(a * VECTOR + b))(a, b),
    "scripted": lambda a, b: LINEAR.eval()(a) * torch.nn.Hardtanh()(b),
}


def with_gradients(fn: Callable[..., Any], args: Any) -> tuple[list[Tensor], list[Tensor | None]]:
    outputs = [leaf for leaf in pytree.tree_leaves(fn(*args)) if isinstance(leaf, Tensor)]
    wanted = [*args, OWN, VECTOR, SCALE, *LINEAR.parameters()]
    loss = sum(
        (o * torch.linspace(1, 2, o.numel(), dtype=o.dtype).view_as(o)).sum() for o in outputs if o.requires_grad
    )
    return outputs, list(torch.autograd.grad(loss, wanted, allow_unused=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_recording_is_its_function(name: str) -> None:
    """For other values than it was recorded with, gradients included."""
    fn = FUNCTIONS[name]
    recording = record(fn, (random(B, H), random(B, H)))
    recording.graph.lint()
    for _ in range(3):
        args = random(B, H), random(B, H)
        got, expected = with_gradients(lambda *args: replay(recording, args), args), with_gradients(fn, args)
        same(got[0], expected[0], 1e-12)
        same(got[1], expected[1], 1e-12)


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_cell_is_its_cell(case: Callable[[], Example]) -> None:
    given = make(case)
    recording, _, _ = record_cell(given)
    x = pytree.tree_map(lambda leaf: leaf[1], given.xs)
    assert not torch.equal(x[0] if isinstance(x, tuple) else pytree.tree_leaves(x)[0], torch.zeros(()))
    nexts, ys = replay(recording, (given.carry, x))
    same([*nexts, *ys], pytree.tree_leaves(given.cell(given.carry, x)), 1e-12)


def test_results_keep_their_structure() -> None:
    a, b = random(B, H), random(B, H)
    got = replay(record(containers, (a, b)), (a, b))
    assert (got["none"], got["parts"][1][1]) == (None, 3)
    assert torch.equal(got["parts"][0], a)


def test_what_is_closed_over_is_captured_once() -> None:
    recording = record(lambda a: a @ OWN + a @ OWN * VECTOR + VECTOR, (random(B, H),))
    assert [tensor for tensor, _ in recording.captured] == [OWN, VECTOR] or len(recording.captured) == 2
    assert recording.captured[0][0] is OWN
    assert recording.captured[1][0] is VECTOR
    assert all(node.op == "placeholder" for _, node in recording.captured)


def test_composites_are_written_down_in_parts() -> None:
    recording = record(lambda a: functional.layer_norm(LINEAR(a), (H,)).chunk(2, 1)[0], (random(B, H),))
    assert not {"addmm", "native_layer_norm", "split", "mean"} & set(ops(recording.graph))
    assert {"mm", "sum", "sqrt"} <= set(ops(recording.graph))


def test_a_view_that_changes_nothing_is_no_node() -> None:
    recording = record(lambda a: a.view(B, H).expand(B, H)[:, :], (random(B, H),))
    assert recording.result is recording.arguments[0]


def test_torch_constants_need_no_detach() -> None:
    assert ops(record(lambda a: a + torch.zeros(H, dtype=a.dtype), (random(B, H),)).graph) == ["zeros", "add"]


def reads_stale_view(a: Tensor) -> Tensor:
    c = a * 1
    held = c[:, :2]
    c[:, 1:3].add_(1)
    return held


class Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


BUFFER = torch.zeros(2, H, dtype=torch.float64)


# what the reason must name, and a function of one tensor
def changed_without_gradient(a: Tensor) -> Tensor:
    """Autograd differentiates a.tanh(), and goes on with the numbers of the clamped one."""
    b = a.tanh().clone()
    with torch.no_grad():
        b.clamp_(-0.5, 0.5)
    return b * a


REFUSED: list[tuple[str, Callable[[Tensor], Any]]] = [
    ("aten._local_scalar_dense.default: reads the value", lambda a: a * a.sum().item()),
    ("aten._local_scalar_dense.default", lambda a: a if a.sum() > 0 else -a),
    ("aten._local_scalar_dense.default", lambda a: a * float(a[0, 0])),
    ("aten.clamp_.default: changes a tensor in place and keeps its gradient", changed_without_gradient),
    ("aten.nonzero.default: reads the value", lambda a: a.nonzero()),
    ("reads the value", lambda a: torch.is_nonzero(a[0, 0])),
    ("aten.index.Tensor: reads the value", lambda a: a @ OWN[VECTOR > 0]),
    ("aten.equal.default: reads the value", lambda a: a if torch.equal(a, a) else -a),
    ("numpy: hands a tensor's values", lambda a: torch.from_numpy(a.detach().numpy()) + a),
    ("tolist: hands a tensor's values", lambda a: a * a.tolist()[0][0]),
    ("data_ptr: hands", lambda a: a * (a.data_ptr() > 0)),
    ("aten.rand_like.default: draws random numbers", lambda a: a + torch.rand_like(a)),
    ("aten.rand.default: draws random numbers", lambda a: a + torch.rand(H)),
    ("draws random numbers", functional.dropout),
    ("aten.add_.Tensor: changes an input in place", lambda a: a.add_(1)),
    ("aten.add_.Tensor: changes an input in place", lambda a: a + BUFFER.add_(1)),
    ("aten.add_.Tensor: changes an input in place", lambda a: a + BUFFER[0].add_(1)),
    ("aten.copy_.default", lambda a: BUFFER[0].copy_(a[0])),
    ("is read again through another view", reads_stale_view),
    ("add: writes into out=", lambda a: torch.add(a, a, out=torch.empty_like(a))),
    ("StepBackward: has a gradient of its own", lambda a: Step.apply(a)),
    ("StepBackward", lambda a: {"deep": [torch.tanh(Step.apply(a * VECTOR)) + 1]}),
    ("has a gradient of its own", lambda a: checkpoint(torch.tanh, a, use_reentrant=True)),
    ("register_hook: changes what autograd does", lambda a: (a * 2).register_hook(lambda g: g)),
    ("grad: changes what autograd does", lambda a: torch.autograd.grad((a * a).sum(), a)),
    ("backward: changes what autograd does", lambda a: (a * a).sum().backward()),
    ("changes what autograd does", lambda a: a.data * 2),
    ("requires_grad: asks whether a tensor has a gradient", lambda a: a * 2 if a.requires_grad else a),
    ("is_leaf: asks whether a tensor has a gradient", lambda a: a * 2 if a.is_leaf else a),
    ("grad_fn: asks whether a tensor has a gradient", lambda a: a * 2 if (a + 1).grad_fn is None else a),
    ("layout torch.sparse_coo", lambda a: a.to_sparse()),
]


@pytest.mark.parametrize(("reason", "fn"), REFUSED, ids=[f"{i} {reason}" for i, (reason, _) in enumerate(REFUSED)])
def test_what_a_graph_cannot_say_is_refused(reason: str, fn: Callable[[Tensor], Any]) -> None:
    before = BUFFER.clone()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with pytest.raises(Unsupported) as caught:
        record(fn, (torch.zeros(B, H, dtype=torch.float64),))
    assert reason in str(caught.value.reason)
    assert torch.equal(torch.get_rng_state(), state), "recording draws no numbers"
    assert torch.equal(BUFFER, before), "recording changes nothing"


def test_a_gradient_of_its_own_matters_only_for_gradients() -> None:
    recording = record(Step.apply, (random(B, H),), gradients=False)
    a = random(B, H)
    assert torch.equal(replay(recording, (a,)), (a > 0).double())


def test_how_a_closed_over_tensor_came_about_is_no_part_of_the_function() -> None:
    made = Step.apply(random(H))
    assert len(record(lambda a: a * made, (random(B, H),)).captured) == 1


def test_arguments_are_only_read_for_their_kind() -> None:
    given = torch.full((B, H), torch.nan, dtype=torch.float32)
    recording = record(lambda a: (a * 2, a.shape[0], a.dtype), (given,))
    assert recording.result[1:] == (B, torch.float32)
    assert recording.arguments[0].meta["val"].dtype is torch.float32


def test_hooks_on_saved_tensors_see_no_stand_in() -> None:
    """torch.utils.checkpoint counts what they see, and a call that is repeated is not recorded again."""
    weight = random(H, H)

    def seen(tensor: Tensor) -> Tensor:
        pytest.fail("autograd saved a tensor in sight of the hooks around the recording")

    with torch.autograd.graph.saved_tensors_hooks(seen, seen):
        recording = record(lambda a: torch.tanh(a @ weight), (random(B, H),))
    assert ops(recording.graph) == ["mm", "tanh"]


def test_an_error_of_the_function_comes_through() -> None:
    with pytest.raises(RuntimeError, match="must match"):
        record(lambda a: a + torch.ones(H + 1), (random(B, H),))
