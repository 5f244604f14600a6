"""Print a pointwise kernel as one loop over the cache lines of images (`elementwise`): `bppsa_pointwise`."""

from __future__ import annotations

import functools
import math

from bppsa.codegen.cpu.print_cpp import skeleton
from bppsa.codegen.cpu.print_point import CPP, body
from bppsa.codegen.language.expr import SPECIAL, Access, Expr
from bppsa.codegen.language.ir import Kernel

SKELETON = ("vec.h", "intrinsics.h", "math.h", "arena.h", "images/call.h", "images/blocked.h")


@functools.lru_cache(maxsize=256)
def source(kernel: Kernel, real: str) -> str:
    """`real` is "float" or "double". Takes the kernel's arguments, how many reals each has, and threads."""
    (group,) = kernel.groups
    names = {node: f"v{i}" for i, node in enumerate(group.nodes())}
    values = [f"const V {name} = {value(node, names)};" for node, name in names.items()]
    stores = [f"store({store.target.buffer} + at, {names[store.value]});" for store in group.stores]
    pointers = ", ".join(f"real* {buffer.name}" for buffer in kernel.arguments)
    loop = body("for (int64_t at = own.begin * LANE; at < own.end * LANE; at += LANE)", [*values, *stores])
    share = ["const Range own = share(count / LANE, part, parts);", *loop]
    threads = body("in_parallel(threads, [&](int part, int parts)", share)
    function = [
        "constexpr int64_t LANE = WIDE ? L : L / 2;  // of one register",
        "using V = Vec<LANE>;",
        *threads[:-1],
        "});",
    ]
    unit = body(f"void pointwise({pointers}, int64_t count, int threads)", function)
    text = ["namespace {", *unit, "}  // namespace", "ENTRY(pointwise, pointwise)"]
    special = ("special.h",) * any(node.op in SPECIAL for node in names)
    return "\n".join([f"using real = {real};", *map(skeleton, (*SKELETON, *special)), *text])


def value(node: Expr, names: dict[Expr, str]) -> str:
    payload = node.payload
    if isinstance(payload, Access):
        return f"load<V>({payload.buffer} + at)"
    if isinstance(payload, float):
        return f"splat<V>({constant(payload)})"
    return CPP[node.op].format(*(names[arg] for arg in node.args))


def constant(number: float) -> str:
    if math.isnan(number):
        return '__builtin_nan("")'
    return repr(number) if math.isfinite(number) else "__builtin_inf()" if number > 0 else "-__builtin_inf()"
