import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.place.placements import check
from tightrope.core import TightropeError
from tightrope_planners.place import Instance, place_file, place_instance, read_csv, write_csv

TEXT = "id,lower,upper,size\nb0,0,3,4\nb1,3,9,4\nb2,0,9,4\nb3,9,21,4\nb4,0,21,4\n"


def test_reads_the_format(tmp_path):
    (tmp_path / "a.csv").write_text(TEXT)
    instance = read_csv(tmp_path / "a.csv")
    assert instance.buffers[:2] == ((4, 0, 3), (4, 3, 9))
    assert instance.names == ("b0", "b1", "b2", "b3", "b4")
    assert set(instance.alignments) == {1}
    assert set(instance.offsets) == {-1}


def test_gzip_and_windows_line_ends_read_the_same(tmp_path):
    (tmp_path / "a.csv").write_text(TEXT)
    (tmp_path / "b.csv").write_bytes(TEXT.replace("\n", "\r\n").encode())
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert read_csv(tmp_path / "a.csv") == read_csv(tmp_path / "b.csv") == read_csv(tmp_path / "c.csv.gz")


def test_columns_may_stand_in_any_order(tmp_path):
    (tmp_path / "a.csv").write_text("Size, upper,lower,alignment,offset\n8,2,0,4,\n8,3,1,4,12\n\n")
    instance = read_csv(tmp_path / "a.csv")
    assert instance == Instance(((8, 0, 2), (8, 1, 3)), ("0", "1"), (4, 4), (-1, 12))


rows = st.lists(
    st.tuples(
        st.integers(0, 2**62),
        st.integers(-100, 100),
        st.integers(1, 50),
        st.integers(1, 512),
        st.integers(-1, 99),
    )
)


@given(rows=rows, suffix=st.sampled_from((".csv", ".csv.gz")))
def test_what_is_written_is_read_back(tmp_path_factory, rows, suffix):
    instance = Instance(
        tuple((size, start, start + life) for size, start, life, _, _ in rows),
        tuple(f'n"{index},' for index in range(len(rows))),
        tuple(alignment for *_, alignment, _ in rows),
        tuple(offset for *_, offset in rows),
    )
    path = tmp_path_factory.mktemp("csv") / f"x{suffix}"
    write_csv(path, instance)
    assert read_csv(path) == instance


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must name the columns"),
        ("id,lower,upper\n1,2,3\n", "must name the columns"),
        ("id,lower,lower,upper,size\n", "must name the columns"),
        ("id,lower,upper,size\n1,2,3\n", "line 2: 3 values"),
        ("id,lower,upper,size\n1,0,3,4\n1,2,3,x\n", "line 3: size is 'x'"),
        ("id,lower,upper,size\n1,0,3,1.5\n", "line 2: size is '1.5'"),
        ("id,lower,upper,size\n1,0,3,4611686018427387905\n", "at most 2\\^62"),
        ("id,lower,upper,size\n1,3,3,4\n", "lower < upper"),
        ("id,lower,upper,end,size\n1,3,5,9,4\n", "both upper \\(exclusive\\) and end \\(inclusive\\)"),
        (
            "id,lower,upper,size,offset\n1,3,5,4,-5\n",
            "offset is -5: give 0 or more; -1 or an empty cell is none",
        ),
        ("id,lower,upper,size,hint\n1,3,5,4,-2\n", "hint is -2: give 0 or more"),
        ("id,lower,upper,size\n1,0,3,-4\n", "size >= 0"),
        ('id,lower,upper,size\n"1,0,3,4\n', "cannot read"),
        (f"id,lower,upper,size\n{'1' * 200_000},0,3,4\n", "larger than field limit .* Give a CSV file"),
    ],
)
def test_malformed_files_are_refused_with_the_line(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(TightropeError, match=message):
        read_csv(tmp_path / "a.csv")


def test_unreadable_files_are_refused(tmp_path):
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(TEXT.encode())[:-12])
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for name in ("none.csv", "cut.csv.gz", "binary.csv"):
        with pytest.raises(TightropeError, match="cannot read"):
            read_csv(tmp_path / name)


def test_place_file_keeps_fixed_offsets_and_alignment(tmp_path):
    (tmp_path / "a.csv").write_text(
        "id,lower,upper,size,alignment,offset\na,0,4,5,1,0\nb,0,4,3,8,\nc,2,6,3,1,\n"
    )
    instance, placement = place_file(tmp_path / "a.csv", capacity=11)
    check(
        instance.buffers, placement.offsets, peak=placement.peak, alignments=instance.alignments, fixed={0: 0}
    )
    assert placement.peak == 11
    write_csv(tmp_path / "b.csv", instance, placement.offsets)
    assert read_csv(tmp_path / "b.csv").offsets == placement.offsets


@pytest.mark.parametrize(("capacity", "status"), [(11, "infeasible"), (12, "optimal"), (20, "optimal")])
def test_minimize_goes_on_below_the_capacity(tmp_path, capacity, status):
    (tmp_path / "a.csv").write_text(TEXT)
    _, placement = place_file(tmp_path / "a.csv", capacity=capacity, minimize=True)
    assert (placement.peak, placement.status) == (12, status)


@pytest.mark.parametrize(
    ("offsets", "options", "message"),
    [((-1,), {}, r"per buffer, not \[2, 2, 2, 1, 2\]"), ((-1, -1), {"capacity": "8"}, "capacity is '8'")],
)
def test_an_instance_of_unequal_columns_or_a_capacity_in_words_is_refused(offsets, options, message):
    instance = Instance(((8, 0, 1), (8, 1, 2)), ("a", "b"), (1, 1), offsets)
    with pytest.raises(TightropeError, match=message):
        place_instance(instance, minimize=True, **options)


def test_an_offset_too_few_is_refused_before_anything_is_written(tmp_path):
    instance = Instance(((8, 0, 1), (8, 1, 2)), ("a", "b"), (1, 1), (-1, -1))
    with pytest.raises(TightropeError, match="1 offsets for 2 buffers"):
        write_csv(tmp_path / "out.csv", instance, [0])
    assert not (tmp_path / "out.csv").exists()
