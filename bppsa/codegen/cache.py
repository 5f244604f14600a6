"""Files that are made once and kept on disk: compiled kernels, and what is known about the compiler.

A file is trusted when its digest, kept beside it, agrees; a truncated or foreign one is made anew. It appears by
`os.replace`, so no process ever sees half of it, and by a lock file one of many processes makes it while the rest wait.
Where the directory takes no files everything still works: the file is made in a temporary directory, in every process.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Longer than any build; a process that waited so long makes the file itself, which costs time and nothing else.
PATIENCE_S = 120.0
POLL_S = 0.02
MEND = "set BPPSA_CACHE_DIR to a directory that you own and nobody else can write to"

_warned: set[str] = set()


@contextmanager
def entry(name: str, make: Callable[[Path], None]) -> Iterator[Path]:
    """The path of the file `name`, written by `make(path)` if it is missing or damaged; good only inside the `with`.

    What `make` raises passes through. The name says all that the content depends on.
    """
    directory = _directory()
    path = directory and directory / name
    if path and _intact(path):
        yield path
        return
    with _scratch() as scratch:
        made = scratch / name
        if path is None:
            make(made)
            yield made
            return
        with _turn(path):
            kept = _intact(path)
            if not kept:
                make(made)
                kept = _publish(made, path)
        yield path if kept else made


def read(name: str) -> bytes | None:
    """What `write` has kept under the name; nothing is said, and no directory made, where it has kept nothing."""
    if not place().is_dir():
        return None
    directory = _directory()
    path = directory and directory / name
    return path.read_bytes() if path and _intact(path) else None


def write(name: str, content: bytes) -> bool:
    """Keep something that was found out rather than made from its name; False where the directory takes no files."""
    directory = _directory()
    if directory is None:
        return False
    with _scratch() as scratch:
        made = scratch / name
        made.write_bytes(content)
        return _publish(made, directory / name)


@contextmanager
def _scratch() -> Iterator[Path]:
    """Not a `TemporaryDirectory`: a child forked meanwhile would run its finalizer when it exits."""
    path = Path(tempfile.mkdtemp(prefix="bppsa-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _directory() -> Path | None:
    """The directory in which files are kept, made if missing; None, and one warning, where it cannot be used or must
    not be trusted."""
    path = place()
    objection = _prepare(path)
    if objection:
        _warn(path, objection)
        return None
    return path


def _prepare(path: Path) -> str:
    """Make the directory if missing; what is wrong with it, or ""."""
    if not path.is_absolute():
        return "this user has no home directory"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        return error.strerror or str(error)
    if status.st_uid not in (0, os.geteuid()):  # root could change our files anyway: a prebuilt cache of root's is fine
        return "it belongs to another user, whose code would run here"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "other users can write to it (mend: chmod go-w), so their code would run here"
    return ""


def place() -> Path:
    """BPPSA_CACHE_DIR, else bppsa in XDG_CACHE_HOME (which must be absolute, says its standard), else in ~/.cache."""
    if chosen := os.environ.get("BPPSA_CACHE_DIR"):
        return Path(os.path.abspath(os.path.expanduser(chosen)))
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "bppsa")


def _warn(path: Path, why: str) -> None:
    """One warning a process for each directory."""
    if str(path) not in _warned:
        _warned.add(str(path))
        text = f"compiled kernels are not kept in {path}: {why}. They are built again in every process; {MEND}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _digest_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _digest(name: str, content: bytes) -> bytes:
    """The name takes part: a good file copied over another one is foreign too."""
    return hashlib.sha256(name.encode() + b"\0" + content).hexdigest().encode()


def _intact(path: Path) -> bool:
    try:
        return _digest_path(path).read_bytes() == _digest(path.name, path.read_bytes())
    except OSError:
        return False


def _publish(made: Path, path: Path) -> bool:
    """Copy `made` to `path`; False, and one warning, where that fails: full disk, quota, read-only file system.

    The digest comes second: in between, and after a race of two publishers, the pair disagrees and counts as missing.
    """
    content = made.read_bytes()
    try:
        _replace(path, content)
        _replace(_digest_path(path), _digest(path.name, content))
    except OSError as error:
        _warn(path.parent, error.strerror or str(error))
        return False
    return True


def _replace(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with open(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Hold the lock of `path`, or return without it: when another process has made the file, when the lock is held too
    long, or where locks do not work. The kernel drops the lock of a process that dies."""
    import fcntl  # not on Windows, where no kernel is built

    try:
        handle = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if _intact(path):
                    break
                time.sleep(POLL_S)
            except OSError:  # a file system without locks
                break
            else:
                break
        yield
    finally:
        # Unlocked by name: a child forked meanwhile shares the open file, and closing ours would leave it locked.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)
