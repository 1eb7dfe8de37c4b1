"""The command ``trees``: limits, forecasts, and what is refused."""

import json

import numpy as np
import pytest

from tests.cli.command import run

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


def test_classes_weights_and_early_stopping_by_options_and_answers_for_new_rows(tmp_path):
    random = np.random.default_rng(0)
    for name, num in (("one", 80), ("two", 80), ("new", 20)):
        lines = ["id,b,a,y,w"]
        for row in range(num):
            a, b = random.normal(size=2).round(3)
            lines.append(f"{name}{row},{b},{a},{int(np.digitize(a, [-0.4, 0.4]))},{row % 3}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    forest, answers = tmp_path / "forest.json", tmp_path / "answers.csv"
    given = ["--loss", "softmax", "--weight", "w", "--min-rows", "3", "--trees", "200", "--stop", "3"]
    test = ["--test", tmp_path / "new.csv"]
    done = run("trees", tmp_path / "one.csv", tmp_path / "two.csv", *given, *test, "-o", forest, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["quality"]["test accuracy"] > 0.8
    rows = [line.split(",") for line in (tmp_path / "new.csv").read_text().splitlines()]
    keep = [(row[0], row[2], row[1]) for row in rows]  # columns in another order, and no labels
    (tmp_path / "new.csv").write_text("\n".join(",".join(row) for row in keep) + "\n")
    done = run("predict", forest, tmp_path / "new.csv", "-o", answers)
    assert done.code == 0, done.err
    lines = answers.read_text().splitlines()
    assert lines[0] == "id,class_0,class_1,class_2"
    assert len(lines) == 21
    assert lines[1].startswith("new0,")
    right = [int(np.argmax([float(v) for v in line.split(",")[1:]])) for line in lines[1:]]
    assert np.mean([one == int(row[3]) for one, row in zip(right, rows[1:], strict=True)]) > 0.8
    found = json.loads(run("predict", forest, tmp_path / "new.csv", "--json").out)
    assert np.allclose(np.sum(found["rows"], axis=1), 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--weight", "w"], "no column 'w' of weights"),
        (["--min-rows", "0"], "min_rows=0"),
        (["--range", "0,1"], "is of --epsilon"),
        (["--loss", "softmax", "--epsilon", "1", "--range", "0,1"], "two classes"),
    ],
)
def test_options_that_do_not_fit_are_refused(tables, given, message):
    done = run("trees", tables / "one.csv", tables / "two.csv", *given)
    assert done.code == 2
    assert message in done.err
