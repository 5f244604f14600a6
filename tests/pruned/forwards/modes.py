"""Forwards that switch modes: gradients, inference, autocast, evaluation, checkpoints, hooks on activations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.pruned.forwards.net import Net, table
from tests.pruned.support import pruned

MODES, case = table()


@case
class FrozenBackbone(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.first(x)
        return self.last(h)


@case
class GradientWithinNone(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.conv(x)
            with torch.enable_grad():
                h = h + self.conv(x)
            offset = self.lin(h.flatten(1))
        return self.last(h) + offset


@case
class FrozenByAFlag(Net):
    trains = True

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.trains):
            h = self.first(x)
        return self.last(h)

    def change(self, turn: int) -> None:
        self.trains = turn % 2 == 0


@case
class FrozenByACall(Net):
    """The function, not the block."""

    def forward(self, x: Tensor) -> Tensor:
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        h = self.first(x)
        torch.set_grad_enabled(before)
        return self.last(h)


@case
class FrozenByADecorator(Net):
    @torch.no_grad()
    def statistics(self, h: Tensor) -> Tensor:
        return self.lin(h.flatten(1)).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(h) * self.statistics(h)


@case
class InferenceMode(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            h = self.conv(x)
        return self.last(h.clone())


@case
class Autocast(Net):
    """In float32, as autocast leaves float64 alone; of the input alone, as rounding hides nothing then."""

    def __init__(self) -> None:
        super().__init__()
        self.side = nn.Linear(108, 8)

    def finish(self) -> None:
        self.double().side.float()
        pruned(self, 0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            side = self.side(x.detach().float().flatten(1))
        return self.last(self.first(x)) + side.double(), side


@case
class AutocastThatIsOff(Autocast):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.training):
            side = F.linear(x.detach().float().flatten(1), self.side.weight_orig)
        return self.last(self.first(x)) + side.double(), side


@case
class Detached(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * h.detach().mean(0)


@case
class StraightThrough(Net):
    def between(self, h: Tensor) -> Tensor:
        return h + ((h > 0.1).to(h.dtype) - h).detach()


@case
class DetachedInPlace(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) * 2
        h.detach_()
        return self.last(h)


@case
class Checkpoint(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(lambda x: self.drop(self.first(x)), x, use_reentrant=False)
        return checkpoint(self.last, h, use_reentrant=False)


@case
class ReentrantCheckpoint(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.first, x, use_reentrant=True))


@case
class CheckpointOfAPart(Net):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(self.conv, nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.part, x, use_reentrant=False))


@case
class HookOnAnActivation(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if h.requires_grad:
            h.register_hook(lambda g: g * 2 + 1)
        return self.last(h)


@case
class HookThatKeepsAGradient(Net):
    """As Grad-CAM does."""

    def __init__(self) -> None:
        super().__init__()
        self.gradients: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if h.requires_grad:
            h.register_hook(self.gradients.append)
        return self.last(h)


@case
class RetainedGradient(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.first(x)
        if self.hidden.requires_grad:
            self.hidden.retain_grad()
        return self.last(self.hidden)

    def seen(self) -> Any:
        return self.hidden.grad


@case
class SavedOnTheCpu(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            h = self.first(x)
        return self.last(h)


@case
class SavedByHooks(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            return self.last(self.first(x))


@case
class NormThatEvaluates(Net):
    """As in detection, where the statistics of a backbone are frozen within forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)

    def between(self, h: Tensor) -> Tensor:
        trained = self.norm(h)
        was = self.norm.training
        self.norm.eval()
        h = trained + self.norm(h)
        self.norm.train(was)
        return h


@case
class AsksForTraining(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * 2 if self.training else torch.sin(h)


@case
class AsksForGradients(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * 2 if torch.is_grad_enabled() else torch.sin(h)


@case
class AsksWhetherItIsScripted(Net):
    def between(self, h: Tensor) -> Tensor:
        if torch.jit.is_scripting() or torch.jit.is_tracing():
            return h
        return h * 3


@case
class AsksForRequiresGrad(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * 2 if h.requires_grad and self.conv.weight_orig.requires_grad else h

    def change(self, turn: int) -> None:
        self.conv.requires_grad_(turn % 3 != 1)


@case
class OwnFunction(Net):
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clamp(-0.2, 0.2)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * torch.tanh(ctx.saved_tensors[0])  # not the derivative

    def between(self, h: Tensor) -> Tensor:
        return self.Clipped.apply(h)


@case
class GradientWithinForward(Net):
    """As an energy model has it: its output is a derivative."""

    sparse = False

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.last(torch.tanh(self.conv(x))).square().sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return force


@case
class MultipliesMasksWithoutGradients(Net):
    """As a target network does that shares its weights with the one in training."""

    def last(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            weight = self.lin.weight_orig * self.lin.weight_mask
        return F.linear(h.flatten(1), weight, self.lin.bias)
