"""How items go from worker to worker, and what a job is to those who run it: the two borders of the executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from bppsa.errors import WorkerError
from bppsa.schedule.programs.messages import Message
from bppsa.schedule.programs.program import Action


class Stopped(WorkerError):
    """Another worker has failed, as the text says."""


class Transport(Protocol):
    """Carries values between the workers of one step. A value is a pytree of tensors and other objects that pickle.

    All threads of a worker use one transport. Where a worker has failed, every call of all others raises Stopped within
    seconds, those that wait as well.
    """

    def send(self, message: Message, value: Any) -> None:
        """Hands the value on and does not wait for the receiver. The tensors must not change in this step."""

    def expect(self, *messages: Message) -> None:
        """Says that `receive` of these comes soon, so that they may be brought meanwhile."""

    def receive(self, message: Message, into: Sequence[Tensor] | None = None) -> Any:
        """Waits for a message. into: tensors to write its tensors into, in the order of the pytree."""

    def doing(self, job: str) -> None:
        """Says which job the worker begins, which is told should its process die."""


class JobWork(Protocol):
    """What jobs do, apart from who runs them, when, and what goes between them."""

    def run(self, action: Action, inputs: Sequence[Any]) -> Sequence[Any]:
        """Runs a job: from what it reads to what it writes, in these orders."""
