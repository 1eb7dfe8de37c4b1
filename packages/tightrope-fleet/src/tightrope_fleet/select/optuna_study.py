"""Read studies of Optuna, as its SQLite and journal files hold them: finished trials are measurements.

Trials with equal parameters are measurements of one candidate. Files are data: they are parsed against a
layout, a database is opened for reading alone, and nothing is unpickled. Optuna is not needed.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from tightrope.core.errors import TightropeError
from tightrope.core.units import printable, shown
from tightrope_fleet.select.measurements import SelectMeasurements

MAGIC: Final = b"SQLite format 3\0"
_COMPLETE: Final = 1
_CREATE_STUDY, _DELETE_STUDY, _CREATE_TRIAL, _SET_PARAM, _SET_VALUES = 0, 1, 4, 5, 6
_MAXIMIZE: Final = 2
_TRIALS: Final = (
    "SELECT trials.trial_id, state, value, value_type FROM trials LEFT JOIN trial_values "
    "ON trial_values.trial_id = trials.trial_id AND objective = 0 WHERE study_id = ? ORDER BY number"
)
_PARAMS: Final = (
    "SELECT trial_params.trial_id, param_name, param_value, distribution_json FROM trial_params "
    "JOIN trials ON trials.trial_id = trial_params.trial_id WHERE study_id = ?"
)


class StudyDistribution(msgspec.Struct, frozen=True):
    """What a parameter is drawn from; of its attributes the choices of a category count."""

    name: str
    attributes: dict[str, Any]


class JournalLine(msgspec.Struct, frozen=True):
    """A line of a journal; which fields are there follows from the operation."""

    op_code: int
    study_name: str = ""
    directions: tuple[int, ...] = ()
    study_id: int = -1
    trial_id: int = -1
    state: int | None = None
    value: float | None = None
    values: tuple[float, ...] | None = None
    param_name: str = ""
    param_value_internal: float | None = None
    distribution: str = ""
    distributions: dict[str, str] = {}
    params: dict[str, float | None] = {}


@dataclass(slots=True)
class StudyTrial:
    """A trial: the texts of its parameters, and its value once it is complete."""

    params: dict[str, str] = field(default_factory=dict)
    value: float | None = None


@dataclass(slots=True)
class Study:
    """A study and its trials."""

    name: str
    directions: tuple[int, ...]
    trials: list[StudyTrial] = field(default_factory=list)


def read_study(path: str | Path, data: bytes, *, study: str = "") -> SelectMeasurements:
    """Read one study.

    Args:
        path: the file; a database is opened there.
        data: its bytes.
        study: name, where there are several.

    Returns:
        A candidate per set of parameters, named by them; values of a study that maximizes, negated. Trials
        that are not complete are counted.

    Raises:
        TightropeError: it holds no such study, no complete trial, or more than one objective.
    """
    where = repr(str(path))
    studies = list(_database(Path(path)) if data.startswith(MAGIC) else _journal(where, data))
    chosen = [one for one in studies if study in ("", one.name)]
    if len(chosen) != 1:
        names = ", ".join(printable(one.name) for one in studies)[:200] or "none"
        raise TightropeError(f"{where}: say by --study NAME which study is meant; there are: {names}.")
    (found,) = chosen
    if len(found.directions) != 1:
        raise TightropeError(
            f"{where}: study {shown(found.name)} has {len(found.directions)} objectives; candidates are "
            "compared by one: give a CSV table of it."
        )
    made = SelectMeasurements(maximize=found.directions == (_MAXIMIZE,))
    numbers: dict[str, int] = {}
    for trial in found.trials:
        if trial.value is None:
            made.num_left_out += 1
            continue
        name = ", ".join(f"{key}={value}" for key, value in sorted(trial.params.items())) or "no parameters"
        made.looks.append((numbers.setdefault(name, len(numbers)), trial.value * (-1) ** made.maximize))
    made.names = list(numbers)
    if not made.looks:
        raise TightropeError(
            f"{where}: none of the {len(found.trials)} trials of study {shown(found.name)} is complete with "
            "a finite value: run some first."
        )
    return made


def _text(value: float | None, distribution: str, where: str) -> str:
    """Write the value of a parameter as its user knows it."""
    try:
        known = msgspec.json.decode(distribution, type=StudyDistribution)
        if known.name == "CategoricalDistribution":
            return str(known.attributes["choices"][int(value or 0)])
    except (msgspec.MsgspecError, KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        raise TightropeError(
            f"{where}: a parameter has no distribution of Optuna: {printable(str(error))[:200]}."
        ) from error
    return "None" if value is None else f"{value:g}"


def _database(path: Path) -> Iterator[Study]:
    where = repr(str(path))
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as base:
            for number, name in base.execute("SELECT study_id, study_name FROM studies").fetchall():
                every = "SELECT direction FROM study_directions WHERE study_id = ? ORDER BY objective"
                directions = [one for (one,) in base.execute(every, (number,))]
                found = Study(str(name), tuple(_MAXIMIZE if one == "MAXIMIZE" else 1 for one in directions))
                trials: dict[Any, StudyTrial] = {}
                for trial, state, value, kind in base.execute(_TRIALS, (number,)):
                    whole = state == "COMPLETE" and kind == "FINITE" and isinstance(value, float | int)
                    trials[trial] = StudyTrial(value=float(value) if whole else None)
                for trial, param, value, distribution in base.execute(_PARAMS, (number,)):
                    trials[trial].params[str(param)] = _text(value, str(distribution), where)
                found.trials = list(trials.values())
                yield found
    except sqlite3.Error as error:
        raise TightropeError(
            f"{where}: no study of Optuna: {printable(str(error))}. Give the file of its RDBStorage, of "
            "Optuna 3 or later."
        ) from error


def _journal(where: str, data: bytes) -> Iterator[Study]:
    decoder = msgspec.json.Decoder(JournalLine)
    studies: dict[int, Study] = {}
    trials: list[StudyTrial] = []
    for number, text in enumerate(data.splitlines(), 1):
        at = f"{where}, line {number}"
        try:
            line = decoder.decode(text)
            _follow(line, studies, trials, at)
        except (msgspec.MsgspecError, IndexError, KeyError, RecursionError) as error:
            said = printable(str(error) or type(error).__name__)[:200]
            raise TightropeError(
                f"{at}: no line of Optuna's journal: {said}. Give the whole file."
            ) from error
    yield from studies.values()


def _follow(line: JournalLine, studies: dict[int, Study], trials: list[StudyTrial], at: str) -> None:
    """Do what a line says."""
    if line.op_code == _CREATE_STUDY:
        studies[max(studies, default=-1) + 1] = Study(line.study_name, line.directions)
    elif line.op_code == _DELETE_STUDY:
        studies[line.study_id].trials = []
        studies[line.study_id].directions = ()
    elif line.op_code == _CREATE_TRIAL:
        trial = StudyTrial()
        for key, value in line.params.items():
            trial.params[key] = _text(value, line.distributions[key], at)
        trials.append(trial)
        studies[line.study_id].trials.append(trial)
        _finish(trial, line)
    elif line.op_code == _SET_PARAM:
        trials[line.trial_id].params[line.param_name] = _text(
            line.param_value_internal, line.distribution, at
        )
    elif line.op_code == _SET_VALUES:
        _finish(trials[line.trial_id], line)


def _finish(trial: StudyTrial, line: JournalLine) -> None:
    if line.state == _COMPLETE:
        values: Sequence[float | None] = line.values or (line.value,)
        trial.value = values[0]
