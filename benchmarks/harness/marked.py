"""Results on a page of the docs, between a pair of marks such as <!-- ratios --> and <!-- /ratios -->."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.store import Results


def write(page: Path, mark: str, lines: Iterable[str]) -> None:
    text = page.read_text()
    between = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.DOTALL)
    if not between.search(text):
        raise SystemExit(f"{page} has no place for {mark}: <!-- {mark} --> ... <!-- /{mark} -->")
    body = "\n".join(lines)
    page.write_text(between.sub(lambda found: f"{found[1]}{body}\n{found[2]}", text))


def footer(what: str, results: Results, on: dict[str, Any], file: str, command: str) -> str:
    """What was measured, on which machine, and how it is measured on another."""
    of = results["machine"]
    return (
        f"{what}: medians of {on['repeats']} interleaved runs, quartiles in brackets, float32. {of['cpu']}, "
        f"{of['cores']} cores, {of['capability']}; {on['threads']} threads; torch {on['torch']}; {on['compiler']}; "
        f"revision {on['revision']}{' with changes' if on['dirty'] else ''}, {on['date'][:10]} "
        f"(`benchmarks/results/{file}`). `{command}` measures them on your machine."
    )
