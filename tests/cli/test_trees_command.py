"""The command ``trees``: limits, forecasts, and what is refused."""

import json

import numpy as np
import pytest
from command import run

pytest.importorskip("cryptography")


@pytest.fixture
def tables(tmp_path):
    """Two parties of rows and a third that holds other columns of the rows of the first."""
    random = np.random.default_rng(0)
    for name, columns in (("one", "ab"), ("two", "ab"), ("more", "cd")):
        lines = [f"id,{','.join(columns)}" + ",y" * (name != "more")]
        for row in range(60):
            a, b = random.normal(size=2).round(3)
            lines.append(f"{row},{a},{b}" + f",{int(a > 0)}" * (name != "more"))
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_trains_over_rows_and_keeps_the_forecast(tables):
    out = tables / "forest.json"
    parties = [tables / "one.csv", tables / "two.csv"]
    small = ["--trees", "3", "--depth", "2", "--test", tables / "two.csv", "-o", out, "--json"]
    done = run("trees", *parties, "--protection", "masks", *small)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["promises"][0]["forecast"] == found["promises"][0]["observed"]
    assert found["quality"]["test AUC"] > 0.9
    assert out.exists()


def test_columns_and_text(tables):
    done = run(
        "trees", tables / "one.csv", tables / "more.csv", "--split", "columns", "--trees", "2", "--depth", "2"
    )
    assert done.code == 0, done.err
    assert "bytes per party while trees grow" in done.out


def test_a_limit_that_cannot_be_kept_is_refused(tables):
    done = run(
        "trees", tables / "one.csv", tables / "two.csv", "--wire-limit", "1KB", "-o", tables / "f.json"
    )
    assert done.code == 3
    assert "with 2 bins per feature 50 trees take" in done.err
    assert not (tables / "f.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,a,y\n0,1,1\n", "has no column 'b'"),
        ("id,a,b,y\n0,1,1\n", "line 2: 3 columns where the header has 4; the first missing one is 'y'"),
        ("id,a,b,y\n0,1,x,1\n", "line 2, column 'b': 'x' is no number"),
        ("id,a,b\n0,1,1\n", "has no column 'y' of labels"),
        ("id,a,b,y\n0,1,1,3\n", "label 3 in row 0"),
        ("id,a,a,y\n", "line 1: column names must be there and differ"),
        ("", "is empty"),
    ],
)
def test_a_damaged_table_is_refused_by_file_and_line(tables, text, message):
    (tables / "bad.csv").write_text(text)
    done = run("trees", tables / "one.csv", tables / "bad.csv", "-o", tables / "f.json")
    assert done.code == 2
    assert message in done.err
    assert not (tables / "f.json").exists()


def test_columns_of_a_second_table_are_matched_by_name(tables):
    rows = [line.split(",") for line in (tables / "two.csv").read_text().splitlines()]
    (tables / "turned.csv").write_text("\n".join(",".join(row[::-1]) for row in rows) + "\n")

    def result(second, test, *more):
        small = ("--trees", "3", "--depth", "2", "--json")
        done = run("trees", tables / "one.csv", tables / second, *small, "--test", tables / test, *more)
        assert done.code == 0, done.err
        found = json.loads(done.out)
        return found["hash"], found["quality"]

    assert result("two.csv", "two.csv") == result("two.csv", "turned.csv") == result("turned.csv", "two.csv")
    lines = [
        f"{left},{right}"
        for left, right in zip(
            *[(tables / f"{name}.csv").read_text().splitlines() for name in ("more", "one")], strict=True
        )
    ]
    text = "\n".join(lines).replace("id,c,d,id", "id,c,d,again")
    (tables / "both.csv").write_text(
        "\n".join(",".join(r.split(",")[1:3] + r.split(",")[4:]) for r in text.split("\n"))
    )
    assert result("more.csv", "both.csv", "--split", "columns")[1]["test AUC"] > 0.9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,c,y\n1,1,1\n", "has no column 'b', which the forest has; it has a, c."),
        ("a,b,c,y\n1,1,1,1\n", "has the column 'c', which the forest has not"),
        ("a,b\n1,1\n", "has no column 'y' of labels"),
    ],
)
def test_a_test_table_of_other_columns_is_refused(tables, text, message):
    (tables / "test.csv").write_text(text)
    done = run("trees", tables / "one.csv", "--trees", "1", "--depth", "1", "--test", tables / "test.csv")
    assert done.code == 2
    assert message in done.err


def test_privacy_needs_a_public_range(tables):
    given = [
        "trees",
        tables / "one.csv",
        tables / "two.csv",
        "--trees",
        "2",
        "--depth",
        "2",
        "--epsilon",
        "4",
    ]
    assert "--range '': with --epsilon give the public range" in run(*given).err
    assert run(*given, "--range=-4,4").code == 0
