from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from bppsa.codegen import cache

ROOT = Path(__file__).parents[2]


class Maker:
    """Writes its content and counts how often it was asked to."""

    def __init__(self, content: bytes = b"made") -> None:
        self.content = content
        self.calls = 0

    def __call__(self, path: Path) -> None:
        self.calls += 1
        path.write_bytes(self.content)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kernels"
    monkeypatch.setenv("BPPSA_CACHE_DIR", str(path))
    monkeypatch.setattr(cache, "_warned", set())
    return path


def read(name: str, make: Callable[[Path], None]) -> bytes:
    with cache.entry(name, make) as path:
        return path.read_bytes()


def test_made_once_and_kept_private(home: Path) -> None:
    make = Maker()
    assert read("a.so", make) == read("a.so", make) == b"made"
    assert make.calls == 1
    assert home.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in home.iterdir())


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"BPPSA_CACHE_DIR": "{0}/b", "XDG_CACHE_HOME": "{0}/x"}, "b"),
        ({"XDG_CACHE_HOME": "{0}/x"}, "x/bppsa"),
        ({"XDG_CACHE_HOME": "relative"}, "home/.cache/bppsa"),
        ({"BPPSA_CACHE_DIR": "~/own"}, "home/own"),
        ({}, "home/.cache/bppsa"),
    ],
)
def test_place(variables: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BPPSA_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value in {"HOME": "{0}/home", **variables}.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    with cache.entry("a.so", Maker()) as path:
        assert path == tmp_path / expected / "a.so"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def swap_in_another_entry(path: Path) -> None:
    read("b.so", Maker(b"another"))
    for suffix in ("", ".sha256"):
        os.replace(path.with_name("b.so" + suffix), path.with_name("a.so" + suffix))


DAMAGES = {
    "truncated": truncate,
    "foreign": lambda path: path.write_bytes(b"somebody else's"),
    "another entry, with its digest": swap_in_another_entry,
    "missing": Path.unlink,
    "without digest": lambda path: path.with_name(path.name + ".sha256").unlink(),
    "digest of garbage": lambda path: path.with_name(path.name + ".sha256").write_bytes(b"\xff\xfe"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_file_is_made_anew(home: Path, damage: Callable[[Path], None]) -> None:
    make = Maker()
    read("a.so", make)
    damage(home / "a.so")
    assert read("a.so", make) == b"made"
    assert make.calls == 2
    assert read("a.so", make) == b"made"
    assert make.calls == 2


def test_what_make_raises_passes_through_and_leaves_nothing(home: Path) -> None:
    def make(path: Path) -> None:
        path.write_bytes(b"half")
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        read("a.so", make)
    assert {path.name for path in home.iterdir()} == {"a.so.lock"}


def assert_works_with_one_warning(match: str) -> None:
    make = Maker()
    with pytest.warns(RuntimeWarning, match=match) as caught:
        assert read("a.so", make) == read("b.so", make) == b"made"
    assert make.calls == 2
    assert [str(warning.message).count("BPPSA_CACHE_DIR") for warning in caught] == [1]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_directory_that_others_can_write_to_is_not_used(home: Path, mode: int) -> None:
    home.mkdir()
    home.chmod(mode)
    assert_works_with_one_warning("other users can write")
    assert not list(home.iterdir())


def test_directory_of_another_user_is_not_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    home.mkdir(mode=0o700)
    if owner == 0:
        os.chown(home, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert_works_with_one_warning("belongs to another user")
    assert not list(home.iterdir())


def test_directory_that_cannot_be_made(home: Path) -> None:
    home.write_text("a file")
    assert_works_with_one_warning("File exists")


def test_no_home_directory(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.delenv("BPPSA_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as it does when nobody knows
    assert_works_with_one_warning("no home directory")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_directory(home: Path) -> None:
    home.mkdir(mode=0o500)
    assert_works_with_one_warning("Permission denied")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_directory_that_takes_no_files(home: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    read("kept.so", Maker(b"kept"))
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    assert_works_with_one_warning(os.strerror(number))
    assert read("kept.so", refuse) == b"kept"


def test_full_disk_leaves_no_temporary_files(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", refuse)
    assert_works_with_one_warning("No space left")
    assert {path.suffix for path in home.iterdir()} == {".lock"}


def test_file_system_without_locks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read("a.so", Maker()) == b"made"
    assert (home / "a.so").exists()


def test_patience_ends_when_a_lock_is_never_released(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr(cache, "PATIENCE_S", 0.1)
    home.mkdir(mode=0o700)
    with open(home / "a.so.lock", "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert read("a.so", Maker()) == b"made"


def test_those_who_wait_go_on_when_the_file_is_there(home: Path) -> None:
    """The lock of a process that forked while it held it may stay held: nobody waits for that."""
    import fcntl

    make = Maker()
    read("b.so", Maker())  # makes the directory
    with open(home / "a.so.lock", "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = threading.Thread(target=read, args=("a.so", make))
        waiting.start()
        time.sleep(0.1)
        (home / "a.so.sha256").write_bytes(cache._digest("a.so", b"theirs"))
        (home / "a.so").write_bytes(b"theirs")
        waiting.join(timeout=10)
        assert not waiting.is_alive()
    assert make.calls == 0


def test_twenty_processes_make_it_once(home: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = f"""
import time
from bppsa.codegen import cache
def make(path):
    with open({str(log)!r}, "a") as log:
        log.write("made ")
    time.sleep(0.2)
    path.write_bytes(bytes(100_000))
with cache.entry("a.so", make) as path:
    assert path.read_bytes() == bytes(100_000)
"""
    started = [subprocess.Popen([sys.executable, "-W", "error", "-c", program], cwd=ROOT) for _ in range(20)]
    assert [process.wait(timeout=60) for process in started] == [0] * 20
    assert log.read_text() == "made "
