"""Whether a plan computes what the call that it was made of has computed: outputs, and all gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bppsa.errors import Unsupported, first_line
from bppsa.fxpasses.theirs import raise_if_ours, theirs

# How far numbers may differ, in parts of the largest entry, by dtype: rounding over some thousand steps stays below,
# errors do not.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.complex128: 1e-9, torch.complex64: 1e-4}
# Where float64 decides: rounding grows there too, and an error of this size would pass in float32.
GROWN = dict.fromkeys(TOLERANCE, 1e-5)
# The least scale of a gradient, in parts of the largest one: terms of a smaller one may be as large and cancel, as
# those of a bias before a batch norm.
CANCELLED = 1e-2


class Differs(Unsupported):
    """A plan that was made, and computes something else than PyTorch."""


class OtherNumbers(Differs):
    """The same but for its numbers, which rounding may explain."""


@dataclass(frozen=True)
class TensorNames:
    """What a message calls outputs, and what the two runs are given: parameters, and paths in what is handed over."""

    outputs: Sequence[str] = ()
    given: Sequence[str] = ()

    def output(self, i: int) -> str:
        return self.outputs[i] if i < len(self.outputs) else f"output {i}"

    def gradient(self, i: int) -> str:
        return f"the gradient of {self.given[i] if i < len(self.given) else f'tensor {i}'}"


NAMELESS = TensorNames()


def check_alike(
    expected: Sequence[Tensor], ours: Sequence[Tensor], given: Sequence[Tensor], names: TensorNames = NAMELESS
) -> None:
    """expected: what PyTorch returned; given: what the two runs were given. Raises `Differs` where they differ."""
    for i, (their, our) in enumerate(zip(expected, ours, strict=True)):
        if steps(their) != steps(our):
            lies = f"{names.output(i)} would lie in memory with strides {steps(our)} in the place of {steps(their)}"
            raise Differs(lies, mend="return contiguous() or a clone of it")
    if shared([*expected, *given]) != shared([*ours, *given]):
        raise Differs("returns tensors that share memory in another way than PyTorch's")
    check_numbers(expected, ours, given, names=names)


def check_numbers(
    expected: Sequence[Tensor],
    ours: Sequence[Tensor],
    given: Sequence[Tensor],
    tolerance: Mapping[torch.dtype, float] = TOLERANCE,
    names: TensorNames = NAMELESS,
) -> None:
    for i, (their, our) in enumerate(zip(expected, ours, strict=True)):
        described = tuple((t.shape, t.dtype, t.requires_grad) for t in (their, our))
        if described[0] != described[1]:
            raise Differs(f"{names.output(i)} differs from PyTorch's in its shape, dtype or gradient")
        check_close(their, our, names.output(i), tolerance)
    at = [i for i, tensor in enumerate(given) if tensor.requires_grad]
    leaves = [given[i] for i in at]
    pairs = list(zip(gradients_by_pytorch(expected, leaves), gradients(ours, leaves), strict=True))
    largest = max((largest_entry(wanted) for wanted, _ in pairs if wanted is not None), default=0.0)
    for i, (wanted, found) in zip(at, pairs, strict=True):
        if (wanted is None) != (found is None):
            raise Differs(f"{names.gradient(i)} is there in one of the runs alone")
        if wanted is not None and found is not None:
            check_close(wanted, found, names.gradient(i), tolerance, CANCELLED * largest)


def steps(tensor: Tensor) -> list[int]:
    """Its strides where they are a step to another entry."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def shared(tensors: Sequence[Tensor]) -> list[int]:
    """The first tensor that has the same memory as each: whoever writes to one of them changes the other."""
    known: dict[int, int] = {}
    return [known.setdefault(tensor.untyped_storage()._cdata, at) for at, tensor in enumerate(tensors)]


def check_close(
    expected: Tensor, found: Tensor, what: str, tolerance: Mapping[torch.dtype, float], least: float = 0.0
) -> None:
    """least: what their difference is small beside, whatever their own size is."""
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        if not torch.equal(expected, found):
            raise OtherNumbers(f"{what} is not PyTorch's")
        return
    expected, found = expected.detach(), found.detach()
    scale = max(largest_entry(expected), least)
    most = tolerance.get(expected.dtype, 1e-2) * max(scale, torch.finfo(expected.dtype).tiny)
    if not torch.allclose(found, expected, rtol=0.0, atol=most, equal_nan=True):
        error = finite(found - expected).abs().max().item()
        raise OtherNumbers(f"{what} differs from PyTorch's by {error:.2g}, of {scale:.2g}")


def largest_entry(tensor: Tensor) -> float:
    """Returns the largest magnitude among the finite entries, 0 where there are none."""
    return finite(tensor.detach()).abs().max().item() if tensor.numel() else 0.0


def finite(tensor: Tensor) -> Tensor:
    return torch.where(tensor.isfinite(), tensor, 0.0)


def gradients_by_pytorch(outputs: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """Raises `Unsupported` where there are none: that is an error once someone asks for them, and not before."""
    try:
        return gradients(outputs, leaves)
    except RuntimeError as error:
        raise_if_ours(error)
        raise Unsupported(f"PyTorch cannot differentiate it: {first_line(error)}") from error


def gradients(outputs: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients of all outputs together, weighted by numbers that are the same in both runs."""
    wanted = [output for output in outputs if output.requires_grad]
    if not wanted or not leaves:
        return [None] * len(leaves)
    weights = list(weights_of(wanted))
    retained = [(leaf, leaf.grad) for leaf in leaves if leaf.retains_grad]
    found = theirs(torch.autograd.grad, wanted, leaves, weights, retain_graph=True, allow_unused=True)
    for leaf, gradient in retained:  # where autograd has left that of this trial
        leaf.grad = gradient
    return list(found)


def weights_of(outputs: Sequence[Tensor]) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for output in outputs:
        yield torch.randn(output.shape, dtype=output.dtype, generator=generator).to(output.device)
