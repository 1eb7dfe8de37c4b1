"""The search of fusion.cpp in Python, where there is no compiler; equal answers, far fewer labels.

A label is (clock, work, queue, tail, sent); see `tightrope_ranks.compress.search`.
"""

from itertools import accumulate
from typing import TypeAlias

from tightrope_ranks.values.exchange import ExchangeProblem

_Label: TypeAlias = tuple[float, float, float, float, int]
_Step: TypeAlias = tuple[int, int, int]
"""Label before, number of the codec, end of the message."""


def best_messages(
    problem: ExchangeProblem, *, upper: float, gap: float, width: int, most: int
) -> list[tuple[int, int]] | None:
    """Do what `tightrope_ranks.compress.fusion.best_messages` does."""
    stream, codecs, limit = problem.stream, problem.codecs, problem.limits.sent
    num = len(stream.sizes)
    size = [0, *accumulate(stream.sizes)]
    ready = [0.0, *accumulate(stream.compute)]
    sent = [[0, *accumulate(one.sent)] for one in codecs]
    least_sent = [min(one.sent[at] for one in codecs) for at in range(num)]
    to_send = [sum(least_sent[at:]) for at in range(num + 1)]
    labels: list[_Label] = [(stream.before, stream.before, 0.0, 0.0, 0)]
    steps: list[_Step] = [(-1, -1, 0)]
    fronts: list[list[int]] = [[0], *([] for _ in range(num))]
    best = -1
    for start in range(num):
        for number in fronts[start]:
            for end in range(start + 1, num + 1):
                part = size[end] - size[start]
                for which, codec in enumerate(codecs):
                    clock, work, queue, tail, bytes_sent = labels[number]
                    backward = ready[end] - ready[start] + codec.encode[0] + codec.encode[1] * part
                    decode = codec.decode[0] + codec.decode[1] * part
                    clock += backward
                    work += backward + decode
                    queue = max(queue, clock) + codec.wire[0] + codec.wire[1] * part
                    tail = max(tail, queue) + decode
                    bytes_sent += sent[which][end] - sent[which][start]
                    over = limit is not None and bytes_sent + to_send[end] > limit
                    rest = ready[num] - ready[end]
                    if over or max(work + rest, tail, queue) >= upper * (1 - gap):
                        continue
                    one = (clock, work, queue, tail, bytes_sent)
                    if end == num:
                        upper, best = max(work, tail), len(labels)
                    elif not _insert(fronts[end], labels, one, width, limit is not None):
                        continue
                    labels.append(one)
                    steps.append((number, which, end))
            if len(labels) > most:
                return None
    found = []
    while best > 0:
        before, which, end = steps[best]
        found.append((end, which))
        best = before
    return found[::-1]


def _insert(front: list[int], labels: list[_Label], one: _Label, width: int, bytes_count: bool) -> bool:
    num = 5 if bytes_count else 4
    if any(all(labels[other][at] <= one[at] for at in range(num)) for other in front):
        return False
    front[:] = [other for other in front if not all(one[at] <= labels[other][at] for at in range(num))]
    if width and len(front) >= width:
        worst = max(front, key=lambda other: max(labels[other][1:4]))
        if max(labels[worst][1:4]) <= max(one[1:4]):
            return False
        front.remove(worst)
    front.append(len(labels))
    return True
