"""How many cycles a step of a compiled kernel takes, from its machine code: a model of one warp of an sm_90.

Instructions issue in order. The wait of an instruction of fixed latency stands in its control word, as cycles until the
next one; one of variable latency sets one of six barriers, for which later ones wait. The latencies of the latter are
those below. What is fetched from memory is assumed to be there in time. For Triton's kernels an H200 took 1.05 to 1.5
times as long as the model says with one warp a scheduler, and 1.7 to 2.3 times with two.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass

GHZ = 1.98  # an H200's
LATENCY = {"LDS": 29, "STS": 20, "SHFL": 24, "MUFU": 22, "BAR": 24, "LDC": 40, "LDL": 35, "STL": 20, "STG": 20}
# Cycles for which an instruction keeps the others off a unit that a scheduler has a part of, and the unit.
BUSY = {"LDS": ("memory", 2), "STS": ("memory", 2), "SHFL": ("memory", 2), "LDG": ("memory", 2), "STG": ("memory", 2)}
BUSY |= {"MUFU": ("special", 8)}
BUSY |= dict.fromkeys(("IADD3", "LOP3", "SHF", "ISETP", "FSETP", "SEL", "FSEL", "LEA", "MOV", "PRMT"), ("integer", 2))
REPEATS = 6  # of the loop, of which the first ones fill the pipes
LABEL = re.compile(r"^(\.L_x_\d+):")
FIRST = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?);\s*/\* (0x[0-9a-f]+) \*/")
SECOND = re.compile(r"\s*/\* (0x[0-9a-f]+) \*/")
BRANCH = re.compile(r"\bBRA(?:\.\w+)*\s+(?:!?U?P\w+,\s*)?`\((\.L_x_\d+)\)")


@dataclass(frozen=True)
class Instruction:
    """control: the upper half of its word."""

    text: str
    control: int

    @property
    def op(self) -> str:
        return re.sub(r"^@!?U?P\w+\s+", "", self.text).split()[0]

    @property
    def base(self) -> str:
        return self.op.split(".")[0]

    def bits(self, low: int, count: int) -> int:
        return (self.control >> low) & ((1 << count) - 1)


@dataclass(frozen=True)
class Modelled:
    """Of one step: cycles, instructions, and how often the threads meet."""

    cycles: float
    instructions: float
    meetings: float

    @property
    def microseconds(self) -> float:
        return self.cycles / GHZ / 1000


def modelled(cubin: bytes, nvdisasm: str, steps: int) -> Modelled:
    """steps: of one turn of the kernel's longest loop."""
    body = longest_loop(*disassembled(cubin, nvdisasm))
    counts = Counter(instruction.base for instruction in body)
    meetings = counts["BAR"] + counts["WARPSYNC"] + sum(i.base == "NOP" for i in body)  # a warp's is a NOP
    return Modelled(simulated(body) / steps, len(body) / steps, meetings / steps)


def disassembled(cubin: bytes, nvdisasm: str) -> tuple[list[Instruction], dict[str, int]]:
    """The instructions, and at which of them labels stand."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([nvdisasm, "-c", "-hex", file.name], capture_output=True, text=True, check=True).stdout
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in said.splitlines():
        if label := LABEL.match(line.strip()):
            labels[label[1]] = len(found)
        elif first := FIRST.match(line):
            found.append(Instruction(first[2].strip(), 0))
        elif (second := SECOND.match(line)) and found:
            found[-1] = Instruction(found[-1].text, int(second[1], 16))
    return found, labels


def longest_loop(code: list[Instruction], labels: dict[str, int]) -> list[Instruction]:
    loops = []
    for at, instruction in enumerate(code):
        back = BRANCH.search(instruction.text)
        if back and labels.get(back[1], len(code)) < at:
            loops.append(code[labels[back[1]] : at + 1])
    return max(loops, key=len)


def simulated(body: list[Instruction]) -> float:
    """Cycles of a turn, once turns take equally long."""
    barriers = [0] * 6
    free: dict[str, int] = defaultdict(int)
    now, starts = 0, []
    for _ in range(REPEATS):
        starts.append(now)
        for instruction in body:
            stall, sets, reads, waits = (instruction.bits(*field) for field in ((41, 4), (46, 3), (49, 3), (52, 6)))
            issue = max([now, *(at for k, at in enumerate(barriers) if waits >> k & 1)])
            unit, busy = BUSY.get(instruction.base, ("", 0))
            if instruction.op.endswith(".128"):
                busy *= 2
            if unit:
                issue = max(issue, free[unit])
                free[unit] = issue + busy
            latency = LATENCY.get(instruction.base, 0)
            if sets < len(barriers):
                barriers[sets] = max(barriers[sets], issue + latency)
            if reads < len(barriers):
                barriers[reads] = max(barriers[reads], issue + (min(latency, 12) or 8))
            now = issue + max(stall, 1)
            if instruction.base == "BAR":
                now = max(now, issue + LATENCY["BAR"])
    return (now - starts[2]) / (REPEATS - 2)
