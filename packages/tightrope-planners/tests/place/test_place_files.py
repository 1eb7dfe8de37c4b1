"""Every kind of file: read, refused, and never unpickled."""

import gzip
import json
import pickle
from pathlib import Path

import pytest

from tightrope.core import Buffer, TightropeError, Trace
from tightrope.core.codec import dump_trace
from tightrope_planners.place import Instance, place_file, place_instance, read_csv, read_instance, write_csv
from tightrope_planners.place.csv import parse_csv
from tightrope_planners.place.snapshot import parse_snapshot
from tightrope_planners.place.somas import parse_somas

EDGE = (
    "Somas EDGE src=n{src}, srcstm=0, dst=n{dst}, dststm=0, workspace=0, size={size}, lifelong={life}, "
    "tid={tid}, start={start}, end={end}\n"
)


def edge(tid: int, size: int, start: int, end: int, life: int = 0, dst: int = 0) -> str:
    return EDGE.format(src=start, dst=dst, size=size, life=life, tid=tid, start=start, end=end)


@pytest.mark.slow
def test_somas_dumps_have_closed_lifetimes_and_contiguous_lists(tmp_path: Path) -> None:
    text = edge(7, 100, 0, 2) + edge(7, 100, 0, 2, dst=1) + edge(8, 600, 2, 3) + edge(9, 50, 1, 1, life=1)
    text += "Somas EDGE ERROR src=n4, srcstm=0, dst=nc, dststm=nc, workspace=0, size=5, lifelong=0, tid=4, "
    text += "start=4, end=4\nSomas CONTIGUOUS 8 7\nSomas GROUP 0\n"
    (tmp_path / "dump.ir").write_text(text)
    instance = read_instance(tmp_path / "dump.ir")
    assert instance.buffers == ((100, 0, 3), (600, 2, 4), (50, 0, 5), (5, 4, 5))
    assert instance.names == ("7", "8", "9", "4")
    assert instance.groups == ((1, 0),)
    placement = place_instance(instance, minimize=True)
    assert placement.offsets[0] == placement.offsets[1] + 1024
    assert all(offset % 512 == 0 for offset in placement.offsets)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Somas CONTIGUOUS 1\n", "0 'Somas EDGE' tensors"),
        ("Somas EDGE tid=3, size=9\n", "line 1: needs size, lifelong"),
        (edge(1, 8, 3, 2), "end >= start"),
        (edge(1, 8, 0, 2) + edge(1, 9, 0, 2), "line 2: tensor 1 differs"),
        (edge(1, 8, 0, 2) + "Somas CONTIGUOUS 1 2\n", r"unknown are \[2\]"),
        (edge(1, 8, 0, 2) + "Somas CONTIGUOUS 1 1\n", "each in one list"),
        (edge(1, 8, 0, 2) + "Somas CONTIGUOUS x\n", "line 2: a contiguous list needs tensor ids"),
    ],
)
def test_malformed_somas_dumps_are_refused_with_the_line(text: str, message: str) -> None:
    with pytest.raises(TightropeError, match=message):
        parse_somas(text.encode(), "dump.ir")


def entry(action: str, addr: int, size: int) -> dict[str, object]:
    return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": []}


SNAPSHOT = {
    "segments": [
        {"address": 0, "blocks": [{"address": 900, "size": 8, "state": "active_allocated"}]},
        {"address": 0, "device": 1, "blocks": [{"address": 901, "size": 16, "state": "active_allocated"}]},
    ],
    "device_traces": [
        [
            entry("free_completed", 5, 64),
            entry("alloc", 10, 100),
            entry("segment_alloc", 0, 2**20),
            entry("free_requested", 10, 100),
            entry("alloc", 20, 30),
            entry("free_completed", 10, 100),
            entry("free_requested", 20, 30),
        ],
        [],
    ],
}


def test_snapshots_give_the_lifetimes_of_one_device(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(SNAPSHOT))
    instance = read_instance(tmp_path / "s.json")
    assert instance.buffers == ((64, 0, 1), (8, 0, 8), (100, 2, 6), (30, 5, 7))
    assert set(instance.alignments) == {512}
    assert read_instance(tmp_path / "s.json", device=1).buffers == ((16, 0, 1),)


@pytest.mark.parametrize(
    ("tree", "options", "message"),
    [
        ({"device_traces": 3}, {}, "must be a list of lists"),
        ({"device_traces": [[entry("alloc", 1, 1)]] * 2}, {}, r"devices \[0, 1\] have allocations: choose"),
        ({"device_traces": [[]]}, {"device": 4}, "there is no device 4"),
        ({"device_traces": [[7]]}, {}, "entry 0 has no action"),
        ({"device_traces": [[{"action": "alloc", "addr": 1}]]}, {}, "size must be an integer"),
        ({"device_traces": [[entry("alloc", 1, -4)]]}, {}, "size must be an integer"),
    ],
)
def test_malformed_snapshots_are_refused(
    tree: dict[str, object], options: dict[str, int], message: str
) -> None:
    with pytest.raises(TightropeError, match=message):
        parse_snapshot(tree, "s.json", **options)


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.fail, ("a pickle was opened",))


