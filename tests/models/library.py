"""Packages of models, imported where the operators of torchvision, which they all import, may not be there."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import torch

OPERATORS = ("nms", "qnms")  # those that torchvision describes for tensors without memory, when it is imported


@functools.cache
def operators() -> torch.library.Library | None:
    """Declares operators of torchvision where it was built for another device than torch, and cannot load its own:
    without them it does not import. No classifier calls them."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return None
    try:
        torch.ops.load_library(Path(found.origin).with_name("_C.so"))
    except OSError:
        declared = torch.library.Library("torchvision", "DEF")
        for name in OPERATORS:
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return declared
    return None


def library(name: str) -> ModuleType:
    """The package of this name."""
    operators()
    return importlib.import_module(name)
