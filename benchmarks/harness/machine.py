"""What a measurement ran on: the machine names the file, the rest stands beside every set of rows."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from bppsa.codegen.cpu.build import COMPILERS

ROOT = Path(__file__).parents[2]
CPUINFO = Path("/proc/cpuinfo")
SIMD = re.compile(r"avx\w*|fma|asimd\w*|sve\w*")


def hardware() -> dict[str, Any]:
    """simd: what the CPU can do; kernels of PyTorch may be held to less, which is `capability`."""
    found = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", CPUINFO.read_text(), re.MULTILINE)) if CPUINFO.exists() else {}
    flags = (found.get("flags") or found.get("Features") or "").split()
    return {
        "cpu": found.get("model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "capability": torch.backends.cpu.get_cpu_capability(),
        "simd": [flag for flag in flags if SIMD.fullmatch(flag)],
    }


def file_name(of: dict[str, Any]) -> str:
    return slug(f"{of['cpu']} {of['cores']} cores {of['capability']}") + ".json"


def slug(words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def software() -> dict[str, Any]:
    """Versions, and when."""
    changed = output("git", "status", "--porcelain", "--", "bppsa", "benchmarks", "figures", ":!benchmarks/results")
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "revision": output("git", "rev-parse", "--short=12", "HEAD"),
        "dirty": None if changed is None else bool(changed),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "compiler": compiler(),
    }


def compiler() -> str | None:
    names = os.environ.get("CXX", "").split()[:1] or COMPILERS
    found = next(filter(None, map(shutil.which, names)), None)
    text = output(found, "--version") if found else None
    return text.splitlines()[0] if text else None


def output(*command: str) -> str | None:
    """What the command prints; None where there is no such program or it fails, e.g. git outside a clone."""
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def load() -> float:
    """How many processes were running over the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def require_onednn() -> None:
    """Without it nn.LSTM takes five times as long, and every ratio to it would flatter us."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        raise SystemExit("this PyTorch has oneDNN off or missing: its nn.LSTM is no baseline")
