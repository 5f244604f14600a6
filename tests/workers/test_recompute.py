"""Activations that are computed again: the same numbers as without, bit by bit, under every schedule."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bppsa import compile, scan
from bppsa.errors import ArgumentError, PartitionError, StrategyError
from bppsa.runtime.recurrent import autograd
from bppsa.schedule import blelloch, ddp, gpipe, zero_bubble
from tests.breadth import alternate
from tests.workers import on_ranks, support, zoo
from tests.workers.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("in_float64")


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.exp())
        return x.exp()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0]


class Block(nn.Module):
    """Draws, has running statistics, changes in place what it has made, and leaves autograd for a while."""

    def __init__(self, draws: bool = True) -> None:
        super().__init__()
        self.draws = draws
        self.up, self.down, self.norm = nn.Linear(4, 6), nn.Linear(6, 4), nn.BatchNorm1d(4)
        self.relu, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.4) if draws else nn.GELU()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.relu(self.up(self.norm(x)))).mul_(1.5)
        with torch.no_grad():
            shift = h.mean(-1, keepdim=True) * (torch.rand_like(h) if self.draws else 0.5)
        h = F.dropout(Scaled.apply((h - shift).tanh()), 0.3 * self.draws, self.training)
        return x + self.down(h) * self.up.weight.std()


class Blocks(nn.Module):
    def __init__(self, checkpoints: bool, draws: bool = True) -> None:
        super().__init__()
        self.blocks, self.checkpoints = nn.ModuleList(Block(draws) for _ in range(5)), checkpoints
        self.blocks[2].up.weight = self.blocks[1].up.weight

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=i == 1) if self.checkpoints and i != 3 else block(x)
        return x.sin()


def model(checkpoints: bool = False) -> Blocks:
    torch.manual_seed(0)
    return Blocks(checkpoints)


def steps(net: nn.Module, case: zoo.Case, **options: Any) -> tuple[Any, int]:
    """Losses, gradients and buffers of two steps, and how often dropout ran in them."""
    torch.manual_seed(1)
    x, found = torch.randn(12, 4), []
    compiled: Any = compile(
        copy.deepcopy(net),
        **case.options,
        loss_fn=nn.MSELoss(),
        seed=3,
        example_inputs=x,
        **options,
    )
    drop = nn.Dropout.forward
    with patch.object(nn.Dropout, "forward", autospec=True, side_effect=drop) as ran:
        for _ in range(2):
            found += [compiled.step(x, x), *support.gradients(compiled).values()]
    return [*found, *compiled.buffers()], ran.call_count


def equal(a: Any, b: Any) -> bool:
    return all(map(torch.equal, a, b))


@pytest.mark.filterwarnings("ignore:None of the inputs:UserWarning")
@pytest.mark.parametrize("name", alternate(zoo.CASES, 5))
def test_checkpoints_in_stages_and_whole_stages_run_again(name: str) -> None:
    case = zoo.CASES[name]
    expected, once = steps(model(), case)
    found, times = steps(model(checkpoints=True), case)
    assert times == once * 9 // 5  # one of five blocks is in no checkpoint
    assert equal(found, expected)
    for recompute in ("full", "selective"):
        found, times = steps(model(), case, recompute=recompute)
        assert times == 2 * once
        assert equal(found, expected)


@pytest.mark.filterwarnings("ignore:None of the inputs:UserWarning")
@pytest.mark.parametrize(("checkpoints", "recompute"), [(True, None), (False, "full"), (False, "selective")])
def test_loss_and_gradients_are_those_of_torchs_checkpoints(checkpoints: bool, recompute: str | None) -> None:
    """In one process, a micro-batch after the other; nothing draws."""
    torch.manual_seed(0)
    plain, x = Blocks(checkpoints=True, draws=False), torch.randn(12, 4)
    own = Blocks(checkpoints, draws=False)
    own.load_state_dict(plain.state_dict())
    loss = torch.zeros(())
    for part in x.chunk(3):
        term = nn.MSELoss()(plain(part), part) / 3
        term.backward()
        loss += term.detach()
    compiled: Any = compile(
        own,
        schedule=zero_bubble(),
        stages=2,
        microbatches=3,
        loss_fn=nn.MSELoss(),
        example_inputs=x,
        recompute=recompute,
    )
    support.close(compiled.step(x, x), loss)
    support.same(support.gradients(own), support.gradients(plain))


def test_what_the_last_op_saves_is_filled() -> None:
    """rrelu saves its noise before it draws it."""
    net = nn.Sequential(nn.Linear(4, 4), nn.RReLU(0.1, 0.9), nn.Linear(4, 4), nn.RReLU(0.1, 0.9))
    expected, _ = steps(net, zoo.Case(gpipe(), 2, 3))
    for recompute in ("full", "selective"):
        assert equal(steps(net, zoo.Case(gpipe(), 2, 3), recompute=recompute)[0], expected)


def test_a_function_chooses_stages() -> None:
    case = zoo.CASES["zero_bubble"]
    asked: list[int] = []
    expected, once = steps(model(), case)
    found, times = steps(model(), case, recompute=lambda s: asked.append(s) or [None, "selective", None][s])
    assert equal(found, expected)
    assert once < times < 2 * once
    assert asked == [0, 1, 2]


def test_a_checkpoint_in_no_stage_of_its_own_has_stages_by_hand_run_again() -> None:
    net = nn.Sequential(*(Block() for _ in range(3)))
    case = zoo.CASES["zero_bubble"]
    results = []
    for recompute in (None, "full", "selective"):
        x = torch.linspace(0, 1, 28).view(7, 4)
        own = copy.deepcopy(net)
        compiled: Any = compile(
            own,
            schedule=case.schedule,
            stages=list(own),
            microbatches=3,
            loss_fn=nn.MSELoss(),
            seed=3,
            recompute=recompute,
        )
        results.append([compiled.step(x, x), *support.gradients(compiled).values(), *compiled.buffers()])
    assert equal(results[1], results[0])
    assert equal(results[2], results[0])


class Counts(nn.Module):
    """Changes what lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).tanh()
        self.seen += 1
        return self.second(y * self.seen.clone()).exp()


