"""Which instructions kernels are made of, and kernels that were shipped for them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from bppsa.codegen import isa
from bppsa.codegen.cpu import build, shipped
from bppsa.decisions import warn_once
from bppsa.errors import BuildError, MachineError
from wheels import ahead

ROOT = Path(__file__).parents[2]
SOURCE = '#include <omp.h>\nextern "C" int value() { return omp_in_parallel() + 41; }\n'
OTHER = SOURCE.replace("41", "42")


@pytest.mark.parametrize(
    ("machine", "features", "level"),
    [
        ("x86_64", isa.V4, "x86-64-v4"),
        ("x86_64", isa.V4 - {"avx512vl"}, "x86-64-v3"),
        ("x86_64", isa.V3 - {"fma"}, "x86-64"),
        ("aarch64", {"asimd"}, "armv8-a"),
        ("riscv64", set(), None),
    ],
)
def test_the_most_able_level(machine: str, features: set[str], level: str | None) -> None:
    found = isa.of_machine(machine, frozenset(features))
    assert (found.name if found else None) == level


def test_a_level_by_name() -> None:
    found = isa.named("x86-64-v3")
    assert (found.flags, found.wide, found.shipped) == (("-march=x86-64-v3",), False, "x86-64-v3")
    assert isa.named("x86-64-v4").wide
    assert isa.named("native").shipped == ""
    assert isa.named("native").flags == isa.named("auto").flags == ("-march=native",)
    with pytest.raises(MachineError, match=r"BPPSA_ISA=avx2 .* choose from auto, native, x86-64-v4"):
        isa.named("avx2")


def test_what_this_machine_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "cpu_features", lambda: "flags : sse2 avx2")
    with pytest.raises(MachineError, match="BPPSA_ISA=x86-64-v3: this CPU has no abm, bmi1"):
        isa.check_runs_here(isa.named("x86-64-v3"))
    isa.check_runs_here(isa.named("native"))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library of an index of two kernels, and no compiler."""
    level = isa.chosen().shipped
    if shutil.which("c++") is None or not level:
        pytest.skip("needs a C++ compiler, and a machine of a known level")
    place = tmp_path / shipped.place(level, shipped.abi())
    objects = [ahead.compile_into(place.with_suffix(""), text, isa.named(level)) for text in (SOURCE, OTHER)]
    ahead.join(objects, place)
    monkeypatch.setattr(shipped, "INDEX", tmp_path)
    monkeypatch.setattr(build, "_slots", {})
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", "")
    return place


def test_a_shipped_kernel_needs_no_compiler(index: Path) -> None:
    assert build.available() is None
    assert [build.library(text).value() for text in (SOURCE, OTHER)] == [41, 42]
    with pytest.raises(BuildError, match=r"no kernel of this text was shipped, and no C\+\+ compiler .* install g\+\+"):
        build.library(SOURCE + "\n")


def test_other_instructions_have_other_kernels(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "chosen", lambda: isa.named(isa.NATIVE))
    assert "install g++" in str(build.available())
    with pytest.raises(BuildError, match="install g"):
        build.library(SOURCE)


def test_a_shipped_kernel_that_does_not_load(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line tells of all of them, and a compiler that is there builds them."""
    index.write_bytes(b"\x7fELF truncated")
    warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            with pytest.raises(BuildError, match=r"the shipped kernels do not load, and no C\+\+ compiler"):
                build.library(SOURCE)
        monkeypatch.undo()
        monkeypatch.setattr(shipped, "INDEX", index.parents[1])
        monkeypatch.setattr(build, "_slots", {})
        assert [build.library(text).value() for text in (SOURCE, OTHER)] == [41, 42]
    (warning,) = caught
    assert re.search("do not load: .*; install bppsa again", str(warning.message))


def test_one_openmp_runtime(index: Path) -> None:
    """A shipped kernel names none, and finds torch's."""
    program = f"""
import json
from pathlib import Path
from bppsa.codegen.cpu import build, shipped
shipped.INDEX = Path({str(shipped.INDEX)!r})
assert build.library({SOURCE!r}).value() == 41
files = {{line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}}
print(json.dumps([file for file in files if Path(file).name.startswith(shipped.RUNTIMES)]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env={**os.environ}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (runtime,) = json.loads(done.stdout)
    assert "torch" in runtime
