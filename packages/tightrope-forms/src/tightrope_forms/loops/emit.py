"""Write the loops of a program as C++.

Idea        One function runs some steps. Weights are packed once, in panels of as many columns as stay in
            registers; a product adds along ``k`` in order, one sum a column and row. Pointwise statements
            are a loop over lanes whose body holds in registers what shrank to lanes.
Guarantee   The order is that which was proved. NaN and infinities go through every formula.
Gaps        Vectors of 32 bytes, which a compiler splits where the processor has none.
"""

from math import prod
from pathlib import Path
from typing import Any, Final

from tightrope.core.units import round_up
from tightrope_forms.loops.ops import ElementView, Lazy, Nest, Product, touched
from tightrope_forms.loops.order import Ordered, tile
from tightrope_forms.values.loops import Formula

PRELUDE: Final = Path(__file__).with_name("lanes.h")


class LoopLayout:
    """Where arrays are: pointers that are given, and places in scratch memory."""

    def __init__(self, one: Ordered, lanes: int) -> None:
        self.one, self.lanes = one, lanes
        lowered = one.lowered
        self.elements = {name: prod(shape) for name, shape in lowered.arrays.items()}
        self.registers = {n for n, cells in one.cells.items() if lowered.arrays[n] and cells[-1] == lanes}
        local = {name for name, cells in one.cells.items() if name[0] in "vpc" and cells[0] <= 1}
        local -= {product.target.array for product in lowered.before}
        used = {view.array for statement in lowered.work for view in touched(statement)}
        self.given = [name for name in lowered.arrays if name not in local and name in used]
        self.scratch: dict[str, int] = {}
        size = 0
        for name in sorted(local - self.registers):
            self.scratch[name], size = size, size + round_up(self.elements[name], 16)
        self.packed: dict[int, int] = {}
        for number, group in enumerate(one.groups):
            if isinstance(group, Product):
                rows, columns = group.target.meta.shape
                panel, _ = tile(rows, columns, lanes)
                self.packed[number] = size
                size += round_up(group.left.meta.shape[1] * round_up(columns, panel), 16)
        self.size = size

    def pointer(self, view: ElementView) -> str:
        """Write down where a view begins in the step that runs."""
        offset = int(view.meta.storage_offset())
        if view.array in self.scratch:
            return f"scratch + {self.scratch[view.array] + offset}"
        if view.array not in self.one.lowered.timed:
            return f"a_{view.array} + {offset}"
        cells, step = self.one.cells.get(view.array, ()), f"(t + {view.step})"
        step = f"({step} % {cells[0]})" if cells and cells[0] else step
        return f"a_{view.array} + {step} * {self.elements[view.array]} + {offset}"


def source(ways: dict[str, Ordered], real: str, lanes: int) -> str:
    """Write functions: by name, what one runs."""
    head = [f"using real = {real};\nconstexpr int W = {lanes};\n", PRELUDE.read_text("utf-8")]
    return "\n".join([*head, *(_function(name, LoopLayout(one, lanes)) for name, one in ways.items())])


def _function(name: str, layout: LoopLayout) -> str:
    lines = [
        f'extern "C" void {name}(const i64* steps, real** given) {{',
        "    real* const scratch = given[0];",
        *(f"    real* const a_{array} = given[{k}];" for k, array in enumerate(layout.given, 1)),
        "    if (steps[2]) {",
    ]
    for number, group in enumerate(layout.one.groups):
        if isinstance(group, Product):
            right, (inner, columns) = group.right, group.right.meta.shape
            panel, _ = tile(group.target.meta.shape[0], columns, layout.lanes)
            lines.append(
                f"        pack<{panel}>(a_{right.array} + {right.meta.storage_offset()}, {inner}, {columns}, "
                f"{right.meta.stride(0)}, {right.meta.stride(1)}, scratch + {layout.packed[number]});"
            )
    up, down = "t = steps[0]; t < steps[1]; ++t", "t = steps[1] - 1; t >= steps[0]; --t"
    lines += ["    }", f"    for (i64 {up if layout.one.program.direction > 0 else down}) {{"]
    for number, group in enumerate(layout.one.groups):
        if isinstance(group, Product):
            lines += _product(layout, group, number)
        else:
            lines += _Loops(layout, group).lines()
    return "\n".join([*lines, "    }", "}", ""])


def _product(layout: LoopLayout, one: Product, number: int) -> list[str]:
    rows, columns = one.target.meta.shape
    panel, block = tile(rows, columns, layout.lanes)
    bias = "nullptr, 0, 0" if one.bias is None else (
        f"{layout.pointer(one.bias)}, {one.bias.meta.stride(0)}, {one.bias.meta.stride(1)}"
    )  # fmt: skip
    return [
        f"        product<{rows}, {columns}, {one.left.meta.shape[1]}, {panel}, {block}>("
        f"{layout.pointer(one.left)}, {one.left.meta.stride(0)}, scratch + {layout.packed[number]}, {bias}, "
        f"{layout.pointer(one.target)}, {one.target.meta.stride(0)});"
    ]


class _Loops:
    """The text of one nest of pointwise statements."""

    def __init__(self, layout: LoopLayout, group: list[Nest]) -> None:
        self.layout, self.group = layout, group
        self.shape = group[0].value.shape
        self.known: list[tuple[ElementView, str]] = []
        self.body: list[str] = []
        self.parts: dict[str, str] = {}

    def lines(self) -> list[str]:
        for one in self.group:
            result = self._name(self._formula(one.value.formula, one.value))
            self.known = [(view, name) for view, name in self.known if not view.same(one.target)]
            self.known.append((one.target, result))
            if one.target.array not in self.layout.registers:
                self.body.append(f"store<N>({self._address(one.target)}, {result});")
        columns = self.shape[-1] if self.shape else 1
        shape = enumerate(self.shape[:-1])
        lead = "".join(f"for (i64 i{k} = 0; i{k} < {extent}; ++i{k}) " for k, extent in shape)
        return [
            f"        {lead}{{ auto body = [&]<int N>(std::integral_constant<int, N>, const i64 j) {{",
            *(f"            {line}" for line in self.body),
            f"        }}; lanes<{columns}>(body); }}",
        ]

    def _address(self, view: ElementView) -> str:
        strides = view.meta.stride()
        terms = [f"i{k} * {s}" for k, s in enumerate(strides[:-1]) if s and view.meta.shape[k] > 1]
        if strides and strides[-1]:
            terms.append("j" if strides[-1] == 1 else f"j * {strides[-1]}")
        return " + ".join([self.layout.pointer(view), *terms])

    def _read(self, view: ElementView) -> str:
        for known, name in self.known:
            if known.same(view):
                return name
        last = view.meta.stride()[-1] if view.meta.dim() and view.meta.shape[-1] > 1 else 0
        kind = {0: "every", 1: "load<N>"}.get(last)
        address = self._address(view)
        found = self._name(f"{kind}({address})" if kind else f"gather<N>({address}, {last})")
        self.known.append((view, found))
        return found

    def _name(self, text: str) -> str:
        if text not in self.parts:
            self.parts[text] = f"r{len(self.parts)}"
            self.body.append(f"const V {self.parts[text]} = {text};")
        return self.parts[text]

    def _formula(self, formula: Formula, value: Lazy) -> str:
        if isinstance(formula, float):
            return f"every(real({formula!r}))"
        if isinstance(formula, int):
            return self._read(value.reads[formula])
        op, *operands = formula
        given: list[Any] = [self._name(self._formula(one, value)) for one in operands]  # type: ignore[arg-type]
        return f"v_{op}({', '.join(given)})"
