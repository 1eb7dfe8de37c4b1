"""Rules for zeros around a map: part of the convolutions that read it, and of the gradients that they give.

forward     pad ---> convolution            becomes one convolution that reads further outside
backward    gradient of the input ---> crop becomes one gradient of what is inside
"""

from msgspec.structs import replace

from tightrope.core import Items, Op, View
from tightrope_micro.translator import Translator, whole_numbers

_CONVOLUTIONS = ("aten.convolution.default", "aten.convolution_backward.default")
_PAD = "aten.constant_pad_nd.default"


def as_map(view: View) -> View:
    """See a row of samples as a map of one row.

    >>> as_map(View(0, "float32", (2, 3, 8), (24, 8, 1))).shape
    (2, 3, 1, 8)
    """
    if len(view.shape) != 3:
        return view
    (n, c, w), (sn, sc, sw) = view.shape, view.strides
    return replace(view, shape=(n, c, 1, w), strides=(sn, sc, sc, sw))


def inside_convolutions(
    t: Translator, given: View, old: View, amounts: tuple[int, ...], value: float
) -> bool:
    """Note zeros around a map as part of the convolutions that read it, where those are all.

    Args:
        t: is told.
        given: what is inside.
        old: with zeros around.
        amounts: of the last dimension first, before and behind.
        value: of what is around.
    """
    spatial = len(given.shape) in (3, 4) and len(amounts) <= 2 * (len(given.shape) - 2)
    readers = [one for one in t.graph.ops if old.base in one.reads]
    kept = any(isinstance(v, View) and v.base == old.base for v in t.graph.parts[0].outputs)
    if kept or not spatial or value or min(amounts) < 0 or not readers:
        return False
    if not all(_reads_as_input(one, old) for one in readers):
        return False
    t.padded[old.base] = (given, amounts[2] if len(amounts) > 2 else 0, amounts[0])
    return True


def _reads_as_input(op: Op, x: View) -> bool:
    """Whether an op is a convolution of a tensor, or gives the gradients of one."""
    if op.target not in _CONVOLUTIONS:
        return False
    at = _CONVOLUTIONS.index(op.target)
    others = [v for k, v in enumerate(op.arguments) if isinstance(v, View) and k != at]
    return op.arguments[at] == x and all(v.base != x.base for v in others) and not op.arguments[6 + at]


def pad(t: Translator, op: Op) -> None:
    """``aten.constant_pad_nd`` of a training step."""
    given, old = op.arguments[0], t.result(0)
    assert isinstance(given, View)
    assert old is not None
    if old.base in t.known:  # a crop that the gradient before it has taken in
        return
    value = op.arguments[2] if len(op.arguments) > 2 else 0.0
    assert isinstance(value, int | float)
    if not inside_convolutions(t, given, old, whole_numbers(op.arguments[1]), float(value)):
        t.refuse("pads what not only convolutions read, or with other numbers than 0")


def unpadded(t: Translator, value: View) -> tuple[View, tuple[int, int]]:
    """See what is inside of zeros, and how many are above and to the left."""
    if value.base in t.padded:
        given, top, left = t.padded[value.base]
        return given, (top, left)
    return value, (0, 0)


def cropped(t: Translator, old: View) -> tuple[View, tuple[int, int]]:
    """See what is left of a gradient behind the crop that alone reads it, and what is cut off."""
    readers = [one for one in t.graph.ops if old.base in one.reads]
    if len(readers) == 1 and readers[0].target == _PAD:
        amounts = whole_numbers(readers[0].arguments[1])
        if max(amounts) <= 0 and isinstance(readers[0].arguments[1], Items):
            return readers[0].results[0].view, (-amounts[2] if len(amounts) > 2 else 0, -amounts[0])
    return old, (0, 0)
