"""Feed-forward models, small: name -> (model, the shape of one sample)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Shape = tuple[int, ...]
Maker = Callable[[], tuple[nn.Module, Shape]]


def mlp(activation: Callable[[], nn.Module], depth: int = 6) -> nn.Module:
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Linear(7 if i else 5, 7), activation()]
    return nn.Sequential(*layers, nn.Linear(7, 3))


def vgg11(width: int = 4) -> nn.Module:
    """The layout of VGG-11 (configuration A) at 1/16 of its width, for 32 x 32 images."""
    layers: list[nn.Module] = []
    before = 3
    for plan in (1, 0, 2, 0, 4, 4, 0, 8, 8, 0, 8, 8, 0):
        if plan:
            layers += [nn.Conv2d(before, plan * width, 3, padding=1), nn.ReLU(inplace=True)]
            before = plan * width
        else:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, 10))


def lenet() -> nn.Module:
    """LeNet-5's layout on 20 x 20 images of one channel, narrower."""
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 5), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(3, 4, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()),
        *(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 10)),
    )


class Residual(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(out), nn.BatchNorm2d(out)])
        self.short = nn.Conv2d(channels, out, 1, stride) if (channels, stride) != (out, 1) else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.a(x)))
        return F.relu(self.norms[1](self.b(y)) + self.short(x))


def resnet() -> nn.Module:
    blocks = [Residual(3, 4, 1), Residual(4, 4, 1), Residual(4, 6, 2)]
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))


class Inverted(nn.Module):
    """A block of MobileNet: widen, depthwise, squeeze and excite, narrow."""

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Conv2d(channels, wide, 1), nn.Conv2d(wide, channels, 1)
        self.depthwise = nn.Conv2d(wide, wide, 3, padding=1, groups=wide)
        self.squeeze, self.excite = nn.Linear(wide, 2), nn.Linear(2, wide)

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.depthwise(F.relu6(self.widen(x))))
        scale = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3))))))
        return x + self.narrow(y * scale[:, :, None, None])


def mobilenet() -> nn.Module:
    blocks = [Inverted(3, 4), nn.Dropout(0.3), Inverted(3, 4)]
    return nn.Sequential(nn.Conv2d(2, 3, 3, 2, 1), *blocks, nn.Flatten(), nn.Linear(3 * 9, 4))


class Tokens(nn.Module):
    """A mixer's layout: layers over the last dimension of [B, T, K], and over the one before it."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm, self.over = nn.LayerNorm(width), nn.Linear(tokens, tokens, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.down(torch.tanh(self.up(x)))


def style() -> nn.Module:
    a, b = nn.Conv2d(2, 3, 3, bias=False), nn.Conv2d(3, 2, 2, bias=False)  # a bias before a norm has no gradient
    return nn.Sequential(a, nn.InstanceNorm2d(3, affine=True), nn.ReLU(), b, nn.InstanceNorm2d(2), nn.Flatten())


class OneNumber(nn.Module):
    """A sample that is a single number on its way, [B]."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.before(x)).sum(1)
        return self.after(torch.stack([y * y + y, y.sin()], 1))


ZOO: dict[str, Maker] = {
    "mlp tanh": lambda: (mlp(nn.Tanh), (5,)),
    "mlp relu": lambda: (mlp(lambda: nn.ReLU(inplace=True)), (5,)),
    "vgg11": lambda: (vgg11(1), (3, 32, 32)),
    "lenet": lambda: (lenet(), (1, 20, 20)),
    "resnet": lambda: (resnet(), (2, 6, 6)),
    "mobilenet": lambda: (mobilenet(), (2, 6, 6)),
    "tokens": lambda: (nn.Sequential(Tokens(3, 4), nn.ReLU(), Tokens(3, 4), nn.Flatten(), nn.Linear(12, 2)), (3, 4)),
    "style": lambda: (style(), (2, 5, 5)),
    "one number": lambda: (OneNumber(), (4,)),
}
