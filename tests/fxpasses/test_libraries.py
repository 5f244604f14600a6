"""Whose code a module is, by where it stands; and what of a library's code and of loggers is part of a key."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bppsa.fxpasses.environment.known import known_environment
from bppsa.fxpasses.environment.libraries import is_users_name


def test_what_was_installed_into_a_folder_is_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    record = tmp_path / "some-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("bppsa_test_some/__init__.py,,\nbppsa_test_single.py,sha256=x,0\nsome/bppsa_test_own.py,,\n")
    (tmp_path / "bppsa_test_some").mkdir()
    (tmp_path / "bppsa_test_some" / "__init__.py").touch()
    for name in ("bppsa_test_single", "bppsa_test_own"):
        (tmp_path / f"{name}.py").touch()
    for name, users in (("bppsa_test_some", False), ("bppsa_test_single", False), ("bppsa_test_own", True)):
        importlib.import_module(name)
        assert is_users_name(f"{name}.part") is users
    assert is_users_name("bppsa_test_missing")


LIBRARY = """
import torch
from torch import nn

RATES = [1.0] * 100
NAMES = {f"name{i}": f"class{i}" for i in range(100)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(70))
        self.rates = [1.0] * 100

    def forward(self, x):
        if "none" in NAMES:
            return x
        for layer, rate in zip(self.layers, self.rates):
            x = layer(x) * rate * RATES[3]
        return x
"""
CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "a global number": lambda library, net: library.RATES.__setitem__(3, 2.0),
    "a number of its own": lambda library, net: net.rates.__setitem__(3, 2.0),
    "a layer's attribute": lambda library, net: setattr(net.layers[3], "scale", 2.0),
    "a layer's hook": lambda library, net: net.layers[3].register_forward_hook(lambda *given: None),
    "a layer": lambda library, net: net.layers.__setitem__(3, nn.Tanh()),
    "a name": lambda library, net: library.NAMES.update(none=""),
}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "bppsa_test_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    monkeypatch.delitem(importlib.sys.modules, "bppsa_test_library", raising=False)  # type: ignore[attr-defined]
    return importlib.import_module("bppsa_test_library")


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_a_librarys_model_are_seen(change: str, library: Any) -> None:
    assert not is_users_name("bppsa_test_library")
    net = library.Net()
    before = known_environment(net).key.parts
    assert known_environment(net).key.parts == before
    CHANGES[change](library, net)
    assert known_environment(net).key.parts != before


def test_a_large_table_of_names_is_not_read(library: Any) -> None:
    assert "class3" not in str(known_environment(library.Net()).key.parts)
    library.NAMES = {"name": "class3"}
    assert "class3" in str(known_environment(library.Net()).key.parts)


log = logging.getLogger("bppsa.test")
LOGGERS: dict[str, Callable[[], object]] = {
    "level": lambda: log.setLevel(logging.ERROR),
    "its parent's level": lambda: logging.getLogger("bppsa").setLevel(logging.CRITICAL),
    "all of them": lambda: logging.disable(logging.CRITICAL),
    "a handler": lambda: log.addHandler(logging.NullHandler()),
    "an attribute": lambda: setattr(log, "gain", 2.0),
}


def noted(x: Tensor) -> Tensor:
    log.debug("a call")
    return torch.tanh(x)


@pytest.mark.parametrize("change", LOGGERS)
def test_what_a_logger_does_is_seen(change: str) -> None:
    before = known_environment(noted).key.parts
    try:
        logging.getLogger("bppsa.another.of.the.tree")
        assert known_environment(noted).key.parts == before
        LOGGERS[change]()
        assert known_environment(noted).key.parts != before
    finally:
        logging.disable(logging.NOTSET)
        for each in (log, logging.getLogger("bppsa")):
            each.setLevel(logging.NOTSET)
        log.handlers.clear()
        vars(log).pop("gain", None)
