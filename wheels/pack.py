"""A wheel of the package with the kernels of an index, for the oldest platform that they run on.

python wheels/pack.py build/kernels dist      needs pip, setuptools, wheel and auditwheel
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build"
MOST_BYTES = 15_000_000
PLATFORM = "linux_x86_64"


def main(index: str, out: str) -> None:
    """Print where it is, its size, and what `auditwheel show` says of it. Exits with 1 where it is too large."""
    work = BUILD / "wheel"
    for stale in (work, BUILD / "lib"):  # setuptools packs what it finds there
        shutil.rmtree(stale, ignore_errors=True)
    run("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work), str(ROOT))
    (plain,) = work.glob("*.whl")
    run("wheel", "unpack", "--dest", str(work), str(plain))
    (folder,) = (path for path in work.iterdir() if path.is_dir())
    for library in Path(index).glob("*/*.so"):
        place = folder / "bppsa" / "shipped" / library.relative_to(index)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)
    mark(folder)
    plain.unlink()
    run("wheel", "pack", "--dest-dir", str(work), str(folder))
    (packed,) = work.glob("*.whl")
    run("wheel", "tags", "--remove", "--platform-tag", oldest(packed), str(packed))
    (tagged,) = work.glob("*.whl")
    Path(out).mkdir(exist_ok=True)
    found = Path(shutil.copy(tagged, out))
    size = found.stat().st_size
    held = [entry for entry in zipfile.ZipFile(found).infolist() if entry.filename.endswith(".so")]
    for entry in held:
        print(f"{entry.filename}: {entry.file_size / 1e6:.1f} MB, {entry.compress_size / 1e6:.1f} MB in the wheel")
    print(f"{found}: {size / 1e6:.1f} MB")
    if size > MOST_BYTES:
        sys.exit(f"a wheel may have {MOST_BYTES / 1e6:.0f} MB")


def oldest(wheel: Path) -> str:
    """The tag of the oldest platform that has the symbols it asks for, as auditwheel finds it."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    print(told.strip())
    tag = re.search(r'platform tag: "(manylinux_[0-9_]+_[a-z0-9_]+)"', told.replace("\n", " "))
    if tag is None:
        sys.exit("auditwheel knows no platform that this wheel is for")
    return tag[1]


def mark(folder: Path) -> None:
    """That it holds machine code."""
    (text,) = folder.glob("*.dist-info/WHEEL")
    marked = text.read_text().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
    text.write_text(marked.replace("-any", f"-{PLATFORM}"))


def run(module: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", module, *words], check=True, cwd=ROOT)


if __name__ == "__main__":
    main(*sys.argv[1:])
