"""From a captured step to a step on several streams.

Idea        Weight gradients and updates are read by nobody until the step ends, so they may run
            beside the chain of activation gradients. Waits stand exactly where data requires them.
Source      the transitive reduction of a partial order: Aho, Garey and Ullman (1972)
Guarantee   The waits make every use of a storage safe, and without any one of them some use is not.
Complexity  O((N + uses) S) for N ops on S streams
Gaps        The assignment looks at data only, not at times. The temporaries of an op count as one
            storage of their peak size.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from random import Random

from tightrope.core import Graph, Op, OpId, Phase, TightropeError, round_up
from tightrope_planners.place.streams.graph import StreamGraph, StreamStorage


def side_streams(graph: Graph, *, num_streams: int = 2, seed: int = 0) -> tuple[int, ...]:
    """Assign weight gradients and updates to side streams, everything else to stream 0.

    Args:
        graph: a captured training step.
        num_streams: streams in all; side work is spread at random over those above 0.
        seed: of the spread.

    Returns:
        The stream of each op of the base order.

    Raises:
        TightropeError: fewer than one stream.

    Example:
        >>> from tightrope.core import Storage
        >>> ops = (Op(0, "x", "t", creates=(0,)), Op(1, "dw", "t", (0,), (1,), phase=Phase.BACKWARD))
        >>> side_streams(Graph(ops, (Storage(0, 64), Storage(1, 64, resident_at_end=True))))
        (0, 1)
    """
    if num_streams < 1:
        raise TightropeError(f"{num_streams} streams: at least one is needed.")
    readers = defaultdict(set)
    for op in graph.ops:
        for storage in op.reads:
            readers[storage].add(op.phase)
    draw = Random(seed)
    aside = [num_streams > 1 and _is_side_work(graph, op, readers) for op in graph.ops]
    return tuple(draw.randrange(1, num_streams) if side else 0 for side in aside)


def _is_side_work(graph: Graph, op: Op, readers: dict[int, set[Phase]]) -> bool:
    if op.phase is Phase.OPTIMIZER:
        return True
    if op.phase is not Phase.BACKWARD or not op.creates:
        return False
    return all(
        graph.storages[storage].resident_at_end or readers[storage] == {Phase.OPTIMIZER}
        for storage in op.creates
    )


def stream_graph(
    graph: Graph, streams: Sequence[int], waits: Sequence[tuple[OpId, OpId]] | None = None
) -> StreamGraph:
    """Put a captured step on streams.

    Storages keep their numbers; the temporaries of each op follow as one storage per op that has any.
    Storages outside the arena count as 0 bytes.

    Args:
        graph: a captured training step; its base order is the issue order.
        streams: stream of each op.
        waits: pairs (earlier op, later op); None = those that data requires.

    Returns:
        The graph on streams; sizes are rounded up to each storage's alignment.

    Raises:
        TightropeError: not one stream per op, or a number out of range.

    Example:
        >>> from tightrope.core import Storage
        >>> ops = (Op(0, "x", "t", creates=(0,)), Op(1, "y", "t", (0,), (1,)))
        >>> stream_graph(Graph(ops, (Storage(0, 64), Storage(1, 64))), (0, 1)).wait_pairs()
        ((0, 1),)
    """
    if len(streams) != len(graph.ops):
        raise TightropeError(f"{len(streams)} streams for {len(graph.ops)} ops: one per op.")
    plain = StreamGraph.of(streams, [*_storages(graph), *_temporaries(graph)], waits or ())
    return plain if waits is not None else plain.with_waits(needed_waits(plain))


def _storages(graph: Graph) -> Iterator[StreamStorage]:
    writers = {made: op.id for op in graph.ops for made in op.creates}
    reads, mutates = defaultdict(list), defaultdict(list)
    for op in graph.ops:
        for changed in op.mutates:
            if writers.get(changed) != op.id:
                mutates[changed].append(op.id)
        for read in op.reads:
            if read not in op.mutates and writers.get(read) != op.id:
                reads[read].append(op.id)
    for storage in graph.storages:
        yield StreamStorage(
            bytes=0 if storage.outside else storage.size,
            writer=writers.get(storage.id, -1),
            reads=tuple(reads[storage.id]),
            mutates=tuple(mutates[storage.id]),
            resident=storage.resident_at_end,
        )


def _temporaries(graph: Graph) -> Iterator[StreamStorage]:
    for op in graph.ops:
        rows = [row for row in graph.allocations(op) if row.storage < 0 and row.bytes]
        starts = {row.start for row in rows}
        live = [sum(round_up(row.bytes) for row in rows if row.start <= t < row.end) for t in starts]
        if rows:
            yield StreamStorage(max(live), op.id)


def needed_waits(graph: StreamGraph) -> tuple[tuple[OpId, OpId], ...]:
    """List the waits that data requires; none follows from the others.

    Args:
        graph: ops on streams; the waits that it has are left out of account.

    Returns:
        Pairs (earlier op, later op), by later op.

    Example:
        >>> storages = [StreamStorage(64, 0, reads=(1, 2)), StreamStorage(64, 1, reads=(2,))]
        >>> needed_waits(StreamGraph.of([0, 1, 0], storages))
        ((0, 1), (1, 2))
    """
    wanted = _orders(graph)
    streams, positions = graph.issue.stream.tolist(), graph.issue.position.tolist()
    clocks: list[list[int]] = []
    latest: dict[int, OpId] = {}
    waits = []
    for op, stream in enumerate(streams):
        clock = list(clocks[latest[stream]]) if stream in latest else [0] * graph.num_streams
        clock[stream] = positions[op]
        # latest first: what an earlier op adds may follow from a later one, never the other way round
        for other in sorted(wanted[op], reverse=True):
            if clock[streams[other]] <= positions[other]:
                waits.append((other, op))
                clock = [max(pair) for pair in zip(clock, clocks[other], strict=True)]
                clock[streams[other]] = positions[other] + 1
        clocks.append(clock)
        latest[stream] = op
    return tuple(waits)


def _orders(graph: StreamGraph) -> list[set[OpId]]:
    """List, per op, the ops that must have ended: writers of what it uses, readers of what it changes."""
    streams = graph.streams.tolist()
    wanted: list[set[OpId]] = [set() for _ in streams]
    for storage in graph.storages():
        changes = set(storage.mutates)
        written, readers = storage.writer, dict[int, OpId]()
        for op in sorted({*storage.reads, *changes}):
            wanted[op] |= {written} - {-1}
            if op in changes:
                wanted[op].update(readers.values())
                written, readers = op, {}
            else:
                readers[streams[op]] = op
    return wanted
