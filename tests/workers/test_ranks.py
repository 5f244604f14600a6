"""The same models on ranks of a process group: losses, gradients and what each rank holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bppsa import compile
from bppsa.schedule import ddp
from tests.breadth import ALL
from tests.workers import on_ranks, support, zoo
from tests.workers.ranks import run_ranks

SOME = ("gpipe", "zero_bubble", "ddp", "fsdp", "lpp", "fslpp", "lpp, 4")  # their jobs take half a minute by themselves
CASES = [name for name in on_ranks.CASES if ALL or name in SOME]
TWO = [name for name in CASES if not name.endswith(", 4")]
FOUR = [name for name in CASES if name.endswith(", 4")]
SPLIT = ("gpipe", "zero_bubble", "fsdp", "wavelet_dp")
pytestmark = pytest.mark.xdist_group("ranks")  # the jobs run once, on one of the tests' workers


class Ran:
    """Jobs that are done when the first of them is asked for, in one group."""

    def __init__(self, size: int, jobs: dict[str, on_ranks.Job]) -> None:
        self.size, self.jobs = size, jobs
        self.found: dict[str, list[Any]] = {}

    def __getitem__(self, name: str) -> list[Any]:
        """By rank."""
        if not self.found:
            results = run_ranks(on_ranks.all_of, self.size, list(self.jobs.values()), timeout=200)
            self.found = {job: [of_rank[i] for of_rank in results] for i, job in enumerate(self.jobs)}
        return self.found[name]


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    jobs: dict[str, on_ranks.Job] = {f"steps {name}": (on_ranks.steps, name) for name in TWO}
    jobs |= {f"bits {name}": (on_ranks.bits, name) for name in SPLIT}
    jobs |= {f"module {name}": (on_ranks.as_module, name) for name in SPLIT}
    jobs |= {f"clip {name}": (on_ranks.clipped, name) for name in ("lpp", "ddp", "fsdp")}
    jobs |= {f"train {name}": (on_ranks.trained, name) for name in ("lpp", "fsdp")}
    jobs |= {f"local {name}": (on_ranks.local_rows, name) for name in ("ddp", "fsdp")}
    jobs |= {f"meta {name}": (on_ranks.from_meta, name) for name in ("lpp", "fsdp", "ddp")}
    jobs |= {f"noise {name}": (on_ranks.noisy, name) for name in ("gpipe", "ddp", "fsdp")}
    jobs |= {f"norm {name}": (on_ranks.normed, name) for name in ("gpipe", "ddp", "fsdp", "lpp")}
    for change in on_ranks.CHANGES:
        jobs |= {f"{change} {name}": (on_ranks.changed, name, change) for name in ("lpp", "ddp", "fsdp")}
    jobs["told"] = (on_ranks.told,)
    folder = tmp_path_factory.mktemp("checkpoint")
    jobs["checkpoint"] = (on_ranks.through_a_checkpoint, "lpp", "fsdp", str(folder))
    return Ran(2, jobs)


@pytest.fixture(scope="module")
def on_four() -> Ran:
    return Ran(4, {name: (on_ranks.steps, name) for name in FOUR})


def test_a_rank_that_owns_no_weights_is_told(on_two: Ran) -> None:
    first, second = on_two["told"]
    assert not first
    assert "rank 1 owns no weights under fsdp" in second[0]


def expected(rows: int, model: zoo.Drawn | None = None) -> tuple[zoo.Drawn, Tensor, Any, list[Tensor]]:
    """The model after a step in this process, its loss, outputs, and gradients of inputs."""
    model = model or on_ranks.model_of()
    x, other, target = on_ranks.batch(rows)
    output = model(x, other)
    loss = support.loss_of(output, target)
    loss.backward()
    return model, loss.detach(), output, [x.grad, other["y"].grad]


def check_gradients(by_rank: list[dict[str, Tensor | None]], model: zoo.Drawn) -> None:
    """Each rank has the whole gradient of what it owns, and each Parameter has an owner."""
    whole = support.gradients(model)
    for found in by_rank:
        support.same(found, {name: whole[name] for name in found})
    assert {name for found in by_rank for name in found} == set(whole)


def check_steps(by_rank: list[list[on_ranks.Seen]]) -> None:
    model = None
    for step, rows in enumerate((7, 1)):
        model, loss, output, of_inputs = expected(rows, model)
        for seen in (found[step] for found in by_rank):
            support.close(seen.loss, loss)
            support.close(seen.outputs, output)
            support.close(seen.of_inputs, of_inputs)
            assert seen.receives[0] == seen.receives[1]
        check_gradients([found[step].grads for found in by_rank], model)


@pytest.mark.parametrize("name", TWO)
def test_steps_are_the_models(on_two: Ran, name: str) -> None:
    check_steps(on_two[f"steps {name}"])


@pytest.mark.parametrize("name", FOUR)
def test_steps_on_four_ranks_are_the_models(on_four: Ran, name: str) -> None:
    check_steps(on_four[name])


@pytest.mark.parametrize("name", [name for name in TWO if name != "wavelet_dp"])  # whose lanes take turns freely
def test_peaks_are_the_simulators(on_two: Ran, name: str) -> None:
    for found in on_two[f"steps {name}"]:
        assert all(simulated == measured for simulated, measured in (seen.peaks for seen in found))


@pytest.mark.parametrize("name", SPLIT)
def test_a_run_repeats_bit_by_bit(on_two: Ran, name: str) -> None:
    assert any(g is not None for first, _ in on_two[f"bits {name}"] for g in first.grads.values())
    for first, second in on_two[f"bits {name}"]:
        assert torch.equal(first.loss, second.loss)
        assert all(g is None or torch.equal(g, second.grads[p]) for p, g in first.grads.items())


@pytest.mark.parametrize("name", ["lpp", "gpipe", "fsdp", "fslpp", "ddp"])
def test_a_rank_holds_what_it_owns(on_two: Ran, name: str) -> None:
    names = {p for p, _ in on_ranks.model_of().named_parameters()}
    unread = {"unused.weight", "unused.bias"}
    first, second = (found[0].owned - unread for found in on_two[f"steps {name}"])
    assert first | second == names - unread
    if name == "ddp":
        assert first == second
    else:
        assert first - second
        assert second - first


@pytest.mark.parametrize("name", SPLIT)
def test_a_call_as_a_module_is_the_models(on_two: Ran, name: str) -> None:
    model, _, output, of_inputs = expected(7)
    x, other, _ = on_ranks.batch(7)
    for made, _, of_x, evaluated in on_two[f"module {name}"]:
        support.close(made, output)
        support.close(of_x, of_inputs)
        support.close(evaluated, model(x, other))
    check_gradients([grads for _, grads, _, _ in on_two[f"module {name}"]], model)


@pytest.mark.parametrize("name", ["lpp", "ddp", "fsdp"])
def test_norms_count_each_parameter_once(on_two: Ran, name: str) -> None:
    model, *_ = expected(7)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    for found, _ in on_two[f"clip {name}"]:
        support.close(found, norm)
    check_gradients([grads for _, grads in on_two[f"clip {name}"]], model)


@pytest.mark.parametrize("name", ["lpp", "fsdp"])
def test_training_is_the_models(on_two: Ran, name: str) -> None:
    model, losses = on_ranks.model_of(), []
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(expected(7, model)[1])
        optimizer.step()
    for found, state in on_two[f"train {name}"]:
        support.close(found, losses, 1e-8)
        assert list(state) == list(model.state_dict())
        support.close(state, dict(model.state_dict()), 1e-8)


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_ranks_may_bring_rows_of_their_own(on_two: Ran, name: str) -> None:
    model, loss, _, (of_x, _) = expected(7)
    found = on_two[f"local {name}"]
    for of_rank, (start, end) in zip(found, [(0, 2), (2, 7)], strict=True):
        support.close(of_rank[0], loss)
        support.close(of_rank[2], of_x[start:end])
    check_gradients([grads for _, grads, _ in found], model)


def test_a_checkpoint_of_one_schedule_is_one_of_another(on_two: Ran) -> None:
    model = on_ranks.model_of()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    loss = expected(7, model)[1]
    for saved, loaded in on_two["checkpoint"]:
        support.close([saved, loaded], [loss, loss])


@pytest.mark.parametrize("name", ["lpp", "fsdp", "ddp"])
def test_a_model_without_memory_gets_it_where_it_is_owned(on_two: Ran, name: str) -> None:
    found, undrawn = on_two[f"meta {name}"], ("shift", "factors")  # as the model has no reset_parameters
    model, loss, *_ = expected(7)
    for allocated, owned, drawn, seen in found:
        assert allocated <= owned
        support.close(seen.loss, loss)
        assert list(drawn) == list(model.state_dict())
        for value in undrawn:
            del drawn[value]
        support.close(drawn, found[0][2])  # replicas begin alike
    check_gradients([seen.grads for *_, seen in found], model)
    if name != "ddp":
        assert all(len(owned) < len(list(model.parameters())) for _, owned, _, _ in found)


@pytest.mark.parametrize("name", ["gpipe", "ddp", "fsdp"])
def test_draws_are_those_of_one_process_with_the_first_ranks_seed(on_two: Ran, name: str) -> None:
    with support.float64():
        model, x = on_ranks.dropping(), torch.ones(6, zoo.WIDTH)
    compiled = compile(model, schedule=ddp(), stages=1, microbatches=3, workers=1, loss_fn=nn.MSELoss(), seed=0)
    loss = compiled.step(x, x)
    whole = support.gradients(compiled)
    for found, grads in on_two[f"noise {name}"]:
        support.close(found, loss)
        support.same(grads, {p: whole[p] for p in grads})


@pytest.mark.parametrize("name", ["lpp", "ddp", "fsdp"])
@pytest.mark.parametrize("change", ["freeze", "unfreeze", "load"])
def test_what_changes_between_steps_counts(on_two: Ran, name: str, change: str) -> None:
    model = on_ranks.model_of()
    on_ranks.CHANGES[change](model)
    loss = expected(7, model)[1]
    for seen in on_two[f"{change} {name}"]:
        support.close(seen.loss, loss)
    check_gradients([seen.grads for seen in on_two[f"{change} {name}"]], model)


@pytest.mark.parametrize("name", ["lpp", "ddp", "fsdp"])
def test_weights_that_travel_are_converted_before_they_are_cut(on_two: Ran, name: str) -> None:
    for found in on_two[f"convert {name}"]:
        said = "convert the model before" if name == "fsdp" else "same dtype"  # the batch is in float64 still
        assert said in found


@pytest.mark.parametrize("name", ["gpipe", "ddp", "fsdp", "lpp"])
def test_batch_norm_is_that_of_a_loop_over_micro_batches(on_two: Ran, name: str) -> None:
    model, (x, _, _) = on_ranks.norming(), on_ranks.batch(7)
    for _ in range(2):
        total = torch.zeros(())
        for part in x.detach().tensor_split(3):
            loss = model(part).square().mean() * (len(part) / 7)
            loss.backward()
            total = total + loss.detach()
    for loss, _, state in on_two[f"norm {name}"]:
        support.close(loss, total)
        support.close(state, dict(model.state_dict()))
    check_gradients([grads for _, grads, _ in on_two[f"norm {name}"]], model)
