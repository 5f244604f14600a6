"""Any recurrent module, called in any way, gives PyTorch's outputs and gradients to rounding (float64)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tests.breadth import examples
from tests.recurrent.support import KINDS, MANY, compiled, leaves, random, same, states, sweeps, weighted

# Few, as each may need kernels of its own; 11 and 35 mostly share them. Which kernel a size gets: tests/codegen.
HIDDEN, PROJECTED = st.sampled_from([1, 11, 35]), st.sampled_from([(11, 1), (11, 4), (35, 12)])


class Case(NamedTuple):
    """One call. `form`: how the input comes; `lengths`: of packed sequences; `needs`, `reads`: bits over the tensors
    that come in and the outputs, which of them want a gradient and which the loss reads."""

    kind: str
    sizes: tuple[int, int]
    flags: dict[str, Any]
    training: bool
    form: str
    lengths: tuple[int, ...]
    given: bool
    needs: int
    reads: int
    seed: int

    @property
    def model(self) -> nn.RNNBase:
        torch.manual_seed(self.seed)
        return KINDS[self.kind](*self.sizes, dtype=torch.float64, **self.flags).train(self.training)

    def input(self, x: Tensor) -> Any:
        """x: [T, B, I]"""
        if self.form == "unbatched":
            return x[:, 0]
        if self.form == "batched":
            return x.transpose(0, 1) if self.flags["batch_first"] else x
        lengths = sorted(self.lengths, reverse=True) if self.form == "sorted" else self.lengths
        return pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=self.form == "sorted")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(sorted(KINDS)))
    inputs, hidden = draw(st.integers(0, 19).map(lambda n: 2 * n + 1)), draw(HIDDEN)
    flags: dict[str, Any] = {name: draw(st.booleans()) for name in ("bias", "batch_first", "bidirectional")}
    flags["num_layers"] = draw(st.integers(1, 3))
    if flags["num_layers"] > 1:
        flags["dropout"] = draw(st.sampled_from([0.0, 0.4, 1.0]))
    if kind == "lstm-proj":
        hidden, flags["proj_size"] = draw(PROJECTED)
    rows = draw(st.sampled_from([1, 2, 3, 5, MANY]))
    return Case(
        kind,
        (inputs, hidden),
        flags,
        training=draw(st.booleans()),
        form=draw(st.sampled_from(["batched", "unbatched", "sorted", "any order"])),
        lengths=tuple(draw(st.lists(st.integers(1, 7), min_size=rows, max_size=rows))),
        given=draw(st.booleans()),
        needs=draw(st.integers(1, 2**40 - 1)),
        reads=draw(st.integers(1, 7)),
        seed=draw(st.integers(0, 2**16)),
    )


def chosen(bits: int, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Those whose bit is set, or all."""
    return [t for i, t in enumerate(tensors) if bits >> i & 1] or [*tensors]


def outcome(
    case: Case, model: nn.Module, x: Tensor, hx: Any, wanted: Sequence[Tensor]
) -> tuple[Any, list[Tensor | None]]:
    torch.manual_seed(case.seed)
    result = model(case.input(x), hx)
    read = [out for out in chosen(case.reads, leaves(result)) if out.requires_grad]
    return result, [*torch.autograd.grad(weighted(read, case.seed), wanted, allow_unused=True)]


@examples(120)
@given(case=cases())
def test_any_call_is_pytorch_s(case: Case) -> None:
    model = case.model
    x = random(max(case.lengths), len(case.lengths), case.sizes[0])
    hx = states(model, *[len(case.lengths)] * (case.form != "unbatched")) if case.given else None
    tensors = [x, *leaves(hx if case.given else ()), *model.parameters()]
    wanted = chosen(case.needs, tensors)
    for tensor in tensors:
        tensor.requires_grad_(any(tensor is other for other in wanted))
    expected, expected_gradients = outcome(case, model, x, hx, wanted)
    with sweeps() as ran:
        got, gradients = outcome(case, compiled(model), x, hx, wanted)
    passes = case.flags["num_layers"] * (1 + case.flags["bidirectional"])
    assert ran == ["forward"] * passes + ["backward"] * passes
    assert type(got[0]) is type(expected[0])
    if isinstance(got[0], PackedSequence):
        got, expected = ((pad_packed_sequence(out), final) for out, final in (got, expected))
    assert [out.requires_grad for out in leaves(got)] == [out.requires_grad for out in leaves(expected)]
    same(leaves(got), leaves(expected))
    same(gradients, expected_gradients)
