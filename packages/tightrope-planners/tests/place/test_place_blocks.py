"""Blocks against brute force, the judge against wrong answers."""

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.core import JudgeError, NativeError, Space, TightropeError
from tightrope.place import place
from tightrope_planners.judge.blocks import check_blocks
from tightrope_planners.place import BlockPlacement, place_blocks
from tightrope_planners.place import blocks as blocks_module
from tightrope_planners.values.blocks import Block, Piece

WHOLE = Space("memory", 10**6)


def drawn(draw: random.Random, *, span: int = 6) -> Block:
    """Draw a block of one to three pieces that do not overlap each other."""
    pieces: list[Piece] = []
    for _ in range(draw.randint(1, 3)):
        start = draw.randrange(span)
        piece = Piece(draw.randint(1, 4), start, start + draw.randint(1, 3), draw.choice((0, 0, 2)))
        if not any(meets(0, piece, 0, other) for other in pieces):
            pieces.append(piece)
    forbidden = ((3, 5),) if draw.random() < 0.2 else ()
    return Block(tuple(pieces), alignment=draw.choice((1, 1, 2)), forbidden=forbidden)


def meets(at: int, a: Piece, by: int, b: Piece) -> bool:
    together = a.start < b.end and b.start < a.end
    return together and at + a.low < by + b.low + b.size and by + b.low < at + a.low + a.size


def smallest_peak(blocks: list[Block], most: int) -> int:
    """Try every offset of every block."""
    best = most + 1

    def legal(number: int, offset: int, placed: list[int]) -> bool:
        block = blocks[number]
        lows = [(offset + p.low, offset + p.low + p.size) for p in block.pieces]
        if offset % block.alignment or any(
            a < high and low < b for a, b in lows for low, high in block.forbidden
        ):
            return False
        return not any(
            meets(offset, p, placed[k], q)
            for k in range(number)
            for p, q in product(block.pieces, blocks[k].pieces)
        )

    def extend(placed: list[int], peak: int) -> None:
        nonlocal best
        if peak >= best:
            return
        if len(placed) == len(blocks):
            best = peak
            return
        number = len(placed)
        for offset in range(best - blocks[number].height):
            if legal(number, offset, placed):
                extend([*placed, offset], max(peak, offset + blocks[number].height))

    extend([], 0)
    return best


def judged(blocks: list[Block], found: BlockPlacement, spaces: list[Space]) -> None:
    check_blocks(blocks, found.offsets, found.spaces, spaces=spaces)


def test_small_blocks_reach_the_brute_force_optimum() -> None:
    exact = 0
    for seed in range(60):
        draw = random.Random(seed)
        blocks = [drawn(draw) for _ in range(draw.randint(1, 4))]
        found = place_blocks(blocks, seconds=0.01)
        judged(blocks, found, [WHOLE])
        optimum = smallest_peak(blocks, found.peaks[0])
        assert found.lower_bound <= optimum <= found.peaks[0]
        exact += found.peaks[0] == optimum
        assert found.status != "optimal" or found.peaks[0] == optimum
    assert exact == 60


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 25))
def test_any_blocks_are_placed_legally_with_and_without_a_compiler(seed: int, count: int) -> None:
    draw = random.Random(seed)
    blocks = [drawn(draw, span=30) for _ in range(count)]
    found = place_blocks(blocks, seconds=0.001, seed=seed)
    judged(blocks, found, [WHOLE])

    def no_compiler(*_args: object, **_options: object) -> None:
        raise NativeError("no compiler")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "pack_blocks", no_compiler)
        judged(blocks, place_blocks(blocks, seconds=0.001), [WHOLE])


def test_plain_blocks_are_searched_and_proved() -> None:
    sizes = [(9, 5, 6), (1, 0, 3), (12, 0, 1), (5, 1, 2), (4, 2, 6), (7, 1, 5), (4, 3, 4)]
    found = place_blocks([Block.of(*buffer) for buffer in sizes])
    assert (found.peaks, found.status) == ((place(sizes).peak,), "optimal")
    assert place_blocks([Block.of(*b) for b in sizes], capacity=found.peaks[0] - 1).status == "infeasible"


def test_gaps_let_others_through() -> None:
    ring = Block.alias(64, ((0, 2), (4, 6)))
    assert place_blocks([ring, Block.of(64, 2, 4)]).peaks == (64,)
    assert place_blocks([Block.of(64, 0, 6), Block.of(64, 2, 4)]).peaks == (128,)


def test_an_in_place_pair_is_one_address() -> None:
    pair = Block.alias(64, ((0, 3), (3, 5)))
    assert pair.pieces == (Piece(64, 0, 5),)


