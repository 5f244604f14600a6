"""The modes that a job runs in: those of the thread that made the call, which a new thread has none of, and our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

DEVICES = ("cpu", "cuda")


class Harmless:
    """What modes of our own have in common: beside one of them ops give what they always give, so kernels run too."""


@dataclass(frozen=True)
class Modes:
    grad: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype], ...]  # (device type, dtype), where it is on

    @staticmethod
    def here() -> Modes:
        """The modes of the calling thread."""
        autocast = tuple((d, torch.get_autocast_dtype(d)) for d in DEVICES if torch.is_autocast_enabled(d))
        return Modes(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)

    @contextmanager
    def entered(self) -> Iterator[None]:
        if not self.autocast and self == Modes.here():  # in the thread that made the call
            yield
            return
        with ExitStack() as stack:
            for device, dtype in self.autocast:
                stack.enter_context(torch.autocast(device, dtype=dtype))
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            yield
