"""A rewritten module is of a class derived from its own: a forward that asks for the class itself is left as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa.frontend.rewritten import Rewritten
from bppsa.schedule import gpipe


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0] * (2.0 if self.is_long() else 1.0)

    def is_long(self) -> bool:
        raise NotImplementedError


def says_is(module: Any) -> bool:
    return type(module) is nn.LSTM


TABLE = {nn.LSTM: True, nn.GRU: False}


class ByIdentity(Encoder):
    def is_long(self) -> bool:
        return type(self.rnn) is nn.LSTM


class ByEquality(Encoder):
    def is_long(self) -> bool:
        return self.rnn.__class__ == nn.LSTM


class ByFunction(Encoder):
    def is_long(self) -> bool:
        return says_is(self.rnn)


class AmongOthers(Encoder):
    def is_long(self) -> bool:
        return type(self.rnn) in (nn.GRU, nn.LSTM)


class ByTable(Encoder):
    def is_long(self) -> bool:
        return TABLE[type(self.rnn)]


class ByGet(Encoder):
    def is_long(self) -> bool:
        return TABLE.get(type(self.rnn), False)


class ByVariable(Encoder):
    def is_long(self) -> bool:
        kind = type(self.rnn)
        return kind is nn.LSTM


class ByList(Encoder):
    def is_long(self) -> bool:
        kinds = [nn.LSTM]
        return type(self.rnn) in kinds


class InLoop(Encoder):
    def is_long(self) -> bool:
        return any(type(module) is nn.LSTM for module in self.children())


class Named(Encoder):
    def is_long(self) -> bool:
        return (kind := type(self.rnn)) is nn.LSTM and kind is not nn.GRU


class OfSeveral(Encoder):
    def is_long(self) -> bool:
        kind, _ = type(self.rnn), 1
        return kind is nn.LSTM


class ByMap(Encoder):
    def is_long(self) -> bool:
        return nn.LSTM in map(type, self.children())


class OfTwo(Encoder):
    def is_long(self) -> bool:
        other = nn.LSTM(1, 1)
        return type(self.rnn) is type(other)


class Chooser:
    def says(self, module: Any) -> bool:
        return type(module) is nn.LSTM


class ByObject(Encoder):
    def __init__(self) -> None:
        super().__init__()
        self.chooser = Chooser()

    def is_long(self) -> bool:
        return self.chooser.says(self.rnn)


class ByProperty(Encoder):
    @property
    def long(self) -> bool:
        return type(self.rnn) is nn.LSTM

    def is_long(self) -> bool:
        return self.long


class ByHook(Encoder):
    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda module, given, made: made * (2 if type(module.rnn) is nn.LSTM else 1))

    def is_long(self) -> bool:
        return True


ASKING = [
    *(ByIdentity, ByEquality, ByFunction, AmongOthers, ByTable, ByGet, ByVariable, ByList, InLoop, Named, OfSeveral),
    *(ByMap, OfTwo, ByObject, ByProperty, ByHook),
]


class OfOthers(Encoder):
    def is_long(self) -> bool:
        return type(self.rnn) is not nn.GRU and type((1, 2)) is tuple


class ByInstance(Encoder):
    def is_long(self) -> bool:
        return isinstance(self.rnn, nn.LSTM) and issubclass(type(self.rnn), nn.LSTM)


class ByName(Encoder):
    def is_long(self) -> bool:
        return type(self.rnn).__name__ == "LSTM"


@pytest.mark.parametrize("kind", ASKING)
def test_what_asks_for_the_class_itself_is_left(kind: type[Encoder]) -> None:
    model = kind()
    fast = bppsa.compile(model)
    assert not any(isinstance(module, Rewritten) for module in fast.modules())
    x = torch.randn(5, 4, 2)
    torch.testing.assert_close(fast(x), model(x), rtol=0, atol=0)
    assert "test_class_questions.py" in str(bppsa.report(fast))
    assert "isinstance" in str(bppsa.report(fast))


@pytest.mark.parametrize("kind", [OfOthers, ByInstance, ByName])
def test_other_questions_are_none(kind: type[Encoder]) -> None:
    assert isinstance(bppsa.compile(kind()).rnn, Rewritten)


def test_inductor_takes_it_as_any_other() -> None:
    assert bppsa.compile(ByIdentity(), fallback="inductor")._compiled_call_impl is not None


def test_a_schedule_s_stages_are_left_too() -> None:
    model, x = ByIdentity(), torch.randn(5, 4, 2)
    fast = bppsa.compile(
        nn.Sequential(model, nn.Linear(3, 3)),
        schedule=gpipe(),
        stages=2,
        workers=2,
        microbatches=1,
        loss_fn=nn.MSELoss(),
    )
    assert not any(isinstance(module, Rewritten) for module in fast.modules())
    torch.testing.assert_close(fast[0](x), model(x), rtol=0, atol=0)
