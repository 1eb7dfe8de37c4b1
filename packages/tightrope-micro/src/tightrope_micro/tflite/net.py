"""A net of TensorFlow Lite in int8 as a graph of integer ops, with its numbers as they are.

Idea        Every op becomes one kernel that rounds as the reference kernel does. Input zeros go into biases:
            a sum of w * (x - zero) + b is a sum of w * x and b - zero * sum(w), where padding reads as zero.
            Padding that one convolution alone reads becomes a part of it. Ops without a reader are left out.
Source      Jacob et al. (CVPR 2018), section 2.3; the reference kernels of TensorFlow Lite
Guarantee   The bits of the reference interpreter (double rounding). No sum leaves 32 bits for any input: what
            could is refused. An op, a dtype or a form without a rule is refused by name.
Complexity  Linear in ops and bytes.
Gaps        No bands of rows; one result.
"""

import os
from pathlib import Path

import numpy as np

from tightrope.core import Graph, Kind, Storage, TightropeError, UnsupportedOpError
from tightrope.core.values import CONSTANTS, EMPTY, Part
from tightrope.lower import with_writes
from tightrope_micro.integer.net import IntegerNet
from tightrope_micro.tflite.file import TfliteFile, TfliteOp, read_tflite
from tightrope_micro.tflite.rules import TFLITE_RULES
from tightrope_micro.tflite.writer import FoldedPad, TfliteWriter


def load_tflite(path: str | os.PathLike[str]) -> IntegerNet:
    """Read a net from a ``.tflite`` file.

    Args:
        path: of at most 64 MiB, in int8, with one result; inputs and the result may be float32 or uint8
            behind QUANTIZE and before DEQUANTIZE. A batch that is not fixed becomes 1.

    Returns:
        What `infer.compile_net` takes.

    Raises:
        UnsupportedOpError: names the op, or what of it has no kernel.
        TightropeError: the packages are not there, or the file is no such net.

    Example:
        >>> load_tflite("net.tflite").output  # doctest: +SKIP
        Format(dtype='int8', scale=0.00390625, zero=-128)
    """
    file = read_tflite(Path(path))
    if len(file.outputs) != 1:
        raise TightropeError(
            f"{str(path)!r} returns {len(file.outputs)} tensors; the device returns one. Convert the scores "
            "alone."
        )
    return _written(TfliteWriter(file, str(path)), file)


def _written(writer: TfliteWriter, file: TfliteFile) -> IntegerNet:
    """Write all ops that the result needs."""
    for k, number in enumerate(file.inputs):
        writer.give(k, number)
    (output,) = file.outputs
    needed = _needed(file, output)
    writer.pads.update(_folded(file, [op for _, op in needed]))
    for k, op in needed:
        writer.at(k, op.kind)
        if op.kind not in TFLITE_RULES:
            raise UnsupportedOpError(
                f"{op.kind}, op {k} of {writer.name!r}, has no kernel. Ops there are for: "
                f"{', '.join(sorted(TFLITE_RULES))}.",
                op=op.kind,
            )
        if not op.reads:
            writer.refuse("reads nothing")
        if writer.result(op) not in writer.pads:
            TFLITE_RULES[op.kind](writer, op)
    made = writer.known.get(output)
    if made is None or made.input >= 0 or made.base == EMPTY:
        raise TightropeError(f"{writer.name!r} computes nothing: it returns what it is given.")
    t, old = writer.t, writer.t.storages[made.base]
    t.storages[made.base] = Storage(
        old.id, old.bytes, Kind.OUTPUT, 4, resident_at_end=True, label=old.label, module=old.module
    )
    said = (("device", "micro"), (CONSTANTS, str(len(writer.flash.data))))
    part = Part(len(t.ops), tuple(t.inputs), (made,))
    graph = Graph(tuple(t.ops), tuple(t.storages), parts=(part,), environment=said, alignment=4)
    inputs = tuple(writer.format(number) for number in file.inputs)
    return IntegerNet(with_writes(graph), writer.flash, (), inputs, writer.format(output))


def _needed(file: TfliteFile, output: int) -> list[tuple[int, TfliteOp]]:
    """Ops behind the result, with their places; the sizes of a RESHAPE are those that the file has."""
    wanted, found = {output}, []
    for k, op in reversed(list(enumerate(file.ops))):
        if wanted.intersection(op.makes):
            found.append((k, op))
            wanted.update(op.reads[:1] if op.kind == "RESHAPE" else op.reads)
    return found[::-1]


def _folded(file: TfliteFile, ops: list[TfliteOp]) -> dict[int, FoldedPad]:
    """Padding of rows and columns that one convolution without padding of its own alone reads."""
    found = {}
    for op in ops:
        if op.kind != "PAD" or len(op.reads) != 2 or min(op.reads) < 0 or op.makes[0] in file.outputs:
            continue
        source, ends, made = (file.tensors[k] for k in (*op.reads, op.makes[0]))
        readers = [other for other in ops if op.makes[0] in other.reads]
        alone = len(readers) == 1 and readers[0].kind in ("CONV_2D", "DEPTHWISE_CONV_2D")
        alone = alone and readers[0].reads[0] == op.makes[0] and readers[0].options["Padding"] == 1
        alike = source.scales.size == made.scales.size == 1 and source.zeros[0] == made.zeros[0]
        if not (alone and alike) or any(one.trouble for one in (source, ends, made)):
            continue
        if ends.data is None or ends.data.shape != (4, 2) or ends.dtype != "int32" or len(source.shape) != 4:
            continue
        if ends.data[[0, 3]].any() or ends.data.min() < 0:
            continue
        (top, _), (left, _) = ends.data[1:3].tolist()
        sizes = np.add(source.shape, ends.data.sum(1))
        if tuple(sizes) == made.shape:
            found[op.makes[0]] = FoldedPad(op.reads[0], top, left, made.shape[1], made.shape[2])
    return found
