"""bppsa.scan with its kernels built: the path that users run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import bppsa
from bppsa.codegen.cpu.build import available
from bppsa.codegen.cpu.native import NativeKernel
from bppsa.frontend.cell import plans
from tests.scan.folds import mlstm
from tests.scan.matrices import Sizes, gated_delta_by_einsum, heads_by_einsum, mamba
from tests.scan.support import check, check_inference
from tests.scan.zoo import NATIVE, Example, lstm, make

pytestmark = pytest.mark.skipif(available() is not None, reason="needs a C++ compiler")
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the folder's interpreted ones."""
    monkeypatch.setattr(plans._plans.kept, "known", OrderedDict())


@pytest.mark.parametrize("case", NATIVE)
def test_equals_a_loop(case: Callable[[], Example]) -> None:
    for reverse in (False, True):
        assert check(make(case), reverse=reverse).strategy == "sequential"
        check_inference(make(case), reverse=reverse)


@pytest.mark.parametrize("make", [gated_delta_by_einsum, mamba, mlstm, heads_by_einsum])
@pytest.mark.parametrize("sizes", [Sizes(3, 2, 17, 8), Sizes(1, 4, 3, 33)], ids=str)
def test_matrices_equal_a_loop(make: Callable[[Sizes], Example], sizes: Sizes) -> None:
    torch.manual_seed(0)
    assert check(make(sizes)).strategy == "sequential"
    check_inference(make(sizes), reverse=True)


def test_the_kernels_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once forward, once backward, and once without gradients."""
    ran = []
    original = NativeKernel.__call__

    def spy(self: NativeKernel, *args: object, **kwargs: object) -> None:
        ran.append(self.kernel.name)
        original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(NativeKernel, "__call__", spy)
    given = make(lstm)
    bppsa.scan(*given[:3])[1].sum().backward()
    with torch.no_grad():
        bppsa.scan(*given[:3])
    assert ran == ["forward", "backward", "inference"]


HEAVY = "torch._dynamo", "torch._inductor", "torch._subclasses.fake", "torch.fx.experimental", "sympy"
PROGRAM = f"""
import sys, torch
before = set(sys.modules)
import bppsa
from tests.scan.zoo import lstm, make
given = make(lstm)
bppsa.scan(*given[:3])[1].sum().backward()
assert given.parameters[0].grad.any()
new = set(sys.modules) - before
print([name for name in new if name.startswith({HEAVY!r})])
"""


def test_starts_without_the_compiler_stack_of_torch() -> None:
    """Importing it takes a second, which a scan must not cost."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_without_a_compiler_the_loop_runs_and_says_so() -> None:
    program = """
import warnings, torch, bppsa
from tests.scan.support import results, same
from bppsa.runtime.recurrent.reference import loop
from tests.scan.zoo import lstm, make
given = make(lstm)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    got = results(bppsa.scan, given), results(bppsa.scan, given)
expected = results(loop, given)
same(got[0][0], expected[0]); same(got[0][1], expected[1])
print(len([w for w in caught if "bppsa" in str(w.message)]), caught[0].message)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"CXX": "no-such-compiler", "PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 ")
    assert "CXX" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_scans() -> None:
    with plans._plans.kept.lock:  # as if another thread were inside when we fork
        child = os.fork()
        if not child:
            signal.alarm(30)
            torch.set_num_threads(1)  # PyTorch's own OpenMP threads are gone too
            done = bppsa.scan(lambda h, x: (h + x, h), torch.zeros(2, 3), torch.ones(4, 2, 3))
            os._exit(len(done) != 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
