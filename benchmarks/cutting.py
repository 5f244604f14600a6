"""How long a deep language model takes to be cut into stages, by depth.

    python benchmarks/cutting.py                       # GPT-2 of 6, 12 and 24 layers, width 64
    python benchmarks/cutting.py --layers 48 --stages 8

Prints seconds of one cut, the stages' shares of the cost, and runs no step. `make models` installs transformers.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import transformers

import bppsa


def gpt2(layers: int, width: int) -> Any:
    sizes = {"n_layer": layers, "n_embd": width, "n_head": 4, "vocab_size": 500, "n_positions": 64}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, use_cache=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[6, 12, 24])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--stages", type=int, default=4)
    asked = parser.parse_args()
    tokens = torch.randint(3, 500, (8, 32))
    for layers in asked.layers:
        model = gpt2(layers, asked.width)
        begin = time.perf_counter()
        cut = bppsa.partition(model, tokens, asked.stages)
        seconds = time.perf_counter() - begin
        total = sum(stage.cost for stage in cut.stages)
        shares = " ".join(f"{stage.cost / total:.0%}" for stage in cut.stages)
        print(f"{layers:3} layers: {seconds:6.1f} s, shares of the cost {shares}", flush=True)


if __name__ == "__main__":
    main()
