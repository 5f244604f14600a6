"""What is told on a terminal while a model is cut."""

from __future__ import annotations

import io
import sys

import pytest
import torch
from torch import nn

from bppsa import partition


class Terminal(io.StringIO):
    def __init__(self, yes: bool) -> None:
        super().__init__()
        self.yes = yes

    def isatty(self) -> bool:
        return self.yes


@pytest.mark.parametrize("terminal", [True, False])
def test_steps_are_told_and_the_line_is_gone(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    error = Terminal(terminal)
    monkeypatch.setattr(sys, "stderr", error)
    partition(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), torch.randn(4, 3), 2)
    said = error.getvalue()
    assert ("bppsa: Sequential: exporting it" in said) == terminal
    assert said.endswith("\033[K") if terminal else said == ""
