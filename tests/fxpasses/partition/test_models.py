"""Stages, run one after another, are the model: outputs, gradients, buffers; for batches other than the example's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from bppsa import compile, partition
from bppsa.schedule import gpipe
from tests.breadth import diagonal
from tests.fxpasses.partition import zoo
from tests.fxpasses.partition.support import compare


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("make", "stages"), diagonal(zoo.MODELS, [2, 3, 5, 1]))
def test_equals_the_model(make: type[zoo.Sample], stages: int) -> None:
    model = make()
    args, kwargs = model.inputs(4)
    cut = partition(model, args, stages, example_kwargs=kwargs)
    assert len(cut) == stages
    for B in (4, 2, 7):
        args, kwargs = model.inputs(B)
        compare(model, cut, *args, **kwargs)


@pytest.mark.parametrize("make", zoo.MODELS, ids=lambda make: make.__name__)
def test_is_cut_again_for_the_other_mode(make: type[zoo.Sample]) -> None:
    """With the same weights in each stage."""
    model = make().eval()
    args, kwargs = model.inputs(4)
    cut = partition(model, args, 3, example_kwargs=kwargs)
    compare(model, cut, *args, **kwargs)
    model.train()
    again = cut.again(model, cut.bind(*args, **kwargs))
    compare(model, again, *args, **kwargs)
    for before, after in zip(cut.stages, again.stages, strict=True):
        assert set(after.names.values()) <= set(before.names.values())


@pytest.mark.parametrize("make", zoo.MODELS, ids=lambda make: make.__name__)
def test_leaves_the_model_as_it_was(make: type[zoo.Sample]) -> None:
    model = make()
    args, kwargs = model.inputs(4)
    before, drawn = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    attributes = [dict(module.__dict__) for module in model.modules()]
    partition(model, args, 2, example_kwargs=kwargs)
    after = model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert torch.equal(drawn, torch.get_rng_state())
    assert [module.__dict__.keys() for module in model.modules()] == [old.keys() for old in attributes]
    assert all(module.training for module in model.modules())
    assert not any(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("make", zoo.MODELS, ids=lambda make: make.__name__)
def test_names_are_the_models(make: type[zoo.Sample]) -> None:
    model = make()
    args, kwargs = model.inputs(4)
    cut = partition(model, args, 3, example_kwargs=kwargs)
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    found = set()
    for stage in cut.stages:
        held = dict(stage.module.named_parameters(remove_duplicate=False))
        assert held.keys() <= stage.names.keys()
        held |= dict(stage.module.named_buffers(remove_duplicate=False))
        assert all(held[own] is tensors[name] for own, name in stage.names.items())
        assert all(
            own in (name, f"model.{name}") or name in dict(model.named_parameters())
            for own, name in stage.names.items()
        )
        found.update(stage.names.values())
    assert found >= {name for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("make", zoo.MODELS, ids=lambda make: make.__name__)
def test_values_go_forward_only(make: type[zoo.Sample]) -> None:
    model = make()
    args, kwargs = model.inputs(4)
    cut = partition(model, args, 4, example_kwargs=kwargs)
    for i, value in enumerate(cut.values):
        assert (value.source == -1) == (i < cut.arguments)
        assert list(value.readers) == sorted(set(value.readers))
        assert all(value.source < reader and i in cut.stages[reader].inputs for reader in value.readers)
        assert value.source < 0 or i in cut.stages[value.source].outputs
        assert value.readers or value.source < 0
    assert cut.stages[-1].outputs == ()


def test_parameters_never_travel() -> None:
    model = zoo.TiedEmbedding()
    cut = partition(model, model.inputs(4)[0], 3)
    holders = [s for s, stage in enumerate(cut.stages) if "embedding.weight" in stage.names.values()]
    assert holders[0] == 0
    assert holders[-1] == 2
    assert "embedding.weight" in [stage.names.get("model.head.weight") for stage in cut.stages]
    assert not {value.name for value in cut.values if "weight" in value.name}


def test_compiled_recurrences_stay_whole() -> None:
    model = compile(zoo.Recurrent())
    cut = partition(model, model.inputs(4)[0], 3)
    assert cut.stages[0].module.get_submodule("model.gru") is model.gru
    compare(model, cut, *model.inputs(3)[0])


def test_a_model_without_memory() -> None:
    """Cut on the meta device as it is cut on the CPU."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(8)))
    cut = partition(model, torch.randn(4, 6), 4)
    assert [stage.ops for stage in cut.stages] == [2, 2, 2, 2]


def test_random_nodes_are_named() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6), nn.GRU(6, 6, 2, dropout=0.5))
    cut = partition(model, torch.randn(3, 4, 6), 2)
    drawing = [(stage.module.graph.find_nodes(op="call_module"), dict(stage.draws)) for stage in cut.stages]
    assert [(n.target, n.meta["draws"]) for nodes, named in drawing for n in nodes if n.name in named] == [
        ("model.1", 3),
        ("model.3", 5),
    ]
    assert all(module.training for module in model.modules())


By = Callable[[nn.Module], list[nn.Module]]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(x), self.b(x)


class Join(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"sum": x + y, "product": x * y}


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair, self.drop, self.join = Pair(), nn.Dropout(), Join()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return self.join(*self.pair(self.drop(x)))


def test_modules_by_hand() -> None:
    model = Two()
    cut = partition(model, torch.randn(3, 4), [model.drop, model.pair, model.join])
    assert [stage.draws for stage in cut.stages] == [(("drop", 0),), (), ()]
    assert cut.stages[1].names == {f"model.{name}": name for name, _ in model.named_parameters()}
    compare(model, cut, torch.randn(5, 4, requires_grad=True))


class Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.GRU(4, 4, batch_first=True) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)[0]
        return x


def test_compiled_layers_remember_calls_of_few_steps() -> None:
    x = torch.randn(2, 3, 4)
    compiled = compile(Stacked(), schedule=gpipe(), stages=3, microbatches=2, example_inputs=x)
    assert len(compiled.stages) == 3
