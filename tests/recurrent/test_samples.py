"""The samples by which PyTorch tests its own nn.RNN, nn.GRU and nn.LSTM."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.recurrent.support import compiled, leaves, same, sweeps, weighted

pytest.importorskip("expecttest", reason="PyTorch's own samples need it")

from torch.testing._internal.common_modules import ModuleInfo, module_db

INFOS = {info.name: info for info in module_db if info.module_cls in (nn.RNN, nn.GRU, nn.LSTM)}


def test_there_are_three() -> None:
    assert len(INFOS) == 3


@pytest.mark.parametrize("info", INFOS.values(), ids=INFOS)
@pytest.mark.parametrize("training", [True, False], ids=["train_mode", "eval_mode"])
def test_samples(info: ModuleInfo, training: bool) -> None:
    more = {} if info.module_cls is nn.LSTM else {"is_rnn": info.module_cls is nn.RNN, "with_packed_sequence": True}
    inputs = info.module_inputs_func(info, "cpu", torch.float64, True, training, **more)
    assert len(inputs) >= 16
    for sample in inputs:
        made, given = sample.constructor_input, sample.forward_input
        model = info.module_cls(*made.args, **made.kwargs).double().train(training)
        tensors = [
            t for t in pytree.tree_leaves((given.args, given.kwargs)) if isinstance(t, Tensor) and t.requires_grad
        ]
        wanted = [t for t in tensors if t.is_leaf] + [*model.parameters()]
        found = []
        for module in (model, compiled(model)):
            with sweeps() as ran:
                outputs = leaves(module(*given.args, **given.kwargs))
                found.append([*outputs, *torch.autograd.grad(weighted(outputs), wanted, retain_graph=True)])
        assert ran
        same(found[1], found[0])


@pytest.mark.parametrize("info", INFOS.values(), ids=INFOS)
def test_errors(info: ModuleInfo) -> None:
    """What PyTorch's tests expect to raise raises the same, and more is said."""
    more = {} if info.module_cls is nn.LSTM else {"is_rnn": info.module_cls is nn.RNN}
    for bad in info.module_error_inputs_func(info, "cpu", torch.float64, False, True, **more):
        made, given = bad.module_error_input.constructor_input, bad.module_error_input.forward_input
        with pytest.raises(bad.error_type, match=bad.error_regex):
            compiled(info.module_cls(*made.args, **made.kwargs))(*given.args, **given.kwargs)
