"""Amounts of memory, read and written."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightrope.core import BudgetSyntaxError, TightropeError, format_bytes, format_time, parse_bytes, round_up

GOOD = [
    ("1", 1),
    ("314572800", 314572800),
    (314572800, 314572800),
    ("64 B", 64),
    ("1KB", 1000),
    ("1 KiB", 1024),
    ("300 MB", 300_000_000),
    ("300MiB", 314572800),
    ("8GiB", 8 * 2**30),
    ("8 gib", 8 * 2**30),
    ("8 GB", 8 * 10**9),
    ("8G", 8 * 2**30),
    ("1.5k", 1536),
    ("2TiB", 2**41),
    ("2 TB", 2 * 10**12),
    ("1.5KiB", 1536),
    ("0.5 GiB", 2**29),
    ("  7 MB  ", 7_000_000),
    ("1.001KB", 1001),
    ("0.001 KB", 1),
    ("0.0001KB", 1),
    ("1.1KiB", 1127),
]
BAD: list[object] = [
    "",
    " ",
    "GiB",
    "-1",
    "-1 GB",
    "0",
    "0 GiB",
    0,
    -5,
    "1.5",
    "0.9",
    0.9,
    1.0,
    True,
    False,
    None,
    b"8GiB",
    [8],
    "8 GiBs",
    "8 XB",
    "8 Q",
    "1e9",
    "1_000",
    "0x10",
    "8GiB 3",
    "8,5 GiB",
    "inf",
    "nan",
    "NaN GB",
    "9" * 19,
    "9" * 100,
    2**62,
    "5000000 TiB",
    "90%",
    "%",
    "1.2.3 GB",
    "8\nGB\nx",
    "٣ XX",
    "a" * 1000,
]
WHOLE = [
    ("90%", 1001, 901),
    ("100%", 7, 7),
    ("0.1 %", 10**6, 1000),
    ("33.333333333%", 3, 1),
    ("150%", 100, 150),
]


@pytest.mark.parametrize(("text", "size"), GOOD)
def test_amounts_are_read(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


def test_a_small_number_where_a_percentage_is_possible_is_asked_about() -> None:
    with pytest.raises(BudgetSyntaxError, match=r"'80' is 80 bytes: did you mean \"80%\"\? Write \"80B\""):
        parse_bytes("80", whole=1)
    assert (parse_bytes("80B", whole=1), parse_bytes("101", whole=1), parse_bytes("80")) == (80, 101, 80)


@pytest.mark.parametrize("text", BAD, ids=lambda text: repr(text)[:20])
def test_other_texts_are_refused(text: object) -> None:
    with pytest.raises(BudgetSyntaxError, match=r"^budget ") as caught:
        parse_bytes(text)  # type: ignore[arg-type]
    assert isinstance(caught.value, TightropeError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("text", "whole", "size"), WHOLE)
def test_percentages_are_rounded_up_exactly(text: str, whole: int, size: int) -> None:
    assert parse_bytes(text, whole=whole) == size


@pytest.mark.parametrize("budget", [None, True, []])
def test_what_is_no_amount_at_all_is_told_the_accepted_forms(budget: object) -> None:
    with pytest.raises(BudgetSyntaxError, match="300 MB") as refusal:
        parse_bytes(budget)  # type: ignore[arg-type]
    assert "fraction" not in str(refusal.value)


def test_a_bare_fraction_is_taught() -> None:
    with pytest.raises(BudgetSyntaxError, match=r'budget 0\.9 is not an amount.*Write bytes \("8GiB"'):
        parse_bytes(0.9)  # type: ignore[arg-type]
    with pytest.raises(BudgetSyntaxError, match=r'has no unit: write "0\.9GiB"'):
        parse_bytes("0.9")
    with pytest.raises(BudgetSyntaxError, match="is a percentage, and what 100 % stands for is not known"):
        parse_bytes("90%")


@pytest.mark.parametrize("budget", [0.9, None, "0.9", "much"])
def test_a_percentage_is_offered_only_where_it_would_be_taken(budget: object) -> None:
    for whole in (None, 100):
        with pytest.raises(BudgetSyntaxError, match="GiB") as refusal:
            parse_bytes(budget, whole=whole)  # type: ignore[arg-type]
        assert ("90%" in str(refusal.value)) == (whole is not None)


@given(st.integers(1, 2**62 - 1))
def test_integers_are_bytes(size: int) -> None:
    assert parse_bytes(size) == size
    if size < 10**18:
        assert parse_bytes(str(size)) == parse_bytes(f"{size} B") == size


SCALES = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@given(st.integers(0, 10**5), st.integers(1, 10**9 - 1), st.sampled_from(sorted(SCALES)))
def test_decimals_are_exact_and_rounded_up(whole: int, part: int, unit: str) -> None:
    exact = (whole + Fraction(part, 10**9)) * SCALES[unit]
    size = parse_bytes(f"{whole}.{part:09d} {unit.lower()}")
    assert size - 1 < exact <= size


@given(st.integers(1, 1000), st.integers(1, 2**50))
def test_a_percentage_is_the_smallest_integer_not_below(percent: int, whole: int) -> None:
    size = parse_bytes(f"{percent}%", whole=whole)
    assert (size - 1) * 100 < percent * whole <= size * 100


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        size = parse_bytes(text, whole=10**6)
    except BudgetSyntaxError:
        return
    assert 0 < size < 2**62


@given(st.integers(0, 2**62), st.integers(0, 12))
def test_rounding_up_reaches_the_next_multiple(size: int, power: int) -> None:
    rounded = round_up(size, 2**power)
    assert rounded % 2**power == 0
    assert 0 <= rounded - size < 2**power


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536, "1.50 KiB"), (-2048, "-2.00 KiB"),
        (300 * 2**20, "300.0 MiB"), (2**30, "1.00 GiB"), (2**40, "1.00 TiB"), (2**52, "4096.0 TiB"),
    ],
)  # fmt: skip
def test_bytes_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1000, "1.00 us"), (1.5e6, "1.50 ms"), (2e9, "2.00 s"), (-2e9, "-2.00 s")],
)
def test_time_for_people(ns: float, text: str) -> None:
    assert format_time(ns) == text
