"""Studies as Optuna 5.0 wrote them: candidates, values, directions, what is left out and what is refused."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tightrope.core.errors import TightropeError
from tightrope_fleet.select.measurements import SelectMeasurements
from tightrope_fleet.select.optuna_study import read_study

FLOAT = '{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.001, "high": 1.0, "log": true}}'
KIND = '{"name": "CategoricalDistribution", "attributes": {"choices": ["a", "b", null]}}'
TABLES = """
CREATE TABLE studies (study_id INTEGER PRIMARY KEY, study_name VARCHAR(512));
CREATE TABLE study_directions (direction VARCHAR(8), study_id INTEGER, objective INTEGER);
CREATE TABLE trials (trial_id INTEGER PRIMARY KEY, number INTEGER, study_id INTEGER, state VARCHAR(8));
CREATE TABLE trial_params (trial_id INTEGER, param_name VARCHAR, param_value FLOAT, distribution_json TEXT);
CREATE TABLE trial_values (trial_id INTEGER, objective INTEGER, value FLOAT, value_type VARCHAR(7));
"""
TRIALS = (
    ("COMPLETE", 0.1, 0, 1.0),
    ("COMPLETE", 0.1, 0, 1.5),
    ("COMPLETE", 0.01, 2, 2.0),
    ("FAIL", 0.1, 1, None),
)


def database(path: Path, *studies: tuple[str, tuple[str, ...]]) -> Path:
    """Write a database of studies, all with the same trials."""
    with closing(sqlite3.connect(path)) as base:
        base.executescript(TABLES)
        for at, (name, directions) in enumerate(studies):
            base.execute("INSERT INTO studies VALUES (?, ?)", (at, name))
            for objective, one in enumerate(directions):
                base.execute("INSERT INTO study_directions VALUES (?, ?, ?)", (one, at, objective))
            for number, (state, rate, kind, value) in enumerate(TRIALS):
                trial = 10 * at + number
                base.execute("INSERT INTO trials VALUES (?, ?, ?, ?)", (trial, number, at, state))
                for given in (("lr", rate, FLOAT), ("kind", kind, KIND)):
                    base.execute("INSERT INTO trial_params VALUES (?, ?, ?, ?)", (trial, *given))
                if value is not None:
                    base.execute("INSERT INTO trial_values VALUES (?, 0, ?, 'FINITE')", (trial, value))
        base.commit()
    return path


def journal(direction: int = 1) -> bytes:
    """The same trials as lines of a journal, the last complete one added as a whole."""
    lines: list[dict[str, object]] = [{"op_code": 0, "study_name": "s", "directions": [direction]}]
    for trial, (state, rate, kind, value) in enumerate(TRIALS):
        if trial == 2:
            lines.append({
                "op_code": 4, "study_id": 0, "state": 1, "value": value, "values": None,
                "distributions": {"lr": FLOAT, "kind": KIND}, "params": {"lr": rate, "kind": kind},
            })  # fmt: skip
            continue
        lines.append({"op_code": 4, "worker_id": "w", "study_id": 0, "datetime_start": "2026-01-01T00:00:00"})
        for name, given, distribution in (("lr", rate, FLOAT), ("kind", kind, KIND)):
            lines.append({
                "op_code": 5, "trial_id": trial, "param_name": name, "param_value_internal": given,
                "distribution": distribution,
            })  # fmt: skip
        lines.append({"op_code": 7, "trial_id": trial, "step": 1, "intermediate_value": 3.0})
        values = None if value is None else [value]
        lines.append(
            {"op_code": 6, "trial_id": trial, "state": 1 if state == "COMPLETE" else 3, "values": values}
        )
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def check(found: SelectMeasurements, sign: float = 1.0) -> None:
    """Demand the candidates and values of `TRIALS`."""
    assert found.names == ["kind=a, lr=0.1", "kind=None, lr=0.01"]
    assert found.looks == [(0, sign), (0, 1.5 * sign), (1, 2.0 * sign)]
    assert found.num_left_out == 1


def test_a_database_and_a_journal_give_the_same_candidates(tmp_path: Path) -> None:
    path = database(tmp_path / "s.db", ("s", ("MINIMIZE",)))
    check(read_study(path, path.read_bytes()))
    check(read_study("s.log", journal()))


def test_values_of_which_more_is_better_are_negated(tmp_path: Path) -> None:
    path = database(tmp_path / "s.db", ("one", ("MINIMIZE",)), ("two", ("MAXIMIZE",)))
    check(read_study(path, path.read_bytes(), study="two"), -1.0)
    check(read_study("s.log", journal(2)), -1.0)


@pytest.mark.parametrize(
    ("studies", "asked", "said"),
    [
        ((("a", ("MINIMIZE",)), ("b", ("MINIMIZE",))), "", "there are: a, b"),
        ((("a", ("MINIMIZE",)),), "c", "there are: a"),
        ((), "", "there are: none"),
        ((("a", ("MINIMIZE", "MAXIMIZE")),), "", "2 objectives"),
    ],
)
def test_a_study_that_is_not_the_one_is_refused(
    tmp_path: Path, studies: tuple[tuple[str, tuple[str, ...]], ...], asked: str, said: str
) -> None:
    path = database(tmp_path / "s.db", *studies)
    with pytest.raises(TightropeError, match=said):
        read_study(path, path.read_bytes(), study=asked)


def test_other_databases_and_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as base:
        base.execute("CREATE TABLE things (x)")
    with pytest.raises(TightropeError, match="no study of Optuna"):
        read_study(path, path.read_bytes())
    whole = journal()
    for data, said in (
        (whole[:-20], "line 17: no line"),
        (whole.replace(b'"trial_id": 0', b'"trial_id": 99', 1), "line 3: no line"),
        (whole.replace(b"choices", b"chances"), "no distribution"),
        (b'{"op_code":0,"study_name":"s","directions":[1]}\n', "none of the 0 trials"),
        (b'{"op_code": "0"}\n', "line 1"),
        (b'{"op_code"' + b"[" * 100_000, "line 1"),
    ):
        with pytest.raises(TightropeError, match=said):
            read_study("s.log", data)


def test_shares_are_of_the_middle_value() -> None:
    assert SelectMeasurements(["a"], [(0, 4.0), (0, -2.0)], {"a": 3.0}).scale() == 3.0
    assert SelectMeasurements(["a"], [(0, 4.0)]).scale(logs=True) == 1.0
    with pytest.raises(TightropeError, match="most values are 0"):
        SelectMeasurements(["a"], [(0, 0.0)]).scale()
