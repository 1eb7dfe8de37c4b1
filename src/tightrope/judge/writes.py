"""Refuse a result that is written over an input, unless the kernel computes the same that way.

Idea        A run that writes over an input calls another form of its op, and is told where to write. The
            table here says, independently of what made the executable, which form computes the same
            function and over which arguments it may write. That nothing reads the old value any more is
            for the walk to say: from then on the buffer holds the result, and the input is gone.
Guarantee   A run that passes writes its result, laid out as the graph says, over all of one input of the
            same layout, of the same part, that neither the caller, a copy between tiers nor the end needs.
Complexity  Linear in the arguments of the run.
Gaps        What a kernel computes is not looked at.
"""

from msgspec.structs import replace

from tightrope.core import Argument, Graph, Items, Op, Run, StorageId, View
from tightrope.core.values import ITEM_BYTES

_FIRST = "abs cos elu erf exp gelu hardsigmoid hardswish hardtanh leaky_relu log log1p neg reciprocal rsqrt"
_FIRST += " sigmoid silu sin softplus sqrt tanh _softmax _log_softmax"
_GRADIENT = "gelu hardsigmoid hardtanh leaky_relu sigmoid silu softplus tanh threshold"
_KNOWN: dict[str, tuple[str, str, int]] = {
    **{f"aten.{name}.default": (f"aten.{name}.out", "out", 1) for name in _FIRST.split()},
    **{f"aten.{name}.Tensor": (f"aten.{name}.out", "out", 2) for name in ("add", "div", "mul", "sub")},
    **{
        f"aten.{name}_backward.default": (f"aten.{name}_backward.grad_input", "grad_input", 2)
        for name in _GRADIENT.split()
    },
    "aten._softmax_backward_data.default": ("aten._softmax_backward_data.out", "grad_input", 1),
    "aten._log_softmax_backward_data.default": ("aten._log_softmax_backward_data.out", "out", 1),
    "aten.relu.default": ("aten.relu_.default", "", 1),
    "aten.elu_backward.default": ("aten.elu_backward.grad_input", "grad_input", 1),
    "aten.clamp.default": ("aten.clamp.out", "out", 1),
    "aten.pow.Tensor_Scalar": ("aten.pow.Tensor_Scalar_out", "out", 1),
    "aten.where.self": ("aten.where.self_out", "out", 3),
    "tightrope.norm_backward": ("tightrope.norm_backward.over", "over", 2),
    **{
        f"micro.{name}": (f"micro.{name}.over", "out", leading)
        for name, leading in (
            ("add", 2),
            ("add_rows", 1),
            ("batch_norm", 1),
            ("batch_norm_input", 2),
            ("blend", 2),
            ("conv2d_add", 1),
            ("curve", 1),
            ("curve_backward", 2),
            ("dropout_backward", 1),
            ("gelu", 1),
            ("gelu_backward", 2),
            ("layer_norm", 1),
            ("layer_norm_input", 2),
            ("linear_add", 1),
            ("log_softmax", 1),
            ("log_softmax_backward", 1),
            ("q_add", 2),
            ("q_add_rows", 1),
            ("q_conv2d_add", 1),
            ("q_gelu", 1),
            ("q_linear_add", 1),
            ("q_relu_int16", 1),
            ("q_relu_int8", 1),
            ("q_table", 1),
            ("relu", 1),
            ("relu_backward", 2),
            ("softmax", 1),
            ("signs_backward", 1),
            ("t_add", 2),
            ("t_mul", 2),
            ("t_rescale", 1),
            ("t_softmax", 1),
        )
    },
}
"""Op -> its writing form, the keyword that says where, and how many leading arguments it may write over."""
_SEVERAL = frozenset({"tightrope.norm_backward"})
"""Ops that return several tensors, the first of which they write over an input; they allocate the others."""


def plain(run: Run) -> Run:
    """Take the writing away: the run as the op calls for it."""
    for target, (form, keyword, _) in _KNOWN.items():
        if form == run.target:
            return replace(run, target=target, keywords=run.keywords[:-1] if keyword else run.keywords)
    return run


def wrong_write(graph: Graph, run: Run, op: Op, buffer: int) -> str:
    """Say in words what forbids that a run writes over the storage that its op names, or nothing.

    Args:
        graph: well formed.
        run: that calls something else than its op.
        op: of the graph.
        buffer: live, of the storage that the op may write over.
    """
    form, keyword, leading = _KNOWN.get(op.target, ("", "", 0))
    if run.target != form:
        return f"calls {run.target}, which is no form of {op.target} that writes over an input"
    first = 0 if op.target in _SEVERAL else -1
    if op.mutates or op.flags or (first and len(op.results) != 1) or op.results[0].position != first:
        return "writes over an input, and changes, draws or makes something else"
    made = op.results[0].view
    if made.base != op.creates[0] or [a.storage for a in graph.allocations(op)] != list(op.creates):
        return "writes over an input, and allocates something else"
    if keyword and run.keywords[-1:] != ((keyword, replace(made, base=buffer)),):
        return f"writes to {run.keywords[-1:]}; its result is {made}, over buffer {buffer}"
    if not any(type(one) is View and one.base == op.over for one in op.arguments[:leading]):
        return f"writes over storage {op.over}, which is no argument that {form} may write over"
    if any(not _same_layout(view, made) for view in _looks(op, op.over)):
        return f"writes over storage {op.over}, which it sees in another layout than its result"
    return _wrong_storages(graph, made, op)


def _wrong_storages(graph: Graph, made: View, op: Op) -> str:
    over = op.over
    source, target = graph.storages[over], graph.storages[made.base]
    count = 1
    for stride, length in sorted(zip(made.strides, made.shape, strict=True)):
        if length != 1 and stride != count:
            return f"writes a layout {made.shape}, {made.strides} with gaps or twice"
        count *= length
    if made.offset or made.bits or not source.bytes == target.bytes == count * ITEM_BYTES[made.dtype]:
        return f"writes {count} elements over {source.bytes} bytes"
    if source.external or source.outside or source.resident_at_end or target.external or target.outside:
        return f"writes over storage {over}, which the caller has, or into one that it gets"
    before = op.id if op.target.startswith("micro.") else 0  # an output that several tiles filled
    if any(over in other.mutates for other in graph.all_ops() if other.id >= before):
        return f"writes over storage {over}, which is changed in place as well"
    return ""


def _looks(op: Op, storage: StorageId) -> list[View]:
    found: list[View] = []
    waiting: list[Argument] = [*op.arguments, *(value for _, value in op.keywords)]
    while waiting:
        value = waiting.pop()
        if type(value) is Items:
            waiting.extend(value.items)
        elif type(value) is View and value.base == storage:
            found.append(value)
    return found


def _same_layout(one: View, other: View) -> bool:
    mine = (one.dtype, one.shape, one.strides, one.offset, one.bits)
    return mine == (other.dtype, other.shape, other.strides, other.offset, other.bits)
