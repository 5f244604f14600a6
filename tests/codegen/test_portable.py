"""The skeleton's headers are for every machine: one file names the instructions of some."""

from __future__ import annotations

import re

from bppsa.codegen.cpu.print_cpp import SKELETON

HOME = "intrinsics.h"
OF_A_MACHINE = re.compile(r"\b(_mm\w*|__m\d+\w*|__mmask\w*|__builtin_ia32\w*|__AVX\w*|__SSE\w*|__x86_64__|immintrin)")


def test_instructions_are_named_in_one_header() -> None:
    found = {path.name: OF_A_MACHINE.findall(path.read_text()) for path in SKELETON.glob("*.h")}
    assert found.pop(HOME)
    assert not {name: words for name, words in found.items() if words}
