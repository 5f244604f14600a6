"""Whose rates a device's calls are predicted with: a file the user names, what `bppsa.measure` kept, or the shipped."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
from dataclasses import replace
from pathlib import Path

import torch

from bppsa.codegen import cache
from bppsa.errors import MachineError
from bppsa.plan.cost import Machine
from bppsa.plan.machines import SHIPPED

VARIABLE = "BPPSA_MACHINE"


_measured: dict[str, Machine] = {}  # in this process, by device


@functools.lru_cache
def machine_of(device: str) -> Machine:
    """device: "cpu" or "cuda". Asked once a process, so that a prediction costs no file. Raises MachineError where
    BPPSA_MACHINE names no record."""
    shipped = SHIPPED[device]
    if (path := os.environ.get(VARIABLE)) and (machine := named(Path(path))).device == device:
        return complete(machine, shipped)
    if device in _measured:
        return _measured[device]
    there = device != "cuda" or torch.cuda.is_available()
    kept = cache.read(file_name(device)) if there else None
    return shipped if kept is None else complete(Machine.of_json(json.loads(kept)), shipped)


def complete(machine: Machine, shipped: Machine) -> Machine:
    """The record with the shipped rates of what an older one does not know."""
    return replace(machine, rates={**shipped.rates, **machine.rates})


def named(path: Path) -> Machine:
    try:
        return Machine.of_json(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MachineError(
            f"{VARIABLE}={path} is no record of a machine ({type(error).__name__}: {error}); "
            f"json.dumps(bppsa.measure().as_json()) is one"
        ) from error


def keep(machine: Machine) -> None:
    """Predicts with this machine from now on and, where the directory takes files, in later processes."""
    cache.write(file_name(machine.device), json.dumps(machine.as_json()).encode())
    _measured[machine.device] = machine
    machine_of.cache_clear()


def identity(device: str) -> str:
    """What the rates depend on: the processor, how much of it PyTorch may use, and PyTorch's version."""
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def file_name(device: str) -> str:
    return f"machine-{re.sub(r'[^a-z0-9]+', '-', identity(device).lower())}.json"


def processor() -> str:
    """The name of the processor, by Linux or else by Python."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()
