"""A forward in float32 becomes one in integers, after training: formats, shifts, narrow and wide values.

Idea        Weights take 8 bits, with one unit per output channel. What a layer reads takes 8 bits; what is
            added up, the residual stream, and what a layer norm reads takes 16. A value that is needed both
            ways is kept wide and narrowed before its first narrow use. Sums and copies share one unit, so
            that they need no multiplication. A thin stream has 8 bits and its own unit: it is multiplied
            into the 32-bit sums of the layer that adds to it, so that the result is rounded once. ReLU is a
            clamp of what comes before it, GELU a table.
Source      Jacob et al. (CVPR 2018); I-BERT (ICML 2021) and FQ-ViT (IJCAI 2022) for what they leave open
Guarantee   What is returned has passed `net_proof.prove_net`: no intermediate leaves 32 bits for any input.
            Units come from the ranges that are given: what lies outside saturates.
Complexity  Linear in ops and weights, times the candidates of `epilogue.rescale`.
Gaps        Symmetric units; attention without a mask; epsilon of a layer norm is 0.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from tightrope.core import (
    Argument,
    Graph,
    Input,
    Kind,
    Op,
    Storage,
    StorageId,
    UnsupportedOpError,
    View,
)
from tightrope.core.values import CONSTANTS, EMPTY, Part
from tightrope.lower import with_writes
from tightrope_micro.constants import Constants, is_constant
from tightrope_micro.forward.capture import FloatNet
from tightrope_micro.forward.reference import SCORES, curved
from tightrope_micro.integer.costs import KernelForm
from tightrope_micro.integer.demands import Demands, demands_of
from tightrope_micro.integer.epilogue import LIMITS, MOST_PRE, rescale
from tightrope_micro.integer.forms import KernelForms, RowKernel, form_of
from tightrope_micro.integer.misfits import refuse_endless, refuse_far_off
from tightrope_micro.integer.net import Format, IntegerNet
from tightrope_micro.integer.net_proof import prove_net
from tightrope_micro.integer.program import RowKind, RowProgram
from tightrope_micro.names import BLENDS, REDUCTIONS
from tightrope_micro.translator import HOME, Translator, contiguous

NARROW, WIDE = "int8", "int16"
_LARGEST_BIAS: Final = 2.0**24
_LARGEST_FACTOR: Final = 2.0**20
"""Units of a layer's sums in one of the stream that it adds to."""
_LARGEST_SHARE: Final = 2**14
_MOST_OFF: Final = 0.25
"""Units of the result by which a whole factor may move a stream."""
_SHARE: Final = {NARROW: 2 / 255, WIDE: 1 / (255 * 128)}
"""Units of a softmax: of its 8 bits without a sign."""


def quantize(
    net: FloatNet,
    ranges: Mapping[str, float],
    *,
    core: str = "",
    floats: bool = False,
    softmax_of: Callable[[float, int], RowKernel] | None = None,
    norm_of: Callable[..., RowKernel] | None = None,
    prove: bool = True,
    narrow: bool = False,
    thin: Collection[StorageId] = (),
) -> IntegerNet:
    """Write a captured forward in integers.

    Args:
        net: captured.
        ranges: largest absolute values, as `forward.reference.ranges_of` finds them.
        core: whose costs choose among polynomial, table and float, one of `costs.CORES`; empty = polynomials
            for softmax and layer norm, tables for GELU.
        floats: whether softmax, GELU and layer norm may compute in float where that costs less on the core.
        softmax_of: makes the kernel of a scale and a length instead.
        norm_of: makes the kernel of weights, biases and a unit instead.
        prove: refuse what may leave 32 bits; False is for controls alone.
        narrow: return 8 bits, and shift after the multiplication alone: what an interpreter of 8-bit nets
            computes whose products are rounded once. All channels of a layer share that one shift: where one
            is so much smaller than another that it would be off by more than a unit, that is refused.
        thin: values that sums read in 8 bits, as `streams.quantize_within` chooses them.

    Raises:
        UnsupportedOpError: an op has no integer kernel; names it.
        JudgeError: an intermediate may leave 32 bits; names op, value and range.
        TightropeError: no shifts fit an op; or, of a narrow net, one shift does not do for all channels of a
            layer, named with the channel and how far off it would be.
    """
    refuse_endless(net, ranges)
    forms = KernelForms(core, floats)
    makers = (softmax_of or forms.softmax, norm_of or forms.layer_norm, forms.gelu)
    demands = demands_of(net.graph, NARROW if narrow else WIDE, frozenset(thin))
    writer = _Quantizer(net, ranges, demands, makers, 0 if narrow else MOST_PRE)
    found = writer.written()
    if prove:
        prove_net(found.graph, found.constants, found.programs)
    return found


