"""What goes with the tensors of a message: the form of a value, in full for the first time and then as a number."""

from __future__ import annotations

import pickle
import struct
from typing import NamedTuple

import torch

from bppsa.runtime.transport.carrier import TAGS
from bppsa.runtime.transport.layout import Layout, PackedMessage, buffers

_FORMS = 1024  # that are remembered; with more, as from lengths that are never the same, numbers begin again


class _Letter(NamedTuple):
    """layout: None where the reader knows it by its number; tag: of the first large tensor."""

    number: int
    layout: Layout | None
    objects: bytes
    tag: int


_SIZE = struct.Struct("<I")  # bytes of the pickled letter, behind which the small tensors are


class HeaderWriter:
    """Writes the headers of the letters to one rank, which it reads in the order in which they are written."""

    def __init__(self) -> None:
        self.numbers: dict[Layout, int] = {}
        self.tag = 0  # of the next large tensor

    def write(self, packed: PackedMessage) -> tuple[bytes, int]:
        """The letter, behind which come the small tensors, and the tag of the first large one."""
        number, layout = self.numbers.get(packed.layout), None
        if number is None:
            if len(self.numbers) == _FORMS:
                self.numbers.clear()
            number, layout = len(self.numbers), packed.layout
            self.numbers[layout] = number
        tag, self.tag = self.tag, (self.tag + len(packed.large)) % TAGS
        letter = pickle.dumps(_Letter(number, layout, packed.objects, tag))
        return _SIZE.pack(len(letter)) + letter, tag


class HeaderReader:
    """Reads the headers of the letters from one rank. wire: the device of the large tensors."""

    def __init__(self, wire: torch.device) -> None:
        self.layouts: dict[int, Layout] = {}
        self.wire = wire

    def read(self, body: bytes | bytearray) -> tuple[PackedMessage, int]:
        """The value with room for the large tensors, and the tag of the first of them."""
        (size,), rest = _SIZE.unpack_from(body), memoryview(body)[_SIZE.size :]
        letter: _Letter = pickle.loads(rest[:size])
        if letter.layout is not None:
            self.layouts[letter.number] = letter.layout
        layout = self.layouts[letter.number]
        return PackedMessage(layout, (rest[size:],), buffers(layout, self.wire), letter.objects), letter.tag
