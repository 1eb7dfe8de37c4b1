"""Seeded instances: training steps of a transformer-like net, and cuts without waste."""

import random

from tightrope.core import Bytes
from tightrope.place import Interval


def training_step(count: int, *, recompute: bool, seed: int = 0) -> list[Interval]:
    """Draw about ``count`` buffers of a transformer-like step, perhaps with recomputed copies."""
    draw = random.Random(seed)
    tokens, width = 64 * draw.choice((16, 32, 64)), 64 * draw.choice((8, 12, 16))
    layer = [tokens * width * factor for factor in (4, 4, 12, 4, 4, 16, 16, 4)] + [tokens * 8, tokens * 8]
    grads = [width * width * factor for factor in (12, 4, 16, 16)] + [width * 4] * 4
    num_layers = max(1, round(count / (42 if recompute else 36)))
    kept, buffers, now = [], [], 0
    for number in range(num_layers):
        for position, size in enumerate(layer):
            kept.append((number, position, size, now))
            if position % 3 == 1:
                buffers.append((size, now, now + 1 + draw.randint(0, 2)))
            now += 1
    grad_times: list[tuple[int, int]] = []
    for number, position, size, start in reversed(kept):
        if recompute and position not in (0, 5):
            buffers += [(size, start, start + 3), (size, now, now + draw.randint(2, 6))]
        else:
            buffers.append((size, start, now + 2))
        buffers += [(size, now, now + draw.randint(2, 4))]
        if position < len(grads):
            grad_times.append((grads[position], now))
        if number % 2:
            buffers.append((draw.choice(grads), now + 1, now + 2))
        now += 2
    return buffers + [(size, start, now + index) for index, (size, start) in enumerate(grad_times)]


def perfect(count: int, seed: int, *, height: Bytes = 100_000) -> list[Interval]:
    """Cut 20 * count steps x ``height`` bytes into ``count`` buffers: the optimum wastes nothing."""
    draw = random.Random(seed)
    pieces = [(0, 20 * count, 0, height)]
    while len(pieces) < count:
        at = draw.randrange(len(pieces))
        start, end, low, high = pieces[at]
        if draw.random() < 0.5 and end - start > 1:
            cut = draw.randrange(start + 1, end)
            pieces[at] = (start, cut, low, high)
            pieces.append((cut, end, low, high))
        elif high - low > 1:
            cut = draw.randrange(low + 1, high)
            pieces[at] = (start, end, low, cut)
            pieces.append((start, end, cut, high))
    draw.shuffle(pieces)
    return [(high - low, start, end) for start, end, low, high in pieces]
