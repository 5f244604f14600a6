"""CUDA C++ to machine code by NVRTC, which needs no GPU and no CUDA toolkit."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

from bppsa.codegen import cache
from bppsa.errors import BuildError

MISSING = "NVRTC is not there to compile CUDA kernels; pip install 'bppsa[cuda-aot]'"
Capability = tuple[int, int]  # of a GPU, such as (9, 0)


def options_of(capability: Capability) -> list[str]:
    return [f"--gpu-architecture=sm_{capability[0]}{capability[1]}", "--std=c++17"]


def cubin(source: str, capability: Capability) -> bytes:
    """Machine code for a GPU. Kept on disk by what it is made from. Raises BuildError."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        raise BuildError(MISSING)
    options = options_of(capability)
    key = "\0".join((source, version(), *options))
    name = f"cuda_{hashlib.sha256(key.encode()).hexdigest()[:40]}.cubin"

    def make(path: Path) -> None:
        path.write_bytes(compiled(source, options)[0])

    with cache.entry(name, make) as path:
        return path.read_bytes()


def version() -> str:
    from cuda.bindings import nvrtc

    return ".".join(map(str, done(nvrtc.nvrtcVersion())))


def compiled(source: str, options: list[str]) -> tuple[bytes, str]:
    """Machine code, and what NVRTC says besides."""
    from cuda.bindings import nvrtc

    (program,) = done(nvrtc.nvrtcCreateProgram(source.encode(), b"sweep.cu", 0, [], []))
    error, *_ = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    (size,) = done(nvrtc.nvrtcGetProgramLogSize(program))
    log = b" " * size
    done(nvrtc.nvrtcGetProgramLog(program, log))
    said = log.decode(errors="replace").strip(" \0\n")
    if int(error):
        raise BuildError(f"NVRTC does not compile a kernel: {said}")
    (size,) = done(nvrtc.nvrtcGetCUBINSize(program))
    code = b" " * size
    done(nvrtc.nvrtcGetCUBIN(program, code))
    done(nvrtc.nvrtcDestroyProgram(program))
    return code, said


def done(result: tuple[Any, ...]) -> tuple[Any, ...]:
    error, *values = result
    if int(error):
        raise BuildError(f"NVRTC answers {error!r}")
    return tuple(values)
