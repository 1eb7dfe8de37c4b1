"""The sweep agrees with comparing all pairs."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightrope.core import JudgeError
from tightrope.judge import Interval, check_offsets

BLOCK = st.tuples(st.integers(0, 3), st.integers(0, 8), st.integers(1, 5), st.integers(0, 6), st.booleans())


def placed(block: Interval, offset: int) -> Interval:
    return block._replace(offset=offset)


def by_pairs(blocks: list[Interval], offsets: list[int], arena: int) -> bool:
    for block, offset in zip(blocks, offsets, strict=True):
        fits = 0 <= offset <= arena - block.size and offset % 64 == 0
        if (offset != -1) if block.outside else not fits and not (block.size == 0 and offset == -1):
            return False
    for i, a in enumerate(blocks):
        for j, b in enumerate(blocks[:i]):
            meet_in_time = a.start < b.end and b.start < a.end
            meet_in_space = offsets[i] < offsets[j] + b.size and offsets[j] < offsets[i] + a.size
            if meet_in_time and meet_in_space and a.size and b.size and not a.outside and not b.outside:
                return False
    return True


@given(st.lists(BLOCK, max_size=8), st.integers(0, 10))
def test_sweep_equals_all_pairs(drawn: list[tuple[int, int, int, int, bool]], arena: int) -> None:
    offsets = [-1 if out else 64 * at for *_, at, out in drawn]
    blocks = [
        Interval(64 * size, start, start + length, offset=offset, outside=out)
        for (size, start, length, _, out), offset in zip(drawn, offsets, strict=True)
    ]
    try:
        check_offsets(blocks, arena=64 * arena)
    except JudgeError:
        accepted = False
    else:
        accepted = True
    assert accepted == by_pairs(blocks, offsets, 64 * arena)


@pytest.mark.parametrize(
    ("block", "offset", "message"),
    [
        (Interval(64, 0, 1), 32, "not a multiple of 64"),
        (Interval(64, 0, 1), -64, "leaves the arena"),
        (Interval(128, 0, 1), 960, "leaves the arena of 1024 bytes"),
        (Interval(64, 0, 1), -1, "leaves the arena"),
        (
            Interval(64, 0, 1, 3, outside=True),
            0,
            "storage 3, 64 bytes. is outside the arena but has offset 0",
        ),
        (Interval(64, 5, 5), 0, r"lifetime \[5, 5\)"),
        (Interval(64, -1, 5), 0, "must begin before it ends"),
    ],
)
def test_a_bad_block_is_named(block: Interval, offset: int, message: str) -> None:
    with pytest.raises(JudgeError, match=message):
        check_offsets([placed(block, offset)], arena=1024)


def test_an_overlap_names_both_blocks() -> None:
    blocks = [Interval(128, 0, 4, 7), Interval(64, 2, 3)]
    with pytest.raises(
        JudgeError, match=r"allocation 0 \(storage 7, 128 bytes\) at 0 overlaps allocation 1 \(temporary"
    ):
        check_offsets([placed(blocks[0], 0), placed(blocks[1], 64)], arena=1024)


def test_a_coarser_alignment_is_demanded() -> None:
    check_offsets([Interval(64, 0, 1, offset=256)], arena=1024, alignment=256)
    with pytest.raises(JudgeError, match="not a multiple of 256"):
        check_offsets([Interval(64, 0, 1, offset=64)], arena=1024, alignment=256)


def test_blocks_that_follow_each_other_share_addresses() -> None:
    check_offsets([Interval(64, 0, 1, offset=0), Interval(64, 1, 2, offset=0)], arena=64)


def test_many_blocks_with_one_planted_overlap() -> None:
    rng = random.Random(0)
    blocks = [Interval(64, start, start + 50, offset=64 * (start % 50)) for start in range(20_000)]
    check_offsets(blocks, arena=64 * 50)
    victim = rng.randrange(60, 20_000)
    blocks[victim] = placed(blocks[victim], blocks[victim - 1].offset)
    with pytest.raises(JudgeError, match="overlaps"):
        check_offsets(blocks, arena=64 * 50)
