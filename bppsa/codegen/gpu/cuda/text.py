"""What ops, numbers, folds and rows are in CUDA C++."""

from __future__ import annotations

from bppsa.codegen.language.expr import SPECIAL, STRUCTURAL, Op
from bppsa.codegen.language.ir import Buffer, Kind, Reduce

CUDA: dict[Op, str] = {
    Op.ADD: "{} + {}",
    Op.SUB: "{} - {}",
    Op.MUL: "{} * {}",
    Op.DIV: "{} / {}",
    Op.MAX: "maximum({}, {})",
    Op.MIN: "minimum({}, {})",
    Op.NEG: "-{}",
    Op.ABS: "fabs({})",
    Op.EXP: "exp({})",
    Op.LOG: "log({})",
    Op.SQRT: "sqrt({})",
    Op.TANH: "hyperbolic_tangent({})",
    Op.SIGMOID: "sigmoid({})",
    Op.ERF: "erf({})",
    Op.SIN: "sin({})",
    Op.COS: "cos({})",
    Op.ATAN: "atan({})",
    Op.FLOOR: "floor({})",
    Op.FMOD: "fmod({}, {})",
    Op.EXPONENT: "exponent({})",
    Op.LDEXP: "times_power_of_two({}, {})",
    Op.LT: "real({} < {})",
    Op.LE: "real({} <= {})",
    Op.EQ: "real({} == {})",
    Op.WHERE: "{} != 0 ? {} : {}",
}
assert set(CUDA) == set(Op) - STRUCTURAL - SPECIAL  # as of Triton
# How threads fold: the function over a warp's, what adds nothing, and two numbers together.
ACROSS = {
    Reduce.ROWS: ("sum_across", "real(0)", "{} + {}"),
    Reduce.MAX: ("largest_across", "-INFINITY", "maximum({}, {})"),
}


def row_at(buffer: Buffer, after: bool) -> str:
    """The address of a row of this step, as C++."""
    step = f"(t + {'(1 - reverse)' if after else 'reverse'})" if buffer.kind is Kind.STATE else "t"
    return f"({buffer.name}_row + {step} * {buffer.name}_t)"


def literal(value: float) -> str:
    if value != value:
        return "real(NAN)"
    if value in (float("inf"), float("-inf")):
        return f"real({'-' if value < 0 else ''}INFINITY)"
    return f"real({value!r})"