class _Quantizer:
    def __init__(
        self,
        net: FloatNet,
        ranges: Mapping[str, float],
        demands: Demands,
        makers: tuple[Callable[[float, int], RowKernel], Callable[..., RowKernel], Callable[..., RowKernel]],
        most_pre: int = MOST_PRE,
    ) -> None:
        self.most_pre = most_pre
        self.net, self.ranges, self.demands = net, ranges, demands
        self.softmax_of, self.norm_of, self.gelu_of = makers
        self.t = Translator(net.graph, {}, {})
        self.flash = Constants()
        self.programs: list[RowKernel] = []
        self.chosen: dict[str, KernelForm] = {}
        self.forms: dict[tuple[StorageId, str], View] = {}
        self.formats: dict[StorageId, Format] = {}
        self.inputs: list[Format] = []
        self.most = self._most()
        self.shares = {op.creates[0] for op in net.graph.ops if op.target == "micro.softmax"}
        self.shapes = {r.view.base: r.view.shape for op in net.graph.ops for r in op.results}
        self.shapes |= {g.view.base: g.view.shape for g in net.graph.parts[0].inputs if g.view is not None}

    def _most(self) -> dict[StorageId, float]:
        """Largest absolute value by storage; by group for those that share a unit."""
        graph = self.net.graph
        own = {s: self.ranges[op.name] for op in graph.ops for s in op.creates[:1]}
        own |= {s.id: self.ranges[s.module] for s in graph.storages if s.external}
        for after, before in self.demands.rectified.items():
            own[before] = own[after]
        for op in graph.ops:  # constants that are added or joined share the unit of the sum
            if op.target in ("micro.add", "micro.add_rows", "micro.cat"):
                for value in op.arguments:
                    if isinstance(value, View) and value.base == EMPTY:
                        largest = float(np.abs(self.net.constants.read(value)).max(initial=0))
                        made = op.creates[0]
                        own[made] = max(own[made], largest)
        return own

    def _scale(self, storage: StorageId, dtype: str) -> float:
        group = self.demands.group(storage, dtype)
        if storage in self.shares and len(group) == 1:
            return _SHARE[dtype]
        return max(self.most[one] for one in group) / LIMITS[dtype][1]

    def written(self) -> IntegerNet:
        graph = self.net.graph
        for one in graph.parts[0].inputs:
            self._input(one)
        for op in graph.ops:
            self.t.here = op
            if op.target != "micro.row_stats" and op.creates[0] not in self.demands.rectified:
                _RULES.get(op.target, _Quantizer._refuse_op)(self, op)
        (out,) = graph.parts[0].outputs
        assert isinstance(out, View)
        self.t.here = graph.ops[-1]
        result = self._form(self.demands.root(out.base), self.demands.returned)
        result = View(result.base, result.dtype, out.shape, contiguous(out.shape))
        old = self.t.storages[result.base]
        self.t.storages[result.base] = Storage(
            old.id, old.bytes, Kind.OUTPUT, 4, resident_at_end=True, label=old.label, module=old.module
        )
        part = Part(len(self.t.ops), tuple(self.t.inputs), (result,))
        made = Graph(
            tuple(self.t.ops), tuple(self.t.storages), parts=(part,), name=graph.name,
            environment=(("device", "micro"), (CONSTANTS, str(len(self.flash.data)))), alignment=4,
        )  # fmt: skip
        inputs, output = tuple(self.inputs), self.formats[result.base]
        programs = tuple(self.programs)
        return IntegerNet(with_writes(made), self.flash, programs, inputs, output, self.formats, self.chosen)

    def _input(self, one: Input) -> None:
        assert one.view is not None
        old = self.net.graph.storages[one.view.base]
        number = len(self.t.storages)
        label = f"int8[{'x'.join(map(str, one.view.shape))}]"
        self.t.storages.append(
            Storage(
                number,
                old.bytes // 4,
                Kind.INPUT,
                4,
                external=True,
                label=label,
                module=old.module,
                home=HOME,
            )
        )
        shape = one.view.shape
        view = View(number, NARROW, shape, contiguous(shape), input=len(self.t.inputs))
        self.t.inputs.append(Input(old.module, view))
        self.forms[one.view.base, NARROW] = view
        form = Format(NARROW, self._scale(one.view.base, NARROW))
        self.inputs.append(form)
        self.formats[number] = form

    def _form(self, storage: StorageId, dtype: str) -> View:
        """A value in a format, converted where it is not yet there."""
        if (storage, dtype) in self.forms:
            return self.forms[storage, dtype]
        other = NARROW if dtype == WIDE else WIDE
        given = self.forms[storage, other]
        ratio = self._scale(storage, other) / self._scale(storage, dtype)
        low, high = LIMITS[other]
        found = rescale(np.array([max(-low, high)]), np.array([ratio]), "a change of format")
        numbers = (found.multipliers[0], found.pre, found.shift, *LIMITS[dtype])
        return self._emit("q_narrow" if dtype == NARROW else "q_widen", (given, *numbers), storage, dtype)

    def _read(self, value: Argument, dtype: str) -> View:
        """An argument as the integer op reads it: laid out as the float op sees it."""
        assert isinstance(value, View)
        view = self._form(self.demands.root(value.base), dtype)
        return View(view.base, view.dtype, value.shape, value.strides, input=view.input)

    def _emit(self, target: str, arguments: tuple[Any, ...], old: StorageId, dtype: str) -> View:
        """Write an op that makes a value in a format."""
        view = self.t.emit(target, arguments, [(dtype, self.shapes[old])])[0]
        self.forms[old, dtype] = view
        self.formats[view.base] = Format(dtype, self._scale(old, dtype))
        return view

    def _made(self, op: Op) -> tuple[StorageId, str]:
        """What an op makes, and in which format: wide where that is wanted."""
        made = op.creates[0]
        return made, WIDE if WIDE in self.demands.wanted.get(made, ()) else NARROW

    def _ends(self, made: StorageId, dtype: str) -> tuple[int, int]:
        low, high = LIMITS[dtype]
        top = self.demands.tops.get(made, math.inf) / self._scale(made, dtype)
        return (0 if made in self.demands.rectified.values() else low), min(
            high, max(1, round(min(top, high)))
        )

    def _layer(self, op: Op) -> None:
        """A convolution or a dense layer, with or without a sum behind it."""
        adds = op.target.endswith("_add")
        stream, x, weight, bias, *rest = op.arguments if adds else (None, *op.arguments)
        assert isinstance(weight, View)
        w = self.net.constants.read(weight).astype(np.float64)
        flat = w.reshape(len(w), -1)
        b = self.net.constants.read(bias).astype(np.float64) if isinstance(bias, View) else np.zeros(len(w))
        given = self._read(x, NARROW)
        unit = self.formats[given.base].scale
        units = np.abs(flat).max(axis=1) / LIMITS[NARROW][1]
        units = np.maximum(units, np.maximum(np.abs(b) / (unit * _LARGEST_BIAS), 1e-12))
        made, dtype = self._made(op)
        factors = None
        if adds:
            stream, units, factors = self._added(op, unit, units)
            dtype = dtype if factors is not None else WIDE
        whole = np.rint(flat / units[:, None]).astype(np.int64)
        start = np.rint(b / (unit * units)).astype(np.int64)
        bounds = np.abs(start) + np.abs(whole).sum(axis=1) * -LIMITS[given.dtype][0]
        bounds += 0 if factors is None else factors * -LIMITS[NARROW][0]
        ratios = unit * units / self._scale(made, dtype)
        what = f"the sums of {op.module or op.name}"
        found = rescale(bounds, ratios, what, most_pre=self.most_pre)
        if not self.most_pre:
            refuse_far_off(found, bounds, ratios, LIMITS[dtype][1], op)
        times = np.array(found.multipliers, np.int32)
        times = times if factors is None else np.stack((times, factors.astype(np.int32)))
        constants = (
            self.flash.put(whole.reshape(w.shape).astype(np.int8)),
            self.flash.put(start.astype(np.int32)),
            self.flash.put(times),
        )
        numbers = (*rest, found.pre, found.shift, *self._ends(made, dtype))
        arguments = (given, *constants, *numbers)
        name = op.target.removeprefix("micro.")
        self._emit(f"q_{name}", (stream, *arguments) if adds else arguments, made, dtype)

    def _added(
        self, op: Op, unit: float, units: NDArray[np.float64]
    ) -> tuple[View, NDArray[np.float64], NDArray[np.int64] | None]:
        """What a layer adds to, the units of its weights, and units of its sums in one of a thin stream."""
        if self.demands.adds_narrow(op):
            view = self._read(op.arguments[0], NARROW)
            scale = self.formats[view.base].scale
            units = np.maximum(units, scale / (unit * _LARGEST_FACTOR))
            factors = np.rint(scale / (unit * units))
            off = np.abs(factors * unit * units - scale) * -LIMITS[NARROW][0] / self._scale(*self._made(op))
            if off.max() <= _MOST_OFF:
                return view, units, factors.astype(np.int64)
        return self._read(op.arguments[0], WIDE), units, None

    def _sum(self, op: Op) -> None:
        """A sum of two values of one unit, or of one and a constant; or of two in 8 bits, of any units."""
        left, right = op.arguments
        made = op.creates[0]
        if self.demands.adds_narrow(op):
            views = [self._read(value, NARROW) for value in (left, right)]
            scales = [self.formats[view.base].scale for view in views]
            unit, (_, dtype) = max(scales) / _LARGEST_SHARE, self._made(op)
            factors = [round(scale / unit) for scale in scales]
            ratio = np.array([unit / self._scale(made, dtype)])
            found = rescale(np.array([sum(factors) * -LIMITS[NARROW][0]]), ratio, f"sums of {op.name}")
            numbers = (*factors, found.multipliers[0], found.pre, found.shift, *self._ends(made, dtype))
            self._emit("q_add", (*views, *numbers), made, dtype)
            return
        if is_constant(left):
            left, right = right, left
        x, ends = self._read(left, WIDE), self._ends(made, WIDE)
        if isinstance(right, View) and right.base == EMPTY:
            row = self.net.constants.read(right) / self._scale(made, WIDE)
            other = self.flash.put(np.clip(np.rint(row), *LIMITS[WIDE]).astype(np.int16))
            self._emit("q_add_rows", (x, other, *ends), made, WIDE)
        elif op.target == "micro.add_rows":
            self._refuse("adds rows that are computed")
        else:
            self._emit("q_add", (x, self._read(right, WIDE), *ends), made, WIDE)

    def _norm(self, op: Op) -> None:
        x, _, weight, bias = op.arguments
        assert isinstance(x, View)
        length = x.shape[-1]
        gamma = self.net.constants.read(weight).tolist() if isinstance(weight, View) else [1.0] * length
        beta = self.net.constants.read(bias).tolist() if isinstance(bias, View) else [0.0] * length
        made = op.creates[0]
        name = self._program(self.norm_of(gamma, beta, self._scale(made, NARROW)), "layer_norm")
        self._emit("q_layer_norm", (self._read(x, WIDE), name), made, NARROW)

    def _program(self, program: RowKernel, kind: str) -> str:
        assert self.t.here is not None
        self.chosen[self.t.here.name] = form_of(program)
        name = f"{kind}_{sum(one.name.startswith(kind) for one in self.programs)}"
        same = next(
            (one.name for one in self.programs if replace(one, name="") == replace(program, name="")), ""
        )
        if not same:
            self.programs.append(replace(program, name=name))
        return same or name

    def _attention(self, op: Op) -> None:
        q, k, v = (self._read(value, NARROW) for value in op.arguments[:3])
        scale, causal = op.arguments[3:5]
        assert isinstance(scale, float)
        if causal:
            self._refuse("is causal; the integer kernel has no mask")
        units = [self.formats[one.base].scale for one in (q, k, v)]
        scores = self.ranges[f"{op.name} {SCORES}"] / LIMITS[NARROW][1]
        size, keys, made = q.shape[3], k.shape[1], op.creates[0]
        first = rescale(
            np.array([size * 2**14]), np.array([units[0] * units[1] * scale / scores]), f"scores of {op.name}"
        )
        second = rescale(
            np.array([keys * 255 * 2**7]), np.array([units[2] / 255 / self._scale(made, NARROW)]),
            f"sums of {op.name}",
        )  # fmt: skip
        name = self._program(self.softmax_of(scores, keys), "softmax")
        numbers = (
            first.multipliers[0],
            first.pre,
            first.shift,
            second.multipliers[0],
            second.pre,
            second.shift,
        )
        makes = [(NARROW, q.shape), ("uint8", (2, keys))]
        found = self.t.emit("q_attention", (q, k, v, *numbers, name), makes)[0]
        self.forms[made, NARROW] = found
        self.formats[found.base] = Format(NARROW, self._scale(made, NARROW))

    def _gelu(self, op: Op) -> None:
        given, made = self._read(op.arguments[0], NARROW), op.creates[0]
        length = self.shapes[made][-1]
        program = self.gelu_of(self.formats[given.base].scale, self._scale(made, NARROW), length)
        if form_of(program) is not KernelForm.TABLE:
            name = self._program(program, "gelu")
            self._emit("q_gelu", (given, name, length), made, NARROW)
            return
        assert isinstance(program, RowProgram)
        self.chosen[op.name] = KernelForm.TABLE
        table = next(value.numbers for value in program.values if value.kind is RowKind.LOOKUP)
        self._emit("q_table", (given, self.flash.put(np.array(table, np.int8))), made, NARROW)

    def _curve(self, op: Op) -> None:
        """A function of one number: a table."""
        given, made = self._read(op.arguments[0], NARROW), op.creates[0]
        name, *numbers = op.arguments[1:]
        low, high = LIMITS[NARROW]
        real = torch.arange(low, high + 1, dtype=torch.float64) * self.formats[given.base].scale
        found = curved(real, str(name), *numbers).numpy() / self._scale(made, NARROW)
        whole = np.clip(np.rint(np.nan_to_num(found, nan=0.0)), low, high)
        self._emit("q_table", (given, self.flash.put(whole.astype(np.int8))), made, NARROW)

    def _softmax(self, op: Op) -> None:
        _, size, inner, logs = op.arguments
        assert isinstance(size, int)
        if inner != 1 or logs or any(len(self.demands.group(op.creates[0], d)) > 1 for d in (NARROW, WIDE)):
            self._refuse("takes logarithms, goes over an inner dimension, or its result is added or copied")
        given = self._read(op.arguments[0], NARROW)
        made, dtype = self._made(op)
        name = self._program(self.softmax_of(self.formats[given.base].scale, size), "softmax")
        makes = [(dtype, self.shapes[made]), ("uint8", (size,))]
        found = self.t.emit("q_softmax", (given, size, name), makes)[0]
        self.forms[made, dtype] = found
        self.formats[found.base] = Format(dtype, self._scale(made, dtype))

    def _average(self, op: Op) -> None:
        given, made = self._read(op.arguments[0], NARROW), op.creates[0]
        count = math.prod(given.shape) // math.prod(op.results[0].view.shape)
        if op.target == "micro.avg_pool2d":
            window = op.arguments[1]
            count = math.prod(getattr(window, "items", ()))
        ratio = self.formats[given.base].scale / count / self._scale(made, NARROW)
        found = rescale(np.array([count * 2**7]), np.array([ratio]), f"sums of {op.name}")
        numbers = (*op.arguments[1:], found.multipliers[0], found.pre, found.shift, *LIMITS[NARROW])
        self._emit(op.target.replace("micro.", "q_"), (given, *numbers), made, NARROW)

    def _pool(self, op: Op) -> None:
        given = self._read(op.arguments[0], NARROW)
        self._emit("q_max_pool2d", (given, *op.arguments[1:]), op.creates[0], NARROW)

    def _copied(self, op: Op) -> None:
        """A copy in another order, or of two values behind each other: in every format that is wanted."""
        made = op.creates[0]
        for dtype in sorted(self.demands.wanted.get(made, ())):  # of a copy that nothing reads, none
            values: list[Argument] = []
            for value in op.arguments:
                if isinstance(value, View) and value.base == EMPTY:
                    whole = np.rint(self.net.constants.read(value) / self._scale(made, dtype))
                    value = self.flash.put(np.clip(whole, *LIMITS[dtype]).astype(dtype))
                values.append(
                    self._read(value, dtype) if isinstance(value, View) and value.base != EMPTY else value
                )
            self._emit(op.target.removeprefix("micro."), tuple(values), made, dtype)

    def _relu(self, op: Op) -> None:
        """A ReLU of what others read too."""
        made = op.creates[0]
        dtype = WIDE if WIDE in self.demands.wanted[made] else NARROW
        self._emit(f"q_relu_{dtype}", (self._read(op.arguments[0], dtype),), made, dtype)

    def _refuse_op(self, op: Op) -> None:
        self._refuse("has no integer kernel")

    def _refuse(self, why: str) -> NoReturn:
        assert self.t.here is not None
        kind = next((str(v) for v in self.t.here.arguments if isinstance(v, str)), "")
        who = self.t.here.describe()
        if kind in (*BLENDS, *REDUCTIONS):
            who = who.replace(self.t.here.target, kind)
        raise UnsupportedOpError(f"{who} {why}: compile the net in float32, or replace the op.", op=who)


_Rule = Callable[[_Quantizer, Op], None]
_RULES: Final[dict[str, _Rule]] = {
    **{f"micro.{name}": _Quantizer._layer for name in ("conv2d", "conv2d_add", "linear", "linear_add")},
    "micro.add": _Quantizer._sum,
    "micro.add_rows": _Quantizer._sum,
    "micro.attention": _Quantizer._attention,
    "micro.avg_pool2d": _Quantizer._average,
    "micro.cat": _Quantizer._copied,
    "micro.curve": _Quantizer._curve,
    "micro.gather": _Quantizer._copied,
    "micro.gelu": _Quantizer._gelu,
    "micro.layer_norm": _Quantizer._norm,
    "micro.max_pool2d_only": _Quantizer._pool,
    "micro.mean_rows": _Quantizer._average,
    "micro.relu": _Quantizer._relu,
    "micro.softmax": _Quantizer._softmax,
}
