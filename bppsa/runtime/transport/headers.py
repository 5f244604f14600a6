"""What goes with the tensors of a message: the form of a value, in full for the first time and then as a number."""

from __future__ import annotations

import pickle
import struct
import threading
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from bppsa.runtime.transport.carrier import TAGS
from bppsa.runtime.transport.frames import Bytes
from bppsa.runtime.transport.layout import Layout, PackedMessage, buffers, filled_up, padded, within

_FORMS = 1024  # that are remembered; with more, as from lengths that are never the same, numbers begin again


class _Letter(NamedTuple):
    """layout: None where the reader knows it by its number; tag: of the first large tensor, None where these come with
    the letter, behind the small ones."""

    number: int
    layout: Layout | None
    objects: bytes
    tag: int | None


_SIZE = struct.Struct("<I")  # bytes of the pickled letter, behind which, filled up, the small tensors are


class HeaderWriter:
    """Writes the headers of the letters to one rank, which it reads in the order in which they are written."""

    def __init__(self) -> None:
        self.numbers: dict[Layout, int] = {}
        self.tag = 0  # of the next large tensor

    def write(self, packed: PackedMessage, whole: bool) -> tuple[bytes, int | None]:
        """The letter, behind which come the small tensors, and the tag of the first large one; whole: None, as all
        tensors go with the letter."""
        number, layout = self.numbers.get(packed.layout), None
        if number is None:
            if len(self.numbers) == _FORMS:
                self.numbers.clear()
            number, layout = len(self.numbers), packed.layout
            self.numbers[layout] = number
        tag = None if whole else self.tag
        self.tag = self.tag if whole else (self.tag + len(packed.large)) % TAGS
        letter = pickle.dumps(_Letter(number, layout, packed.objects, tag))
        return b"".join(filled_up(_SIZE.pack(len(letter)) + letter)), tag


class HeaderReader:
    """Reads the headers of the letters from one rank. wire: the device of the large tensors."""

    def __init__(self, wire: torch.device) -> None:
        self.layouts: dict[int, Layout] = {}
        self.wire = wire

    def read(self, body: Bytes) -> tuple[PackedMessage, int | None]:
        """The value with room for the large tensors, and the tag of the first of them; None where they are there."""
        (size,), whole = _SIZE.unpack_from(body), memoryview(body)
        letter: _Letter = pickle.loads(whole[_SIZE.size : _SIZE.size + size])
        if letter.layout is not None:
            self.layouts[letter.number] = letter.layout
        layout, rest = self.layouts[letter.number], whole[padded(_SIZE.size + size) :]
        large = buffers(layout, self.wire) if letter.tag is not None else tuple(_behind(layout, rest))
        return PackedMessage(layout, (rest,), large, letter.objects), letter.tag


class Peer:
    """Another rank. The lock keeps letters to it, and what they announce, in one order. near: whether large tensors go
    with letters too, as the connection is within a machine."""

    def __init__(self, rank: int, wire: torch.device, near: bool) -> None:
        self.rank, self.writer, self.reader = rank, HeaderWriter(), HeaderReader(wire)
        self.near = near and wire.type == "cpu"
        self.lock = threading.Lock()


def _behind(layout: Layout, memory: memoryview) -> Iterator[Tensor]:
    """The large tensors, which follow the small ones."""
    sizes = [(leaf.bytes, leaf.inline) for leaf in layout.leaves if leaf]
    at = sum(padded(size) for size, inline in sizes if inline)
    for size in (size for size, inline in sizes if not inline):
        yield within(memory, at, size)
        at += padded(size)
