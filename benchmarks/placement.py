"""Measure how close to the load bound the placer gets, and how fast.

Run ``python -m benchmarks.placement``; give MiniMalloc's CSV files as arguments to add them (fit into
1 MiB, then minimise). Times are CPU seconds of one thread. ``--json FILE`` writes the rows too.
"""

import argparse
import json
import random
import resource
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tightrope.place import Interval, place, read_csv

CAPACITY = 2**20
SEEDS = range(5)


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


def perfect(count: int, seed: int) -> list[Interval]:
    """Cut 20 * count steps x 100,000 bytes at random until there are ``count`` buffers."""
    draw = random.Random(seed)
    pieces = [(0, 20 * count, 0, 100_000)]
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


Row = dict[str, str | int | float]


def measure(question: str, runs: list[tuple[list[Interval], int | None, int]], *, seconds: float) -> Row:
    """Place every (buffers, capacity, seed) and summarise: worst ratio, median and worst time."""
    found = [place(b, capacity=capacity, seconds=seconds, seed=seed) for b, capacity, seed in runs]
    times = [placement.cpu_seconds for placement in found]
    ratios = [placement.peak / max(1, placement.lower_bound) for placement in found]
    solved = sum(
        placement.status == "optimal" if capacity is None else placement.peak <= capacity
        for placement, (_, capacity, _) in zip(found, runs, strict=True)
    )
    return {
        "question": question,
        "buffers": max(len(buffers) for buffers, _, _ in runs),
        "solved": f"{solved}/{len(runs)}",
        "worst peak": max(placement.peak for placement in found),
        "worst ratio": round(max(ratios), 5),
        "median s": round(median(times), 4),
        "worst s": round(max(times), 4),
        "memory MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def questions(files: list[Path], *, large: bool) -> Iterator[Row]:
    for file in files:
        buffers = list(read_csv(file).buffers)
        yield measure(f"fit {file.name}", [(buffers, CAPACITY, seed) for seed in SEEDS], seconds=30)
        yield measure(f"minimise {file.name}", [(buffers, None, seed) for seed in SEEDS], seconds=10)
    for count, seconds in ((160, 1.0), (320, 10.0), (640, 10.0)):
        runs = [(perfect(count, seed), 100_000, 0) for seed in range(10)]
        yield measure(f"perfect {count}", runs, seconds=seconds)
    for count in (300, 1000, 3000, 10_000, 100_000, *((1_000_000,) if large else ())):
        for recompute in (False, True):
            runs = [(training_step(count, recompute=recompute, seed=seed), None, 0) for seed in range(3)]
            name = f"training step{' with recompute' if recompute else ''}"
            yield measure(name, runs[: 1 if count > 10**5 else 3], seconds=1.0 if count <= 10**5 else 10.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="MiniMalloc CSV files")
    parser.add_argument("--large", action="store_true", help="add 10^6 buffers")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for row in questions(arguments.files, large=arguments.large):
        if not rows:
            print("".join(f"{key:>{34 if key == 'question' else 14}}" for key in row))
        rows.append(row)
        print(
            "".join(f"{value!s:>{34 if key == 'question' else 14}}" for key, value in row.items()), flush=True
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
