"""Which ops may write their result over an input that nothing needs any more.

Idea        Kernels that work element by element, or row by row, have an ``out=`` form that computes the
            same where ``out`` is one of the inputs. Where that input dies at the op, the result takes its
            buffer: nothing is allocated, and the two never lie side by side.
Guarantee   Results are equal to the bit (`tests/run/test_run_writes.py` compares every form and dtype). Only
            storages that ops of the graph make are written over, never what the caller holds, gets, or
            what stays to the end; layouts are equal and dense. What is changed in place is written over by
            ops of the C library alone, by the last that reads it.
Complexity  Linear in ops and their arguments.
Gaps        Ops that allocate nothing but results, and of them the first; one input is chosen beforehand.
"""

from typing import Final, NamedTuple

from msgspec.structs import replace

from tightrope.core import Flag, Graph, Op, OpId, Result, Run, StorageId, View
from tightrope.core.values import ITEM_BYTES, views


class Form(NamedTuple):
    """The form of an op that writes where it is told.

    Attributes:
        target: of the form.
        keyword: by which it is told; empty = it always writes over its first argument.
        positions: of the arguments that it may write over.
        several: whether it returns several tensors: the first is written, the others are allocated.
    """

    target: str
    keyword: str
    positions: tuple[int, ...]
    several: bool = False


def _forms() -> dict[str, Form]:
    forms: dict[str, Form] = {}
    for name in (
        "abs", "cos", "elu", "erf", "exp", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu",
        "log", "log1p", "neg", "reciprocal", "rsqrt", "sigmoid", "silu", "sin", "softplus", "sqrt", "tanh",
    ):  # fmt: skip
        forms[f"aten.{name}.default"] = Form(f"aten.{name}.out", "out", (0,))
    for name in ("add", "div", "mul", "sub"):
        forms[f"aten.{name}.Tensor"] = Form(f"aten.{name}.out", "out", (0, 1))
    for name in (
        "gelu_backward", "hardsigmoid_backward", "hardtanh_backward", "leaky_relu_backward",
        "sigmoid_backward", "silu_backward", "softplus_backward", "tanh_backward", "threshold_backward",
    ):  # fmt: skip
        forms[f"aten.{name}.default"] = Form(f"aten.{name}.grad_input", "grad_input", (0, 1))
    for name in ("_softmax", "_log_softmax"):
        forms[f"aten.{name}.default"] = Form(f"aten.{name}.out", "out", (0,))
    forms["aten._softmax_backward_data.default"] = Form("aten._softmax_backward_data.out", "grad_input", (0,))
    forms["aten._log_softmax_backward_data.default"] = Form(
        "aten._log_softmax_backward_data.out", "out", (0,)
    )
    forms["aten.relu.default"] = Form("aten.relu_.default", "", (0,))
    forms["aten.elu_backward.default"] = Form("aten.elu_backward.grad_input", "grad_input", (0,))
    forms["aten.clamp.default"] = Form("aten.clamp.out", "out", (0,))
    forms["aten.pow.Tensor_Scalar"] = Form("aten.pow.Tensor_Scalar_out", "out", (0,))
    forms["aten.where.self"] = Form("aten.where.self_out", "out", (1, 2))
    forms["tightrope.norm_backward"] = Form("tightrope.norm_backward.over", "over", (0, 1), several=True)
    return forms


def _c_forms() -> dict[str, Form]:
    forms: dict[str, Form] = {}
    for name in (
        "add_rows", "batch_norm", "conv2d_add", "curve", "dropout_backward", "gelu", "layer_norm",
        "linear_add", "log_softmax", "log_softmax_backward", "q_add_rows", "q_conv2d_add", "q_gelu",
        "q_linear_add", "q_relu_int16", "q_relu_int8", "q_table", "relu", "signs_backward", "softmax",
        "t_rescale", "t_softmax",
    ):  # fmt: skip
        forms[f"micro.{name}"] = Form(f"micro.{name}.over", "out", (0,))
    for name in (
        "add", "batch_norm_input", "blend", "curve_backward", "gelu_backward", "layer_norm_input", "q_add",
        "relu_backward", "t_add", "t_mul",
    ):  # fmt: skip
        forms[f"micro.{name}"] = Form(f"micro.{name}.over", "out", (0, 1))
    return forms


FORMS: Final = _forms()
"""Forms by target of the op."""
C_FORMS: Final = _c_forms()
"""Forms of the ops that have a kernel in C."""


def written(run: Run, view: View) -> Run:
    """Turn the run of an op into one that writes its first result to a view of an input.

    Args:
        run: with the results and allocations that are left, and none of the first.
        view: where to write.
    """
    form = FORMS.get(run.target) or C_FORMS[run.target]
    told = ((form.keyword, view),) if form.keyword else ()
    first = Result(0 if form.several else -1, view)
    return replace(run, target=form.target, keywords=(*run.keywords, *told), results=(first, *run.results))


