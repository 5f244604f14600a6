"""Measures the figures of the BPPSA paper on this machine and draws them, with the paper's numbers beside ours.

    python -m figures                    all of them, some minutes; nothing else should run meanwhile
    python -m figures fig7 fig8 --full   some, at the paper's sizes: hours on a CPU
    python -m figures --quick            sizes of nothing: only shows that all of it runs
    python -m figures --draw             measures nothing: draws again what is kept

Leaves for each an .svg, a .png and a .json, and a README.md over all, in figures/out or the folder that --output names.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from figures import drawing, fig7, fig8, fig9, fig13, page
from figures.figure import FULL, QUICK, SCALED, Figure, Options, Record
from figures.schedules import diagrams, groups, time_chunks, wavelet, waves, zero_bubble
from figures.sparse import fig5, fig6, fig10, table1
from figures.ways import USUAL, WAYS
from harness import device, machine, store

# One row a figure. Its file measures it, gives the paper's numbers beside, and draws it.
FIGURES: dict[str, Figure] = {
    "table1": table1.FIGURE,
    "fig5": fig5.FIGURE,
    "fig6": fig6.FIGURE,
    "fig7": fig7.FIGURE,
    "fig8": fig8.FIGURE,
    "fig9": fig9.FIGURE,
    "fig10": fig10.FIGURE,
    "fig13": fig13.FIGURE,
    "schedules": diagrams.FIGURE,
    "groups": groups.FIGURE,
    "wavelet": wavelet.FIGURE,
    "waves": waves.FIGURE,
    "zero_bubble": zero_bubble.FIGURE,
    "time_chunks": time_chunks.FIGURE,
}

OUTPUT = Path(__file__).parent / "out"
SECONDS = 40.0


def main() -> None:
    arguments = parse()
    console = Console()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.backends.cudnn.allow_tf32 = (
        False  # float32 throughout: the paper's devices had no TF32, and losses are compared
    )
    for name in arguments.names:
        path = arguments.output / name
        if not arguments.draw:
            console.rule(FIGURES[name].title)
            store.save(path.with_suffix(".json"), measured(FIGURES[name], options_of(arguments)))
        if path.with_suffix(".json").exists():
            record = store.load(path.with_suffix(".json"))
            drawing.save(FIGURES[name].draw(record), record, path)
            console.print(table(record))
    page.write(arguments.output, list(FIGURES))
    console.print(f"the pictures are in {arguments.output}")


def measured(figure: Figure, options: Options) -> Record:
    head = {"title": figure.title, "simulated": figure.simulated, "size": options.size, "on": on(options.device)}
    return head | figure.measure(options)


def on(device_: torch.device) -> Record:
    """Hardware, versions, and what the baseline is."""
    hardware = machine.hardware()
    record = {**machine.software(), **hardware, "threads": torch.get_num_threads(), "baseline": "PyTorch on the CPU"}
    record["device"] = f"{hardware['cpu']}, {hardware['cores']} cores, {hardware['capability']}"
    if device_.type == "cuda":
        record |= device.software() | device.hardware()
        record |= {"device": record["gpu"], "baseline": f"PyTorch with cuDNN {record['cudnn']}"}
    return record


def table(record: Record) -> Table:
    found = Table("", "the paper", "here", title_justify="left")
    for row in record["beside"]:
        found.add_row(row["what"], row["paper"], row["ours"])
    return found


def options_of(arguments: argparse.Namespace) -> Options:
    return Options(
        arguments.size,
        arguments.seconds,
        torch.device(arguments.device),
        arguments.ways or USUAL[torch.device(arguments.device).type],
        arguments.irmas,
        arguments.cifar10,
    )


def parse() -> argparse.Namespace:
    def ways(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if len(names) < 2 or set(names) - set(WAYS):
            raise argparse.ArgumentTypeError(f"two or more of {', '.join(WAYS)}, the baseline first")
        return names

    usual_device = "cuda" if torch.cuda.is_available() else "cpu"
    irmas, cifar10 = os.environ.get("BPPSA_IRMAS"), os.environ.get("BPPSA_CIFAR10")
    parser = argparse.ArgumentParser(prog="python -m figures", description="The figures of the BPPSA paper, again.")
    parser.add_argument("names", nargs="*", metavar="figure", help=f"of {', '.join(FIGURES)} (default: all)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", dest="size", action="store_const", const=FULL, help="the paper's sizes: hours on a CPU")
    size.add_argument("--quick", dest="size", action="store_const", const=QUICK, help="sizes of nothing")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of samples a figure (default: {SECONDS:g})")
    parser.add_argument("--device", default=usual_device, help=f"(default: {usual_device})")
    parser.add_argument("--threads", type=int, help="(default: torch's)")
    parser.add_argument(
        "--ways", type=ways, help=f"of {', '.join(WAYS)}, with commas: the baseline, what is trained, ..."
    )
    parser.add_argument("--irmas", type=Path, default=irmas and Path(irmas), help="IRMAS-TrainingData (or BPPSA_IRMAS)")
    parser.add_argument(
        "--cifar10", type=Path, default=cifar10 and Path(cifar10), help="cifar-10-batches-bin (or BPPSA_CIFAR10)"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder (default: figures/out)")
    parser.add_argument("--draw", action="store_true", help="measure nothing, draw again what is kept")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(FIGURES):
        parser.error(f"{', '.join(sorted(unknown))}: the figures are {', '.join(FIGURES)}")
    arguments.names = arguments.names or list(FIGURES)
    arguments.size = arguments.size or SCALED
    return arguments


if __name__ == "__main__":
    main()
