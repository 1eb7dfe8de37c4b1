"""From a captured step to ops that have a kernel in C.

Idea        Walk the captured ops in order; a rule per op (`tightrope_micro.rules`) writes the ops of the C
            library that compute the same. A gradient of a parameter is not made where it stands: it waits
            until its update, and the two become one op that changes the parameter while it sums. What the
            caller holds has its home in the slower tier.
Guarantee   Every op of the result reads dense float32 tensors (class numbers are int32, positions in a window
            uint8), and every parameter is changed after the last op that reads its old value.
Complexity  Linear in ops.
Gaps        A gradient that is used twice, or by more than an update, is refused.
"""

from collections.abc import Mapping

from tightrope.core import Graph, StorageId
from tightrope_micro.rules import RULES
from tightrope_micro.translator import Rule, Translator


def translate(graph: Graph, updates: Mapping[StorageId, Rule], names: Mapping[StorageId, str]) -> Graph:
    """Write a captured whole step as ops of the C library.

    Args:
        graph: of one part, with its updates.
        updates: storage of an update's settings -> its numbers.
        names: storage of the caller -> its name.

    Raises:
        UnsupportedOpError: an op has no kernel; names it.
    """
    writer = Translator(graph, updates, names)
    for op in graph.ops:
        writer.here = op
        rule = RULES.get(op.target)
        if rule is None:
            writer.refuse("has no kernel")
        rule(writer, op)
    return writer.finish()