def with_writes(graph: Graph) -> Graph:
    """Say of every op which storage it may write its result over.

    Args:
        graph: with measured allocations.

    Example:
        >>> from tightrope.core import Result, Storage
        >>> views = [View(s, "float32", (16,), (1,)) for s in range(3)]
        >>> def relu(at):
        ...     name, made = "aten.relu.default", (Result(-1, views[at + 1]),)
        ...     return Op(at, "r", name, (at,), (at + 1,), arguments=(views[at],), results=made)
        >>> caller = Storage(0, 64, external=True)
        >>> with_writes(Graph((relu(0), relu(1)), (caller, Storage(1, 64), Storage(2, 64)))).ops[1].over
        1
    """
    changed = {storage for op in graph.all_ops() for storage in op.mutates}
    producer = {storage: op.id for op in graph.ops for storage in op.creates}
    last = {storage: op.id for op in graph.ops for storage in op.reads}

    def usable(op: Op, storage: StorageId) -> bool:
        made = graph.storages[storage]
        kept = made.external or made.outside or made.resident_at_end
        filled = op.target in C_FORMS and last[storage] == op.id  # by the ops of several tiles
        return not kept and (storage not in changed or filled) and storage in producer

    def rank(op: Op, storage: StorageId) -> tuple[bool, bool]:
        """Best what dies here, and was made in the same part."""
        near = graph.part_of(producer[storage]) == graph.part_of(op.id)
        return last[storage] == op.id and near, near

    def over(op: Op) -> StorageId:
        allowed = [
            s
            for s in _fitting(graph, op)
            if usable(op, s) and (last[s] == op.id or _comes_back(graph, producer[s]))
        ]
        return max(allowed, key=lambda storage: rank(op, storage), default=-1)

    return replace(graph, ops=tuple(replace(op, over=over(op)) for op in graph.ops))


def without_writes(graph: Graph) -> Graph:
    """Let no op write over an input."""
    return replace(graph, ops=tuple(replace(op, over=-1) for op in graph.ops))


def _comes_back(graph: Graph, op: OpId) -> bool:
    return graph.ops[op].recomputable


def _fitting(graph: Graph, op: Op) -> list[StorageId]:
    """List the inputs that lie as the result will, through every view that the op has of them."""
    form = FORMS.get(op.target) or C_FORMS.get(op.target)
    if form is None or op.variant >= 0 or op.mutates or op.flags != Flag.NONE or not op.results:
        return []
    made = op.results[0]
    storage = graph.storages[made.view.base]
    bare = [allocation.storage for allocation in graph.allocations(op)] == list(op.creates)
    if (
        made.position != (0 if form.several else -1)
        or made.view.base != op.creates[0]
        or not (_writes_alone(op) if form.several else len(op.results) == 1)
        or not bare
        or storage.outside
        or storage.external
        or not _dense(made.view, storage.bytes)
    ):
        return []
    seen = [view for value in (*op.arguments, *(v for _, v in op.keywords)) for view in views(value)]
    chosen = [op.arguments[k] for k in form.positions if k < len(op.arguments)]
    return [
        one.base
        for one in chosen
        if isinstance(one, View)
        and all(_alike(view, made.view) for view in seen if view.base == one.base)
        and one.base >= 0
        and graph.storages[one.base].bytes == storage.bytes
    ]


def _writes_alone(op: Op) -> bool:
    """Tell whether the backward of a batch norm runs on the kernel that makes nothing beside its results."""
    given = [value for value in op.arguments if isinstance(value, View)]
    plain = all(view.dtype == given[0].dtype and _in_order(view) for view in given)
    gradient, value, _, _, _, mean, deviation, train, *_ = op.arguments
    alike = isinstance(gradient, View) and isinstance(value, View) and gradient.shape == value.shape
    batch = train is True and mean is not None and deviation is not None
    return plain and alike and batch and given[0].dtype in ("float32", "float64")


def _in_order(view: View) -> bool:
    """Tell whether a view is contiguous."""
    count = 1
    for stride, length in zip(reversed(view.strides), reversed(view.shape), strict=True):
        if length != 1 and stride != count:
            return False
        count *= length
    return not view.bits


def _alike(one: View, other: View) -> bool:
    return replace(one, base=0, input=-1) == replace(other, base=0, input=-1)


def _dense(view: View, size: int) -> bool:
    """Tell whether a view is all of a storage, each element once."""
    count = 1
    for stride, length in sorted(zip(view.strides, view.shape, strict=True)):
        if length != 1 and stride != count:
            return False
        count *= length
    return not view.offset and not view.bits and count > 0 and count * ITEM_BYTES[view.dtype] == size
