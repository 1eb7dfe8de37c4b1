"""Thousands of broken files: a clear error or a correct answer, and no crash in the native part either."""

import os
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from corpus import inputs

from tightrope.core import Space, TightropeError
from tightrope.native.build import SOURCES, compiler
from tightrope.native.solvers.packer import SWITCHES
from tightrope.place import PlaceOptions
from tightrope_planners.judge.blocks import check_blocks
from tightrope_planners.place import Instance, place_instance
from tightrope_planners.place.csv import parse_csv
from tightrope_planners.place.instance import _blocks
from tightrope_planners.values.blocks import Block, Piece

HARNESS = Path(__file__).with_name("fuzz_packer.cpp")


def judged(instance: Instance, offsets: tuple[int, ...]) -> None:
    """Check every piece of every buffer at its final address."""
    blocks, homes = [], []
    for number in range(len(instance.buffers)):
        own = Instance(
            instance.buffers, instance.names, instance.alignments, instance.offsets, gaps=instance.gaps
        )
        blocks.append(_blocks(own)[1][number])
        homes.append(0)
    check_blocks(blocks, offsets, homes, spaces=[Space("memory", 2**62)])


def survive(data: bytes) -> Instance | None:
    """Parse and place one input; None = it was refused."""
    try:
        instance = parse_csv(data, "fuzz.csv")
        placement = place_instance(instance, minimize=True, seconds=0.001)
    except TightropeError:
        return None
    judged(instance, placement.offsets)
    return instance


def test_a_few_hundred_inputs_are_refused_or_placed() -> None:
    kept = [survive(data) for data in inputs(400, seed=1)]
    assert 100 < sum(instance is not None for instance in kept) < 390


@pytest.mark.slow
def test_ten_thousand_inputs_are_refused_or_placed_also_under_sanitizers(tmp_path: Path) -> None:
    kept = [instance for data in inputs(10_000, seed=2) if (instance := survive(data))]
    assert len(kept) > 2000
    command = compiler()
    if command is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / "fuzz"
    flags = "-std=c++20 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
    build = [*command.split(), *flags.split(), f"-I{SOURCES / 'solvers'}", str(HARNESS), "-o", str(program)]
    built = subprocess.run(build, capture_output=True, text=True, timeout=600, check=False)
    if "cannot find -lasan" in built.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    done = subprocess.run(
        [program],
        input=b"".join(map(_plain, kept)) + b"".join(map(_blocky, kept)),
        capture_output=True,
        timeout=600,
        check=False,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1"},
    )
    assert done.returncode == 0, done.stderr[-3000:].decode()
    assert int(done.stdout) == 2 * len(kept)


def _packed(kind: int, options: list[int], columns: list[list[int]]) -> bytes:
    lists = [options, *columns]
    return struct.pack("=qq", kind, len(lists)) + b"".join(
        struct.pack("=q", len(values)) + np.array(values, dtype=np.int64).tobytes() for values in lists
    )


def _plain(instance: Instance) -> bytes:
    sizes, starts, ends = zip(*instance.buffers, strict=True) if instance.buffers else ((), (), ())
    columns = [sizes, starts, ends, instance.alignments, (-1,) * len(sizes)]
    bits = PlaceOptions().bits
    assert bits < 1 << len(SWITCHES)
    return _packed(0, [-1, 100_000, 200, 1, bits], [list(column) for column in columns])


def _blocky(instance: Instance) -> bytes:
    blocks: list[Block] = [
        Block((Piece(size, start, end), Piece(size, end + 1, end + 3, size // 2)))
        for size, start, end in instance.buffers
        if end < 2**62 - 4
    ]
    pieces = [piece for block in blocks for piece in block.pieces]
    columns = [
        [2 * number for number in range(len(blocks) + 1)],
        [piece.size for piece in pieces],
        [piece.start for piece in pieces],
        [piece.end for piece in pieces],
        [piece.low for piece in pieces],
        [1] * len(blocks),
        [-1] * len(blocks),
        [-1] * len(blocks),
        list(range(len(blocks) + 1)),
        [3] * len(blocks),
        [5] * len(blocks),
    ]
    return _packed(1, [0, 50_000, 200, 1], columns)
