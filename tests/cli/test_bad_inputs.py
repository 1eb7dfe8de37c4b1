"""Every command, as the command line lists them, over bad inputs: exit code 2 and one clear line."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from command import run

from tightrope.cli.app import app
from tightrope.cli.sound import check_outputs
from tightrope.core import TightropeError

OUTPUTS = ("output", "page", "svg", "drawing", "save_graph", "save_plan", "perfetto", "snapshot")
NEEDED = {"budget": "8GiB", "ram": "2KiB", "ranks": "2", "to": "blocks"}


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """List the commands with their words; a group's own are listed in its place."""
    if not hasattr(group, "commands"):
        yield words, group
        return
    context = typer.Context(group)
    for name in sorted(group.list_commands(context)):
        yield from commands(group.get_command(context, name), (*words, name))


ALL = dict(commands(typer.main.get_command(app)))
WRITING = [
    (words, option)
    for words, command in ALL.items()
    for option in command.params
    if option.name in OUTPUTS and "Folder" not in str(getattr(option, "help", ""))
]


def line(words: tuple[str, ...], given: dict[str, str], argument: str = "missing.csv") -> list[str]:
    """Write a call with what is required, and the options given."""
    found = list(words)
    for one in ALL[words].params:
        if one.param_type_name == "argument":
            found += [argument] if one.required else []
        elif one.name in given or one.required:
            found += [one.opts[-1], given.get(str(one.name), NEEDED.get(str(one.name), "out"))]
    return found


def test_commands_are_found() -> None:
    assert len(ALL) > 9
    assert len(WRITING) > 10


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_an_unknown_option_is_refused(words: tuple[str, ...]) -> None:
    done = run(*words, "--bogus")
    assert done.code == 2
    assert "--bogus" in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "option"), WRITING, ids=lambda one: one.name if hasattr(one, "name") else " ".join(one)
)
def test_an_output_that_cannot_be_written_is_refused_first(
    words: tuple[str, ...], option: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    os.symlink("loop", tmp_path / "loop")
    for wrong in ("folder", "no/such/out", "loop", "x" * 300):
        done = run(*line(words, {str(option.name): wrong}))
        assert done.code == 2, (wrong, done)
        assert len(done.err.splitlines()) == 1
        assert wrong[:50] in done.err or Path(wrong).parent.name in done.err, done.err


def test_one_file_is_not_given_for_two_outputs(tmp_path: Path) -> None:
    """Also where the two ways to write it differ."""
    file = tmp_path / "out.json"
    (tmp_path / "folder").mkdir()
    with pytest.raises(TightropeError, match=r"out\.json' is given for two outputs"):
        check_outputs([file, tmp_path / "folder" / ".." / "out.json"])
    check_outputs([file, tmp_path / "other.json", None, Path(os.devnull), Path(os.devnull)])