def test_what_lasts_is_changed_once() -> None:
    net, case = Counts(), zoo.Case(gpipe(), 1, 3)
    expected, _ = steps(net, case)
    for recompute in ("full", "selective"):
        assert equal(steps(net, case, recompute=recompute)[0], expected)


def test_recurrent_layers_and_regions_run_again() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.out = nn.GRU(4, 4, num_layers=2, dropout=0.4, batch_first=True), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.out(self.gru(x[:, None].expand(-1, 3, -1))[0][:, -1].float())
            return y.to(x.dtype) * x

    net = Recurrent().float()
    x = torch.linspace(-1, 1, 28, dtype=torch.float32).view(7, 4)
    # One worker: autocast's cache of casts is one for all threads, and who empties it changes others' rounding.
    results = []
    for recompute in (None, "full", "selective"):
        compiled: Any = compile(
            copy.deepcopy(net),
            schedule=ddp(),
            stages=2,
            workers=1,
            microbatches=3,
            loss_fn=nn.MSELoss(),
            seed=3,
            recompute=recompute,
        )
        results.append([compiled.step(x, x), *support.gradients(compiled).values()])
    assert equal(results[1], results[0])
    assert equal(results[2], results[0])


class Recurring(nn.Module):
    """A recurrence between layers of each row."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        layer = {"gru": partial(nn.GRU, num_layers=2, dropout=0.3), "lstm": nn.LSTM}.get(kind)
        self.kind, self.before, self.after = kind, nn.Linear(5, 5), nn.Linear(7, 5)
        self.recurrent: nn.Module = layer(5, 7, batch_first=True) if layer else nn.GRUCell(5, 7)

    def step(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.recurrent(x, h)
        return h, h

    def over_time(self, x: Tensor) -> Tensor:
        if isinstance(self.recurrent, nn.RNNBase):
            return self.recurrent(x)[0]
        h, xs, states = x.new_zeros(len(x), 7), x.transpose(0, 1), []
        if self.kind == "scan":
            return scan(self.step, h, xs)[1].transpose(0, 1)
        for x_t in xs:
            h = self.recurrent(x_t, h)
            states.append(h)
        return torch.stack(states, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.over_time(torch.tanh(self.before(x))))


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


@pytest.mark.parametrize("kind", ["gru", "lstm", "loop", "scan"])
def test_recurrences_run_again_by_the_same_kernels(kind: str) -> None:
    """Recurrent layers and scans in a stage; the steps of a loop in one are PyTorch's. The first step, which makes the
    plans, is recomputed as well."""
    torch.manual_seed(0)
    plain, x = nn.Sequential(*(Recurring(kind) for _ in range(2))), torch.randn(8, 20, 5)
    results, counts = [], []
    for how in (None, "full", "selective", *["checkpoint"] * (kind == "lstm")):
        own, checkpoints = copy.deepcopy(plain), how == "checkpoint"
        if checkpoints:
            own = nn.Sequential(*map(Checkpointed, own))
        compiled: Any = compile(
            own,
            schedule=gpipe(),
            stages=2 if checkpoints else list(own),
            microbatches=4,
            loss_fn=nn.MSELoss(),
            seed=3,
            recompute=None if checkpoints else how,
            example_inputs=x,
        )
        with patch.object(autograd, "apply", side_effect=autograd.apply) as ran:
            losses = [compiled.step(x, x) for _ in range(2)]
        results.append([*losses, *support.gradients(compiled).values()])
        counts.append(ran.call_count)
    assert all(equal(result, results[0]) for result in results[1:])
    if kind == "loop":
        assert not any(counts)
    else:
        assert counts[0]
        assert set(counts[1:]) == {2 * counts[0]}
    if kind != "gru":  # whose dropout draws by micro-batch
        for _ in range(2):
            nn.MSELoss()(plain(x), x).backward()
        support.same(dict(zip(support.gradients(plain), results[0][2:], strict=True)), support.gradients(plain))


def test_called_as_a_module() -> None:
    x = torch.linspace(0, 1, 28).view(7, 4).requires_grad_()
    results = []
    for recompute in (None, "full"):
        compiled: Any = compile(model(), schedule=gpipe(), stages=3, microbatches=3, seed=3, recompute=recompute)
        (gradient,) = torch.autograd.grad(compiled(x).square().sum(), x)
        results.append([gradient, *compiled.buffers()])
        compiled.eval()
        with torch.no_grad():
            results[-1].append(compiled(x))
    assert equal(*results)


def test_the_simulated_backward_takes_its_forward_again() -> None:
    x = torch.randn(8, 4)
    net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(4, 4), nn.GELU())))
    ends = {}
    for recompute in (None, "selective", "full"):
        compiled: Any = compile(net, schedule=zero_bubble(), stages=4, recompute=recompute, example_inputs=x)
        timeline = compiled.timeline
        took = {d: timeline.end[1, 0, d] - timeline.start[1, 0, d] for d in "FBW"}
        assert took["F"] == took["W"]
        ends[recompute] = took["B"] / took["F"]
    assert ends[None] == 1
    assert 1 < ends["selective"] < 1.999
    assert ends["full"] == pytest.approx(2)


def test_what_recompute_may_be() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(4, 4)
    with pytest.raises(ArgumentError, match='recompute= takes "full", "selective", or a function'):
        compile(net, schedule=gpipe(), recompute="some")
    with pytest.raises(StrategyError, match="recompute= says nothing with strategy='auto'; give schedule= too"):
        compile(net, recompute="full")
    with pytest.raises(StrategyError, match=r"recompute\(0\) gives 'all' for stage 0; let it give"):
        compile(net, schedule=gpipe(), stages=2, recompute=lambda s: "all", example_inputs=x)
    with pytest.raises(StrategyError, match=r"recompute\(0\) gives True for stage 0; let it give"):
        compile(net, schedule=gpipe(), stages=2, recompute=lambda s: True, example_inputs=x)  # type: ignore[arg-type,return-value]
    with pytest.raises(StrategyError, match="recompute= says nothing with blelloch"):
        compile(nn.GRU(4, 4), schedule=blelloch(K=2), recompute="full")


@pytest.mark.slow
@pytest.mark.parametrize("names", [("fsdp", "zero_bubble", "one_f_one_b", "lpp", "fslpp")])
def test_on_ranks(names: tuple[str, ...]) -> None:
    """Weights of other ranks are fetched for the forward that runs again."""
    jobs = [("recomputed", name, asked) for name in names for asked in ("full", "selective")]
    for told in run_ranks(on_ranks.all_of, 2, [(getattr(on_ranks, name), *args) for name, *args in jobs]):
        for plain, again in told:
            support.close(again, plain, 0.0)


def test_a_checkpoint_by_hand_that_would_draw_again_is_refused() -> None:
    x, plain = torch.randn(6, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    for inner, what in ((nn.Dropout(0.5), "draws random numbers"), (nn.BatchNorm1d(4), "changes running statistics")):
        net = nn.Sequential(nn.Linear(4, 4), Checkpointed(inner))
        with pytest.raises(PartitionError, match=f"use_reentrant=False.: {what} within torch.utils.checkpoint"):
            compile(net, schedule=gpipe(), stages=list(net), example_inputs=x)
    net = nn.Sequential(nn.Linear(4, 4), Checkpointed(plain))
    compiled: Any = compile(net, schedule=gpipe(), stages=list(net), microbatches=2, loss_fn=nn.MSELoss())
    compiled.step(x, x)
    found = support.gradients(net)
    net.zero_grad()
    nn.MSELoss()(net(x), x).backward()
    support.same(found, support.gradients(net))
