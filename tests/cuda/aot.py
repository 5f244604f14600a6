"""Compile the CUDA kernels of the tests' models for GPUs that need not be there, and hold them to what they were.

    make aot                                           exits with 1 where one spills, or has become 10 % slower
    python -m tests.cuda.aot --models GRU --widths 64  other kernels: only prints
    python -m tests.cuda.aot --keep                    writes the table that later runs are held to

Needs NVRTC and its disassembler: pip install 'bppsa[cuda-aot]'.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from importlib.metadata import files
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bppsa.codegen.gpu.cuda.compile import compiled, options_of
from bppsa.codegen.gpu.cuda.print_cuda import CudaText, printed
from bppsa.codegen.language.ir import Kernel
from tests.codegen.programs import kernels
from tests.cuda.latency import modelled
from tests.triton.models import MODELS, built

TABLE = Path(__file__).parent / "aot.json"
CAPABILITIES = ((8, 0), (9, 0), (10, 0))
MODELLED = (9, 0)  # whose machine code the model of latencies reads
DEFAULT = ("RNN", "GRU", "LSTM", "ResetGRU", "LayerNormLSTM")
WIDTHS = (20, 32, 64)
MORE = 1.1  # of the committed cycles, before it is an error
USED = re.compile(r"(\d+) bytes spill stores.*?Used (\d+) registers", re.DOTALL)


def rows_of(model: str, width: int, real: str, nvdisasm: str) -> dict[str, Any]:
    """By the kernel's name."""
    return {
        f"{model} {width} {kernel.name}": row_of(kernel, real, nvdisasm)
        for kernel in kernels(built(model, width))
        if kernel.groups
    }


def row_of(kernel: Kernel, real: str, nvdisasm: str) -> dict[str, Any]:
    """Registers and spilled bytes of a thread for each capability; threads of a row; and the modelled step."""
    text = printed(kernel, real)
    if not isinstance(text, CudaText):
        return {"refused": str(text)}
    row: dict[str, Any] = {"threads": text.lanes.threads}
    for capability in CAPABILITIES:
        code, log = compiled(text.source, [*options_of(capability), "--ptxas-options=-v"])
        spilled, registers = map(int, USED.search(log).groups())  # type: ignore[union-attr]
        row[f"sm_{capability[0]}{capability[1]}"] = {"registers": registers, "spilled": spilled}
        if capability == MODELLED:
            step = modelled(code, nvdisasm, text.batch)
            row |= {"cycles": round(step.cycles), "instructions": round(step.instructions), "us": step.microseconds}
    return row


def disassembler() -> str:
    for file in files("nvidia-cuda-nvdisasm") or ():
        if file.name == "nvdisasm":
            return str(file.locate())
    raise SystemExit("nvdisasm is not there; pip install 'bppsa[cuda-aot]'")


def shown(found: dict[str, Any]) -> Table:
    table = Table(
        "kernel", "threads a row", "instructions", "cycles", "us a step", *map("sm_{0[0]}{0[1]}".format, CAPABILITIES)
    )
    for name, row in found.items():
        if "refused" in row:
            table.add_row(name, row["refused"])
            continue
        used = [row[f"sm_{a}{b}"] for a, b in CAPABILITIES]
        registers = [f"{u['registers']}" + f" [bold red]spills {u['spilled']} B[/]" * bool(u["spilled"]) for u in used]
        table.add_row(
            name, str(row["threads"]), str(row["instructions"]), str(row["cycles"]), f"{row['us']:.3f}", *registers
        )
    return table


def faults(found: dict[str, Any], kept: dict[str, Any]) -> list[str]:
    """What is worse than the committed table says."""
    told = []
    for name, row in kept.items():
        new = found.get(name, {})
        if "refused" in new and "refused" not in row:
            told.append(f"{name} is refused: {new['refused']}")
        if new.get("cycles", 0) > MORE * row.get("cycles", float("inf")):
            told.append(f"{name} takes {new['cycles']} cycles a step, {row['cycles']} before")
        for a, b in CAPABILITIES:
            before, now = (r.get(f"sm_{a}{b}", {}).get("spilled", 0) for r in (row, new))
            if now > before:
                told.append(f"{name} spills {now} bytes on sm_{a}{b}, {before} before")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=";".join(DEFAULT), help=f"of {', '.join(MODELS)}; semicolons between them")
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    parser.add_argument("--real", default="float", choices=("float", "double"))
    parser.add_argument("--keep", action="store_true")
    chosen = parser.parse_args()
    nvdisasm = disassembler()
    found: dict[str, Any] = {}
    for model in chosen.models.split(";"):
        for width in map(int, chosen.widths.split(",")):
            found |= rows_of(model, width, chosen.real, nvdisasm)
    console = Console(width=150)
    console.print("registers of a thread; instructions and cycles of a step, modelled for one warp of an sm_90")
    console.print(shown(found))
    if chosen.keep:
        TABLE.write_text(json.dumps(found, indent=1) + "\n")
    elif chosen.real == "float":
        kept = {name: row for name, row in json.loads(TABLE.read_text()).items() if name in found}
        if told := faults(found, kept):
            sys.exit("\n".join(told))


if __name__ == "__main__":
    main()
