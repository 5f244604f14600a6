"""Ranks schedules for training a model on workers, from a terminal.

    python -m bppsa.plan_training mypackage:build --workers 8 --tflops 400 --bandwidth-gbps 400 --memory-gb 80

`build()` returns (model, example). It is called with the meta device as the default, so its weights take no memory.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bppsa.api.planning import plan_training
from bppsa.distributed.planned.plan import SHOWN
from bppsa.distributed.planned.states import OPTIMIZERS
from bppsa.errors import BppsaError, StrategyError, kind_of

# Option -> type, whether it is needed, and what it says.
NUMBERS: dict[str, tuple[type, bool, str]] = {
    "workers": (int, True, "how many"),
    "tflops": (float, True, "of a worker, 10^12 flops a second"),
    "bandwidth_gbps": (float, True, "into a worker, 10^9 bits a second"),
    "memory_gb": (float, False, "of a worker, 10^9 bytes (anything)"),
    "device_gb_per_s": (float, False, "of a worker's own memory, 10^9 bytes a second (counted as free)"),
    "batch": (int, False, "rows of a step (those of the example)"),
    "microbatches": (int, False, "into how many the batch is divided (up to 2 * workers)"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the ranking, and write the page where --html names a file."""
    given = vars(parser().parse_args(arguments))
    page, place, name, rows = given.pop("html"), given.pop("build"), given.pop("dtype"), given.pop("rows")
    try:
        dtype = dtype_of(name)
        build = loaded(place)
        with torch.device("meta"):
            model, example = pair(place, build())
        plan = plan_training(model, example, dtype=dtype, **given)
        print(plan.text(rows))
        if page:
            plan.html(page)
    except (BppsaError, OSError) as error:  # OSError: a page that cannot be written
        sys.exit(f"{type(error).__name__}: {error}")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m bppsa.plan_training", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("build", metavar="MODULE:NAME", help="a function that returns (model, example)")
    for name, (kind, needed, says) in NUMBERS.items():
        made.add_argument(f"--{name.replace('_', '-')}", type=kind, required=needed, help=says)
    made.add_argument("--dtype", help="of weights, such as bfloat16 (that of the model)")
    made.add_argument("--optimizer", default="adamw", help=f"one of {', '.join(OPTIMIZERS)} (adamw)")
    made.add_argument(
        "--all", dest="rows", action="store_const", const=None, default=SHOWN, help="print all, not the best alone"
    )
    made.add_argument("--html", type=Path, metavar="FILE", help="write the page")
    return made


def dtype_of(name: str | None) -> torch.dtype | None:
    found = getattr(torch, name, None) if name else None
    if name and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise StrategyError(f"--dtype {name} is no floating-point dtype of torch, such as bfloat16")
    return found


def loaded(place: str) -> Callable[[], Any]:
    """The function by this name; modules of the working directory are found too, as `python -m` finds them."""
    module, colon, name = place.partition(":")
    if not (module and colon and name):
        raise StrategyError(f"{place!r} names no function; write MODULE:NAME, such as mypackage:build")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise StrategyError(f"{place!r}: there is no module {error.name!r} here") from None
    if not callable(found):
        raise StrategyError(f"{place!r}: {module} has no function {name!r}")
    return found


def pair(place: str, built: Any) -> tuple[torch.nn.Module, Any]:
    if not (isinstance(built, tuple) and len(built) == 2 and isinstance(built[0], torch.nn.Module)):
        raise StrategyError(f"{place} returns {kind_of(built)}, and not (model, example)")
    return built