def test_buckets_keep_their_distances() -> None:
    bucket = Block.bucket(((60, 0, 4), (64, 2, 6), (10, 1, 5)), alignment=64)
    others = [Block.of(64, 0, 2), Block.of(64, 4, 8), Block.of(10, 0, 9)]
    found = place_blocks([bucket, *others])
    judged([bucket, *others], found, [WHOLE])
    assert [piece.low for piece in bucket.pieces] == [0, 64, 128]
    assert found.peaks[0] == 64 + 64 + 10 + 10


def test_forbidden_windows_and_fixed_offsets_hold() -> None:
    blocks = [
        Block((Piece(8, 0, 4),), forbidden=((0, 16), (20, 30))),
        Block((Piece(8, 0, 4),), fixed=32),
        Block((Piece(8, 0, 4),), alignment=16, forbidden=((0, 4),)),
    ]
    found = place_blocks(blocks, seconds=0.01)
    judged(blocks, found, [WHOLE])
    assert found.offsets[1] == 32


def test_spaces_have_capacities_and_blocks_their_choice() -> None:
    spaces = [Space("fast", 100), Space("slow", 200)]
    blocks = [
        Block((Piece(60, 0, 2),), spaces=("slow",)),
        Block.of(60, 0, 2),
        Block.of(60, 0, 2),
        Block((Piece(40, 0, 2),), spaces=("fast",)),
    ]
    found = place_blocks(blocks, spaces=spaces)
    judged(blocks, found, spaces)
    assert found.spaces[0] == 1
    assert found.spaces[3] == 0
    assert found.status == "optimal"


def test_bounded_arenas_are_spaces_of_one_size() -> None:
    blocks = [Block.of(40, 0, 2) for _ in range(6)]
    arenas = [Space(f"arena {number}", 100) for number in range(4)]
    found = place_blocks(blocks, spaces=arenas)
    judged(blocks, found, arenas)
    assert max(found.spaces) == 2


@pytest.mark.parametrize(
    ("blocks", "spaces", "status"),
    [
        ([Block.of(60, 0, 2)] * 3, [Space("a", 100), Space("b", 70)], "infeasible"),
        ([Block.of(60, 0, 2)] * 3, [Space("a", 100), Space("b", 110)], "time_limit"),
        ([Block.of(60, 0, 2)], [Space("a", 50), Space("b", 50)], "infeasible"),
        ([Block((Piece(60, 0, 2),), spaces=("a",))] * 2, [Space("a", 100), Space("b", 500)], "infeasible"),
    ],
)
def test_what_does_not_fit_is_said_and_proved_only_by_a_sum(
    blocks: list[Block], spaces: list[Space], status: str
) -> None:
    found = place_blocks(blocks, spaces=spaces, seconds=0.01)
    assert found.status == status
    assert -1 in found.spaces
    kept = [number for number, home in enumerate(found.spaces) if home >= 0]
    check_blocks(
        [blocks[j] for j in kept],
        [found.offsets[j] for j in kept],
        [found.spaces[j] for j in kept],
        spaces=spaces,
    )


def test_hints_are_kept_where_they_are_free() -> None:
    blocks = [Block((Piece(8, 0, 4),), hint=24), Block((Piece(8, 0, 4),), hint=24), Block.of(8, 0, 4)]
    found = place_blocks(blocks, stop_at=32)
    judged(blocks, found, [WHOLE])
    assert sorted(found.offsets) == [0, 8, 24]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Block(()), "no pieces"),
        (Block.of(-1, 0, 1), "neither may be negative"),
        (Block.of(1, 3, 3), "must begin before it ends"),
        (Block((Piece(1, 0, 1),), alignment=0), "alignment 0"),
        (Block((Piece(1, 0, 1),), alignment=2, fixed=3), "fixed offset 3"),
        (Block((Piece(1, 0, 1),), hint=-3), "hint -3"),
        (Block((Piece(1, 0, 1),), forbidden=((5, 5),)), "forbidden windows"),
        (Block((Piece(1, 0, 1),), spaces=("else",)), "unknown spaces"),
        (Block((Piece(4, 0, 2), Piece(4, 1, 3, 3))), "overlap each other"),
        (Block((Piece(4, 0, 2),), fixed=0, forbidden=((3, 9),)), "one of its forbidden windows"),
        (Block.of(2**61, 0, 1), "2\\^60"),
        (Block.of(1.5, 0, 1), r"wrong kind.*size=1\.5"),  # type: ignore[arg-type]
        (Block((Piece(1, 0, 1),), alignment=None), "wrong kind.*alignment=None"),  # type: ignore[arg-type]
        (Block((Piece(1, 0, 1),), forbidden=((1,),)), "wrong kind"),  # type: ignore[arg-type]
        ((1, 0, 1), r"wrong kind.*\(1, 0, 1\)"),
    ],
)
def test_malformed_blocks_are_refused_with_their_reason(block: Block, message: str) -> None:
    with pytest.raises(TightropeError, match=message):
        place_blocks([block])


