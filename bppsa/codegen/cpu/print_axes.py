"""Print a group of several axes: a loop for each, the one that most loads and stores move along by one innermost.

    for row: for j0: for j1: along<V>(n2, [&](mask, j, lanes) {...})

An expression is computed in the outermost loop that fixes all it depends on. What is folded along the vector axis adds
up in a register; along other axes it adds up where it is stored.

Where something is the same all along the axis before the vectors', or is folded along it, that axis is innermost,
within panels of a few vectors: what is the same, and what adds up, then stays in registers.

    for row: for j0: panels<V, K>(n2, [&](count, mask, start, lanes) {load; for j1: {for u < count: ...}; store})

What is folded along the vectors' axis there is summed for four indices of the axis before at once, by `in_fours`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from bppsa.codegen import isa
from bppsa.codegen.arrange.barriers import Cut
from bppsa.codegen.arrange.tile import tile
from bppsa.codegen.cpu.print_point import CPP, RuntimeNumbers, body
from bppsa.codegen.language.exact import addend, operands
from bppsa.codegen.language.expr import Access, Expr
from bppsa.codegen.language.ir import Group, Kind, Reduce, Store

START = {Reduce.ROWS: "0", Reduce.MAX: "-__builtin_inf()"}
JOIN = {Reduce.ROWS: "{} + {}", Reduce.COLUMNS: "{} + {}", Reduce.MAX: "maximum({}, {})"}
PANEL = {True: 20, False: 8}  # registers for what stays in them, where there are 32 of 64 bytes, and 16
ACROSS = {Reduce.ROWS: "sum({})", Reduce.COLUMNS: "sum({})", Reduce.MAX: "largest({})"}


class AxesText:
    """Members of `struct Kernel` for one group of several axes; as `print_group.GroupText`, but without panels."""

    panels: Sequence[str] = ()
    place: Sequence[str] = ()
    pack: Sequence[str] = ()
    blocks = 1

    def __init__(self, numbers: RuntimeNumbers, index: int, group: Group, size: int, sums: Sequence[str]) -> None:
        self.numbers, self.index, self.group, self.sums = numbers, index, group, sums
        self.sizes_read: list[str] = []  # run-time numbers, which stores of reals might change as the compiler sees it
        self.cut: Cut = (group.width,)
        self.order = loop_order(group)
        self.lanes = tile(group.shape[self.order[-1]], (), size).point
        self.sizes = {a: self.number(group.shape[a]) for a in self.order}
        # Lines by depth: 0 stands before the loops, d within the first d of them; in `after`, behind the inner loop.
        self.lines: list[list[str]] = [[] for _ in range(len(self.order) + 1)]
        self.after: list[list[str]] = [[] for _ in range(len(self.order) + 1)]
        self.pointers: dict[Access, str] = {}
        self.declared: set[str] = set()
        self.depth: dict[Expr, int] = {}
        self.name: dict[Expr, str] = {}
        self.stay = self.staying()
        self.panel = self.vectors()
        self.fours = self.sums_of_four()
        self.four: list[str] = []  # of four indices of the axis before the vectors', and behind them
        self.behind_four: list[str] = []
        self.before: list[str] = []  # of each vector of a panel, before the loop within it and behind that
        self.behind: list[str] = []
        self.kept: list[str] = []  # arrays of a vector for each of a panel
        for node in group.nodes():
            self.value(node)
        for n, store in enumerate(group.stores):
            self.store(store, n)
        self.members = self.function()

    @property
    def innermost(self) -> int:
        return len(self.order)

    def number(self, value: int) -> str:
        """A run-time number in a variable of the function's own."""
        name = f"n{len(self.sizes_read)}"
        self.sizes_read.append(f"const int64_t {name} = {self.numbers.number(value)};")
        return name

    def staying(self) -> set[Expr]:
        """What moves along the vector axis and is the same all along the axis before it."""
        if len(self.order) < 2:
            return set()
        *_, before, last = self.order
        moves: dict[Expr, tuple[bool, bool]] = {}
        for node in self.group.nodes():
            if isinstance(node.payload, Access):
                moves[node] = bool(self.stride(node.payload, before)), bool(self.stride(node.payload, last))
            else:
                moves[node] = any(moves[a][0] for a in node.args), any(moves[a][1] for a in node.args)
        return {node for node, moved in moves.items() if moved == (False, True)}

    def adds_up(self, store: Store) -> bool:
        """Whether it is folded along the axis before the vectors', and not along theirs."""
        if store.reduce is Reduce.NONE or len(self.order) < 2:
            return False
        return not self.stride(store.target, self.order[-2]) and bool(self.stride(store.target, self.order[-1]))

    def vectors(self) -> int:
        """The number of a panel's vectors; 0 where nothing stays in registers."""
        used = {arg for node in self.group.nodes() if node not in self.stay for arg in node.args}
        used |= {store.value for store in self.group.stores}
        count = len(self.stay & used) + sum(map(self.adds_up, self.group.stores))
        fit = [
            k
            for k in (4, 2)
            if k * count <= PANEL[isa.chosen().wide] and k * self.lanes <= self.group.shape[self.order[-1]]
        ]
        return max([1, *fit]) if count else 0

    def sums_of_four(self) -> bool:
        """Whether a panel has folds along the vector axis, and all are sums for each index of the axis before."""
        folds = [store for store in self.group.stores if store.reduce is not Reduce.NONE]
        folds = [store for store in folds if not self.stride(store.target, self.order[-1])]
        sums = (store.reduce is not Reduce.MAX and self.stride(store.target, self.order[-2]) for store in folds)
        return bool(self.panel and folds) and all(sums)

    def value(self, node: Expr) -> None:
        name = self.name[node] = f"v{len(self.name)}"
        payload = node.payload
        if isinstance(payload, Access):
            self.depth[node] = self.depth_of(payload)
            text = self.loaded(payload)
        elif payload is not None:
            assert isinstance(payload, float)
            self.depth[node], text = 0, f"splat<V>({self.numbers.constant(payload)})"
        else:
            self.depth[node] = max(self.depth[a] for a in node.args)
            text = CPP[node.op].format(*operands(node, self.name, self.numbers.exact))
        if self.panel and node in self.stay:
            self.keep(name)
            self.name[node] = f"{name}[u]"
            self.before.append(f"{name}[u] = {text};")
            return
        self.lines[self.depth[node]].append(f"const V {name} = {text};")

    def keep(self, name: str) -> None:
        self.kept.append(f"V {name}[U];")

    def depth_of(self, access: Access) -> int:
        """The loops that fix where it points."""
        return max((d + 1 for d, a in enumerate(self.order) if self.stride(access, a)), default=0)

    def stride(self, access: Access, axis: int) -> int:
        return access.strides[axis] if access.strides else 0

    def pointer(self, access: Access, loops: int) -> str:
        """Names the pointer to the element at the indices of so many of the outer loops."""
        if access not in self.pointers:
            self.pointers[access] = f"p{len(self.pointers)}"
            self.lines[0].append(
                f"real* const {self.pointers[access]} = {self.row(access)}{self.numbers.plus(access.column)};"
            )
        name = self.pointers[access]
        for d, axis in enumerate(self.order[:loops], start=1):
            if stride := self.stride(access, axis):
                outer, name = name, f"{name}_{axis}"
                if name not in self.declared:
                    self.declared.add(name)
                    self.lines[d].append(f"real* const {name} = {outer} + j{axis} * {self.number(stride)};")
        return name

    def row(self, access: Access) -> str:
        if self.numbers.kinds[access.buffer] is Kind.COLUMN_SUM:
            return f"thread.sums[{self.sums.index(access.buffer)}].part"
        slot = self.numbers.slot(access)
        return f"c.at[{slot}] + row * c.row[{slot}]"

    def loaded(self, access: Access) -> str:
        at, stride = self.pointer(access, self.innermost - 1), self.stride(access, self.order[-1])
        if stride == 0:
            return f"splat<V>(*{at})"
        if stride == 1:
            return f"mask.load({at} + j)"
        step = self.number(stride)
        return f"gather<V>({at} + j * {step}, {step}, lanes)"

    def stored(self, access: Access, value: str) -> str:
        at, stride = self.pointer(access, self.innermost - 1), self.stride(access, self.order[-1])
        if stride == 1:
            return f"mask.store({at} + j, {value});"
        step = self.number(stride)
        return f"scatter<V>({at} + j * {step}, {step}, lanes, {value});"

    def store(self, store: Store, n: int) -> None:
        target, value = store.target, self.name[store.value]
        if store.reduce not in (Reduce.NONE, Reduce.MAX):
            value = addend(store.value, value, self.numbers.exact)
        inner = self.lines[self.innermost]
        if store.reduce is Reduce.NONE:
            inner.append(self.stored(target, value))
            return
        join, direct = JOIN[store.reduce], self.is_direct(store)
        if store.reduce in START and not direct:
            count = prod(size for a, size in enumerate(self.group.shape) if self.stride(target, a))
            base = self.pointer(target, 0)
            self.lines[0].append(f"std::fill_n({base}, {self.number(count)}, real({START[store.reduce]}));")
        if self.panel and self.adds_up(store):
            self.keep(f"fold{n}")
            self.before.append(f"fold{n}[u] = {self.loaded(target)};")
            inner.append(f"fold{n}[u] = {join.format(f'fold{n}[u]', value)};")
            self.behind.append(self.stored(target, f"fold{n}[u]"))
        elif self.stride(target, self.order[-1]):
            inner.append(self.stored(target, join.format(self.loaded(target), value)))
        else:
            self.fold(store, n, value)

    def is_direct(self, store: Store) -> bool:
        """Whether the vector axis alone is folded, so that nothing has to stand there before."""
        folded = [a for a in self.order if not self.stride(store.target, a)]
        return folded == self.order[-1:] and store.reduce in START

    def fold(self, store: Store, n: int, value: str) -> None:
        """Along the vector axis, in a register."""
        own, join, least = self.innermost - 1, JOIN[store.reduce], START.get(store.reduce, "0")
        kept = f"mask.keep({value})" if least == "0" else f"mask.keep({value}, splat<V>({least}))"
        self.lines[own].append(f"V fold{n} = splat<V>({least});")
        self.lines[self.innermost].append(f"fold{n} = {join.format(f'fold{n}', kept)};")
        (self.put_four if self.fours else self.put_one)(store, n, own)

    def put_four(self, store: Store, n: int, own: int) -> None:
        """Four folds at a time go to where they belong."""
        at, stride = self.pointer(store.target, own - 1), self.number(self.stride(store.target, self.order[-2]))
        adds = "start != 0" if self.is_direct(store) else "true"
        self.four.append(f"V folds{n}[R];")
        self.after[own].append(f"folds{n}[r] = fold{n};")
        self.behind_four.append(f"put_sums({at} + first * {stride}, {stride}, folds{n}, {adds});")

    def put_one(self, store: Store, n: int, own: int) -> None:
        join = JOIN[store.reduce]
        at, total = self.pointer(store.target, own), ACROSS[store.reduce].format(f"fold{n}")
        whole = join.format(f"splat<Vec<1>>(*{at})", f"splat<Vec<1>>({total})")
        first = f"start == 0 ? {total} : ({whole})[0]" if self.panel else total  # of the panels
        self.after[own].append(f"*{at} = {first if self.is_direct(store) else f'({whole})[0]'};")

    def function(self) -> list[str]:
        *outer, _ = self.order
        within = self.in_panels() if self.panel else self.in_vectors()
        for d in range(len(outer) - bool(self.panel), -1, -1):
            within = [*self.lines[d], *within, *self.after[d]]
            if d:
                within = self.loop(outer[d - 1], within)
        rows = body("for (int64_t row = share.begin; row < share.end; ++row)", within)
        head = [f"using V = Vec<{self.lanes}>;", "[[maybe_unused]] const auto& c = thread.cursor;", *self.sizes_read]
        return body(f"NOINLINE void group{self.index}(Thread& thread, const Share& share) const", [*head, *rows])

    def loop(self, axis: int, lines: Sequence[str]) -> list[str]:
        return body(f"for (int64_t j{axis} = 0; j{axis} < {self.sizes[axis]}; ++j{axis})", lines)

    def in_vectors(self) -> list[str]:
        """The loop over the last axis."""
        call = (
            f"along<V>({self.sizes[self.order[-1]]}, [&](const auto mask, const int64_t j, const int64_t lanes) INLINED"
        )
        lines = body(call, ["(void)mask, (void)j, (void)lanes;", *self.lines[self.innermost]])
        return [*lines[:-1], "});"]

    def in_panels(self) -> list[str]:
        """The loops over the last two axes."""
        *_, axis, last = self.order
        own = self.innermost - 1
        inner = [*self.lines[own], *each_vector(self.lines[self.innermost]), *self.after[own]]
        inner = self.in_fours(axis, inner) if self.fours else self.loop(axis, inner)
        arguments = "const auto count, const auto mask, const int64_t start, const int64_t lanes"
        head = ["constexpr int U = decltype(count)::value;", "(void)mask, (void)start, (void)lanes;"]
        lines = [*head, *self.kept, *each_vector(self.before), *inner, *each_vector(self.behind)]
        lines = body(f"panels<V, {self.panel}>({self.sizes[last]}, [&]({arguments}) INLINED", lines)
        return [*lines[:-1], "});"]

    def in_fours(self, axis: int, lines: Sequence[str]) -> list[str]:
        """The loop over the axis before the vectors', four indices at a time."""
        four = body("for (int r = 0; r < R; ++r)", [f"const int64_t j{axis} = first + r;", *lines])
        head = ["constexpr int R = decltype(several)::value;", *self.four]
        call = f"in_fours({self.sizes[axis]}, [&](const auto several, const int64_t first) INLINED"
        return [*body(call, [*head, *four, *self.behind_four])[:-1], "});"]


def each_vector(lines: Sequence[str]) -> list[str]:
    """The lines for each vector of a panel."""
    if not lines:
        return []
    at = "[[maybe_unused]] const int64_t j = start + u * LANES<V>;"
    return ["UNROLL", *body("for (int u = 0; u < U; ++u)", [at, *lines])]


def loop_order(group: Group) -> list[int]:
    """The axes, the one to vectorise last: along which most that is loaded and stored stands side by side."""
    accesses = [n.payload for n in group.nodes() if isinstance(n.payload, Access)] + [s.target for s in group.stores]
    beside: Mapping[int, int] = {
        a: sum(prod(group.shape) for access in accesses if access.strides and access.strides[a] == 1)
        for a in range(len(group.shape))
    }
    last = max(beside, key=lambda a: (beside[a], a))
    return [*(a for a in range(len(group.shape)) if a != last), last]
