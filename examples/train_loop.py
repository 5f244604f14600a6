"""Train a controller through a differentiable simulator whose steps are a Python loop, as PyTorch runs it and compiled.

    python examples/train_loop.py
    python examples/train_loop.py --steps 400 --updates 100

A recurrent policy swings carts to where they should be: in each step it sees the cart's state, its force moves the
cart, and the cost of all steps is differentiated through the simulator. The loop is written as anybody would write it.
`bppsa.compile(model)` is the one line that differs between the two runs; both begin with the same weights and see the
same carts, and their losses are printed side by side.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import bppsa

Model = Callable[[Tensor, Tensor], Tensor]


class Simulator(nn.Module):
    """Carts with a pendulum each, steered by a recurrent policy; gives the mean cost of a trajectory."""

    def __init__(self, width: int = 32, dt: float = 0.02) -> None:
        super().__init__()
        self.policy, self.force, self.dt = nn.GRUCell(4, width), nn.Linear(width, 1), dt

    def forward(self, state: Tensor, targets: Tensor) -> Tensor:  # [B, 4], [B, T]
        h = state.new_zeros(len(state), self.policy.hidden_size)
        place, speed, angle, turn = state.split(1, 1)
        costs = []
        for target in targets.unbind(1):
            seen = torch.cat([place - target.unsqueeze(1), speed, angle, turn], 1)
            h = self.policy(seen, h)
            force = 5 * torch.tanh(self.force(h))
            push = force - 0.1 * speed
            pull = -9.81 * angle - push - 0.2 * turn  # for small angles
            speed = speed + self.dt * push
            turn = turn + self.dt * pull
            place = place + self.dt * speed
            angle = angle + self.dt * turn
            costs.append((place - target.unsqueeze(1)) ** 2 + 0.1 * angle**2 + 0.001 * force**2)
        return torch.stack(costs, 1).mean()


def carts(count: int, steps: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    state = torch.randn(count, 4, generator=generator) * torch.tensor([0.5, 0.2, 0.3, 0.2])
    target = torch.randn(count, 1, generator=generator)
    return state, target.expand(count, steps).contiguous()


def train(model: Model, parameters: list[nn.Parameter], options: argparse.Namespace) -> tuple[list[float], float]:
    """The losses, and the seconds of a step behind the first two, of which one is logged and checked."""
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    generator, losses, times = torch.Generator().manual_seed(0), [], []
    for _ in range(options.updates):
        given = carts(options.carts, options.steps, generator)
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = model(*given)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        times.append(time.perf_counter() - began)
        losses.append(loss.item())
    later = sorted(times[2:]) or times
    return losses, later[len(later) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of the simulator in an update")
    parser.add_argument("--carts", type=int, default=32)
    parser.add_argument("--updates", type=int, default=30)
    options = parser.parse_args()
    torch.manual_seed(0)
    plain = Simulator()
    fast = bppsa.compile(copy.deepcopy(plain))
    (expected, peer_s), (found, ours_s) = (train(m, list(m.parameters()), options) for m in (plain, fast))
    shown = Table("update", "PyTorch's loss", "bppsa's loss")
    for at in sorted({*range(0, options.updates, max(1, options.updates // 8)), options.updates - 1}):
        shown.add_row(str(at), f"{expected[at]:.6f}", f"{found[at]:.6f}")
    console = Console()
    console.print(shown)
    console.print(str(bppsa.report(fast)))
    console.print(f"a step: {1e3 * peer_s:.1f} ms by PyTorch, {1e3 * ours_s:.1f} ms by bppsa: ", end="")
    console.print(f"{peer_s / ours_s:.1f} times as fast")


if __name__ == "__main__":
    main()
