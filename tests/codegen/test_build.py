from __future__ import annotations

import errno
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from bppsa.codegen import cache, isa
from bppsa.codegen.cpu import build, progress
from bppsa.errors import BuildError, MachineError

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


def source(value: int) -> str:
    return f'extern "C" int value() {{ return {value}; }}\n'


def forget() -> None:
    """As in a new process."""
    build._slots.clear()
    build._probed.cache_clear()


class Wrapper:
    """A compiler that logs its calls, and may do something first."""

    def __init__(self, folder: Path) -> None:
        self.script, self.log = folder / "c++-wrapper", folder / "log"
        self.does("")

    def does(self, line: str) -> None:
        self.log.write_text("")
        self.script.write_text(f'#!/bin/sh\necho "$*" >> {self.log}\n{line}\nexec {shutil.which("c++")} "$@"\n')
        self.script.chmod(0o755)

    def builds(self) -> list[str]:
        """The calls that built a kernel; the others find out what the compiler is."""
        return [line for line in self.log.read_text().splitlines() if "-o" in line and "compiler-" not in line]


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wrapper:
    wrapper = Wrapper(tmp_path)
    monkeypatch.setenv("CXX", str(wrapper.script))
    monkeypatch.setenv("BPPSA_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(cache, "_warned", set())
    monkeypatch.setattr(build, "_slots", {})
    build._probed.cache_clear()
    return wrapper


def in_child(work: Callable[[], None]) -> int:
    """Runs `work` in a forked child; its process id."""
    child = os.fork()
    if child:
        return child
    signal.alarm(30)
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


def exit_status(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_built_once_for_process_and_disk(compiler: Wrapper) -> None:
    first = build.library(source(1))
    assert first.value() == 1
    assert build.library(source(1)) is first
    forget()
    assert build.library(source(1)).value() == 1
    assert len(compiler.builds()) == 1
    calls = compiler.log.read_text()
    forget()
    build.library(source(1))
    assert compiler.log.read_text() == calls  # a warm start asks the compiler nothing, not even its version


def test_other_text_or_machine_is_built_again(compiler: Wrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.library(source(1)).value() == 1
    assert build.library(source(2)).value() == 2
    forget()
    monkeypatch.setattr(build, "_target", lambda: ("another",))
    build.library(source(1))
    assert len(compiler.builds()) == 3


def test_other_compiler_at_the_same_path_builds_again(compiler: Wrapper) -> None:
    build.library(source(1))
    forget()
    compiler.does('[ "$1" = --version ] && { echo "c++ 99"; exit; }')
    build.library(source(1))
    assert len(compiler.builds()) == 1


@pytest.mark.parametrize("content", [b"", b"\x7fELF truncated", b"foreign"])
def test_damaged_library_is_built_again(compiler: Wrapper, content: bytes) -> None:
    build.library(source(3))
    (kept,) = cache.place().glob("*.so")
    replacement = kept.with_suffix(".damaged")  # moved over it: writing into a loaded library would be the end of us
    replacement.write_bytes(content)
    os.replace(replacement, kept)
    forget()
    assert build.library(source(3)).value() == 3
    assert len(compiler.builds()) == 2


def test_full_disk_builds_elsewhere(compiler: Wrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.warns(RuntimeWarning, match="No space left on device.*BPPSA_CACHE_DIR") as caught:
        assert [library.value() for library in build.build_many([source(4), source(5)])] == [4, 5]
    assert len(caught) == 1


def test_no_room_anywhere(compiler: Wrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(BuildError, match=r"No space left on device.*TMPDIR"):
        build.library(source(4))


def test_compiler_that_is_not_there(compiler: Wrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/c++ -m64")
    assert "CXX=/nonexistent/c++ -m64 is not a program" in str(build.available())
    with pytest.raises(BuildError, match=r"/nonexistent/c\+\+.*unset CXX"):
        build.library(source(5))
    monkeypatch.delenv("CXX")
    assert build.available() is None
    assert build.library(source(5)).value() == 5  # a missing compiler is not remembered


def test_no_compiler_at_all(compiler: Wrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "  ")
    monkeypatch.setenv("PATH", "")
    assert "install g++" in str(build.available())
    with pytest.raises(BuildError, match=r"no C\+\+ compiler.*install g\+\+ .* or set CXX"):
        build.library(source(6))


def test_program_that_is_no_compiler(compiler: Wrapper) -> None:
    compiler.does("echo 'error: not today' >&2; exit 3")
    with pytest.raises(BuildError, match=r"(?s)c\+\+-wrapper --version: exit status 3.*not today.*CXX"):
        build.library(source(6))


def test_compile_error_names_command_lines_and_mend_and_is_remembered(compiler: Wrapper) -> None:
    for _ in range(2):
        with pytest.raises(BuildError) as caught:
            build.library('extern "C" int value() { return nonsense; }')
    text = str(caught.value)
    assert all(part in text for part in (str(compiler.script), "-O3", "error:", "nonsense", "set CXX"))
    assert len(text.splitlines()) < 10
    assert len(compiler.builds()) == 1


def test_library_that_does_not_load(compiler: Wrapper) -> None:
    with pytest.raises(BuildError, match=r"(?s)does not load.*nowhere_defined.*BPPSA_CACHE_DIR"):
        build.library('extern "C" int nowhere_defined(); extern "C" int value() { return nowhere_defined(); }')


@pytest.mark.parametrize("unknown", ["-fopenmp", "-march=native"])
def test_flag_that_the_compiler_does_not_know_is_left_out(compiler: Wrapper, unknown: str) -> None:
    compiler.does(f'case "$*" in *{unknown}*) echo "error: unsupported option {unknown}" >&2; exit 1;; esac')
    assert build.library(source(7)).value() == 7
    (command,) = compiler.builds()
    known = {"-fopenmp", "-march=native"} - {unknown}
    assert unknown not in command
    assert all(flag in command for flag in known)


def test_a_level_that_the_compiler_does_not_know(compiler: Wrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    """As g++ before 11: kernels of fewer instructions than were asked for would come without a word."""
    compiler.does('case "$*" in *-march=x86-64-v3*) echo "error: bad value for -march=" >&2; exit 1;; esac')
    monkeypatch.setattr(isa, "chosen", lambda: replace(isa.named("x86-64-v3"), needs=frozenset()))
    for _ in range(2):
        with pytest.raises(MachineError, match=r"BPPSA_ISA=x86-64-v3: .*c\+\+-wrapper does not know -march=x86-64-v3"):
            build.library(source(12))
    assert not compiler.builds()


def test_words_of_cxx_are_kept(compiler: Wrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{compiler.script} -DVALUE=8")
    assert build.library('extern "C" int value() { return VALUE; }').value() == 8


def test_threads_build_once(compiler: Wrapper) -> None:
    compiler.does("sleep 0.1")
    with ThreadPoolExecutor(8) as pool:
        libraries = list(pool.map(build.library, [source(9)] * 8))
    assert {id(library) for library in libraries} == {id(libraries[0])}
    assert len(compiler.builds()) == 1


def test_build_many_keeps_the_order_and_raises_what_a_build_raises(compiler: Wrapper) -> None:
    values = [3, 1, 2, 1]
    assert [library.value() for library in build.build_many([source(value) for value in values])] == values
    assert len(compiler.builds()) == 3
    assert build.build_many([]) == []
    with pytest.raises(BuildError):
        build.build_many([source(1), "int f( {"])


def test_twenty_processes_build_once(compiler: Wrapper) -> None:
    def work() -> None:
        assert build.library(source(10)).value() == 10

    children = [in_child(work) for _ in range(20)]
    assert [exit_status(child) for child in children] == [0] * 20
    assert len(compiler.builds()) == 1


def test_child_forked_during_a_build_builds_too(compiler: Wrapper) -> None:
    compiler.does("sleep 0.2")
    build.library(source(0))  # finds out what the compiler is, so that what follows is one build

    def work() -> None:
        assert build.library(source(11)).value() == 11
        assert len(compiler.builds()) == 2

    building = threading.Thread(target=work)
    building.start()
    while source(11) not in build._slots:
        time.sleep(0.001)
    time.sleep(0.05)
    assert exit_status(in_child(work)) == 0
    building.join()


@pytest.mark.parametrize("told", [False, True])
def test_a_long_build_says_once_where_kernels_are_kept(
    compiler: Wrapper, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], told: bool
) -> None:
    monkeypatch.setattr(progress, "BUILDS", progress.LateNotice(0.05 if told else 1000.0))
    compiler.does("sleep 0.3")
    for value in (1, 2):
        build.library(source(value))
    kept = f"bppsa: building kernels once, kept in {os.environ['BPPSA_CACHE_DIR']}\n"
    assert capsys.readouterr().err == (kept if told else "")


def test_a_long_text_is_optimised_less(compiler: Wrapper) -> None:
    build.library(source(5))
    build.library(source(6) + "// " + "x" * build.LONG_TEXT)
    assert [" -O1 " in line for line in compiler.builds()] == [False, True]