def test_malformed_spaces_and_clashing_fixed_blocks_are_refused() -> None:
    fixed = Block((Piece(4, 0, 2),), fixed=0)
    with pytest.raises(TightropeError, match="fixed blocks 0 and 1 overlap"):
        place_blocks([fixed, Block((Piece(4, 1, 2),), fixed=2)])
    for options in ({"spaces": [Space("a", 1)] * 2}, {"spaces": [Space("a", -1)]}):
        with pytest.raises(TightropeError, match="space"):
            place_blocks([fixed], **options)
    with pytest.raises(TightropeError, match="not both"):
        place_blocks([fixed], spaces=[Space("a", 9)], capacity=9)


@pytest.mark.parametrize("names", [("a",), ("b",), ("c",), ("a", "b"), ("a", "c"), ("b", "c")])
def test_a_block_without_bytes_lies_in_a_space_that_it_may_use(names: tuple[str, ...]) -> None:
    for capacities in product((0, 3, 8), repeat=3):
        spaces = [Space(name, capacity) for name, capacity in zip("abc", capacities, strict=True)]
        found = place_blocks([Block((Piece(0, 0, 2),), spaces=names)], spaces=spaces, seconds=0)
        judged([Block((Piece(0, 0, 2),), spaces=names)], found, spaces)
        assert found.status == "optimal"


def test_a_goal_below_the_load_refutes_no_capacity() -> None:
    for seed in range(1900, 2000):
        draw = random.Random(seed)
        blocks = [
            Block.of(draw.randint(1, 9), s := draw.randrange(6), s + draw.randint(1, 4)) for _ in range(10)
        ]
        best = place_blocks(blocks, seconds=0.01)
        goal = max(0, best.lower_bound - 3)
        found = place_blocks(blocks, capacity=best.peaks[0], stop_at=goal, seconds=0.01)
        assert found.status in ("optimal", "feasible")
        judged(blocks, found, [Space("memory", best.peaks[0])])


@pytest.mark.parametrize("piece", [Piece(-1, 0, 1), Piece(1, 2, 2), Piece(1, 2, 1)])
def test_the_judge_refuses_pieces_that_are_none(piece: Piece) -> None:
    with pytest.raises(JudgeError, match="a piece has"):
        check_blocks([Block((piece,))], [8], [0], spaces=[WHOLE])


def test_shifting_any_one_offset_is_caught() -> None:
    """A thousand wrong answers: one block of a tight placement moved by one byte or more."""
    caught = tried = 0
    draw = random.Random(7)
    while tried < 1000:
        blocks = [drawn(draw, span=12) for _ in range(12)]
        found = place_blocks(blocks, seconds=0.001)
        spaces = [Space("memory", found.peaks[0])]
        check_blocks(blocks, found.offsets, found.spaces, spaces=spaces)
        for number in range(len(blocks)):
            shifted = list(found.offsets)
            shifted[number] += draw.choice((-3, -2, -1, 1, 2, 3))
            if legal(blocks, shifted, spaces[0].capacity):
                continue
            tried += 1
            with pytest.raises(JudgeError):
                check_blocks(blocks, shifted, found.spaces, spaces=spaces)
            caught += 1
    assert caught == tried


def legal(blocks: list[Block], offsets: list[int], capacity: int) -> bool:
    """Compare all pairs."""
    for i, (block, at) in enumerate(zip(blocks, offsets, strict=True)):
        if at < 0 or at % block.alignment or at + block.height > capacity:
            return False
        rows = [(at + p.low, at + p.low + p.size) for p in block.pieces]
        if any(a < high and low < b for a, b in rows for low, high in block.forbidden):
            return False
        for j in range(i):
            if any(meets(at, p, offsets[j], q) for p, q in product(block.pieces, blocks[j].pieces)):
                return False
    return True


def test_alignments_hold_in_every_space() -> None:
    spaces = [Space("a", 10), Space("b", 10), Space("c", 10)]
    blocks = [Block((Piece(7, 0, 2),), alignment=step) for step in (2, 3, 4)]
    found = place_blocks(blocks, spaces=spaces)
    judged(blocks, found, spaces)
    assert sorted(found.spaces) == [0, 1, 2]
    with pytest.raises(TightropeError, match="pass 2\\^60"):
        place_blocks([Block((Piece(7, 0, 2),), alignment=step) for step in (2**40, 3**20)], spaces=spaces)
