"""A page over a folder of figures: each picture with the paper's numbers beside ours, and what is told in text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from figures.drawing import caption
from harness import store


def write(folder: Path, names: list[str]) -> None:
    """README.md, of the figures that the folder holds."""
    held = [name for name in names if (folder / f"{name}.json").exists()]
    (folder / "README.md").write_text("\n".join(line for name in held for line in section(folder, name)) + "\n")


def section(folder: Path, name: str) -> Iterator[str]:
    record = store.load(folder / f"{name}.json")
    yield from (f"## {record['title']}", "", f"![{record['title']}]({name}.png)", "")
    yield from ("| | the paper | here |", "| --- | --- | --- |")
    yield from (f"| {row['what']} | {row['paper']} | {row['ours']} |" for row in record["beside"])
    for name, drawn in record.get("text", {}).items():
        yield from ("", f"{name}:", "", "```text", *drawn.splitlines(), "```")
    yield from ("", f"{caption(record)}.", "")