@pytest.mark.parametrize(
    "content",
    [pickle.dumps(Bomb()), gzip.compress(pickle.dumps(Bomb())), b"PK\x03\x04"],
    ids=["pickle", "compressed", "archive"],
)
def test_pickles_are_refused_with_the_way_to_convert_them(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.pickle").write_bytes(content)
    with pytest.raises(
        TightropeError, match=r"nothing is unpickled here. Where it was made: python -c .*json.dump"
    ):
        read_instance(tmp_path / "s.pickle")


def test_traces_are_read_with_sizes_rounded_up(tmp_path: Path) -> None:
    trace = Trace("observed", (Buffer(100, 0, 2), Buffer(64, 1, 3, 128)), num_events=3)
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(dump_trace(trace)))
    instance, placement = place_file(tmp_path / "t.json.gz", minimize=True)
    assert instance.buffers == ((128, 0, 2), (64, 1, 3))
    assert placement.peak == trace.peak == 192


def test_other_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(TightropeError, match="neither a trace"):
        read_instance(tmp_path / "x.json")


def test_gaps_and_hints_of_minimalloc_are_kept(tmp_path: Path) -> None:
    text = "id,lower,upper,size,hint,gaps\na,0,9,8,-1,2-4 5-7@0:2\nb,2,4,8,-1,\nc,5,7,6,2,\n"
    (tmp_path / "g.csv").write_text(text)
    instance, placement = place_file(tmp_path / "g.csv", minimize=True)
    assert instance.gaps[0] == ((2, 4, 0, 0), (5, 7, 0, 2))
    assert placement.peak == 8
    assert placement.offsets == (0, 0, 2)
    write_csv(tmp_path / "out.csv", instance, placement.offsets)
    assert (tmp_path / "out.csv").read_text().splitlines()[1] == "a,0,9,8,-1,2-4 5-7@0:2,0"


def test_a_column_named_end_holds_the_last_instant() -> None:
    instance = parse_csv(b"buffer_id,start,end,size,gaps\na,0,3,8,1-1\n", "old.csv")
    assert instance.buffers == ((8, 0, 4),)
    assert instance.gaps == (((1, 2, 0, 0),),)


@pytest.mark.parametrize(
    "gaps", ["3-2", "1-9", "1-2 1-2", "1-2@0:9", "1-2@3:1", "x", "1-2@", "1" * 30 + "-2"]
)
def test_malformed_gaps_are_refused_with_the_line(gaps: str) -> None:
    with pytest.raises(TightropeError, match="line 2: gap"):
        parse_csv(f"id,lower,upper,size,gaps\na,0,8,8,{gaps}\n".encode(), "g.csv")


def test_columns_of_the_input_come_back_with_the_offset(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,size,upper,lower,id\nx,8,2,0,first\ny,8,3,1,second\n")
    instance, placement = place_file(tmp_path / "a.csv", capacity=16)
    write_csv(tmp_path / "b.csv", instance, placement.offsets)
    lines = (tmp_path / "b.csv").read_text().splitlines()
    assert lines[0] == "name,size,upper,lower,id,offset"
    assert lines[1] == f"x,8,2,0,first,{placement.offsets[0]}"
    assert read_csv(tmp_path / "b.csv").offsets == placement.offsets


def test_an_offset_column_of_the_input_is_filled_in(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("size,offset,upper,lower,id\n8,8,2,0,a\n8,,3,1,b\n")
    instance, placement = place_file(tmp_path / "a.csv", capacity=16)
    write_csv(tmp_path / "b.csv", instance, placement.offsets)
    assert (tmp_path / "b.csv").read_text().splitlines()[1:] == ["8,8,2,0,a", "8,0,3,1,b"]


def test_too_many_rows_are_refused_before_they_are_read() -> None:
    with pytest.raises(TightropeError, match="more than 4,000,000 rows"):
        parse_csv(b"\n" * 4_000_002, "big.csv")


def test_a_group_that_is_fixed_moves_as_one() -> None:
    buffers = ((8, 0, 4), (8, 0, 4), (8, 0, 4))
    instance = Instance(buffers, ("a", "b", "c"), (1, 1, 1), (16, -1, -1), groups=((0, 1),))
    placement = place_instance(instance, capacity=32)
    assert placement.offsets[:2] == (16, 24)
    assert placement.status == "feasible"
