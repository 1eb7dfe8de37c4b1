"""Run the cases, each in a forked process that has imported the command line and nothing else."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Final

import msgspec
import typer
from rich.console import Console

from benchmarks.commands.kinds import BAD, FINE, kind_of, make_bad, syntax
from benchmarks.commands.right import RIGHT, make_files
from tightrope.cli.app import app, main

_HANG: Final = 20.0
_IDLE: Final = 2.0
"""Seconds that an answer may take, of one processor that nobody else has."""
_HELP: Final = 1.0
_STARTS: Final = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call.

    Attributes:
        given: the words behind ``tightrope``.
        code: exit code; -1 = no answer.
        out: standard output.
        err: standard error.
        seconds: of processors, without the start of the command line.
        torch: whether torch was imported.
    """

    given: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float
    torch: bool


def commands(group: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """List the commands by their words; a group's own are listed in its place."""
    group = group or typer.main.get_command(app)
    if not hasattr(group, "commands"):
        yield " ".join(words), group
        return
    context = typer.Context(group)
    for name in sorted(group.list_commands(context)):
        yield from commands(group.get_command(context, name), (*words, name))


def line(command: Any, given: dict[str, str]) -> list[str]:
    """Spell a call of a command by the names of its parameters."""
    options, arguments = list[str](), list[str]()
    for one in command.params:
        text = given.get(str(one.name))
        if text is None:
            continue
        if one.param_type_name == "argument":
            arguments.append(text)
        else:
            options += [one.opts[-1], text]
    return [*options, *(["--"] if any(one.startswith("-") for one in arguments) else []), *arguments]


def cases(name: str, command: Any, num: int) -> list[tuple[str, ...]]:
    """Spell bad calls of a command: some that are no calls, then every parameter in turn."""
    right = {key: text.removeprefix("@") for key, text in RIGHT[name].items()}
    wrong = list(syntax(command, line(command, right)))
    spoiled = [
        [
            line(command, {**right, str(one.name): text})
            for text in BAD[kind_of(name, one)]
            if (name, one.name, text) not in FINE
        ]
        for one in command.params
        if one.name != "help"
    ]
    in_turn = [call for turn in zip_longest(*spoiled) for call in turn if call is not None]
    ordered = [*wrong[:8], *in_turn, *wrong[8:]]
    words = tuple(name.split())
    found = dict.fromkeys((*words, *call) for call in ordered)
    return list(islice(found, num))


def answer(given: tuple[str, ...], folder: Path) -> Answer:
    """Make a call in a process of its own, in the folder."""
    out, err, note = (folder / f".{name}" for name in ("out", "err", "note"))
    child = os.fork()
    if child == 0:
        _call(given, folder, out, err, note)
    began, usage, state = time.monotonic(), None, 0
    while usage is None:
        ended, state, used = os.wait4(child, os.WNOHANG)
        usage = used if ended else None
        if usage is None and time.monotonic() - began > _HANG:
            os.kill(child, 9)
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(state)
    texts = [one.read_text(errors="replace") for one in (out, err)]
    return Answer(
        given, max(code, -1), texts[0], texts[1], usage.ru_utime + usage.ru_stime, note.read_text() == "torch"
    )


def _call(given: tuple[str, ...], folder: Path, out: Path, err: Path, note: Path) -> None:
    """Become the call; never returns."""
    code = 70
    try:
        os.chdir(folder)
        note.write_text("")
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdin.close()
        main(list(given))
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        note.write_text("torch" if "torch" in sys.modules else "")
        os._exit(code)


def wrong(found: Answer, start: float) -> str:
    """Say what is wrong about an answer; empty = nothing."""
    lines = found.err.splitlines()
    if found.code == -1:
        return f"no answer in {_HANG:.0f} s, or killed"
    if "Traceback" in found.err or found.code in (1, 70):
        return "traceback"
    if found.code != 2:
        return f"exit code {found.code}"
    if len(lines) != 1:
        return f"{len(lines)} lines on standard error"
    if not lines[0].startswith("tightrope: ") or not lines[0].isprintable() or len(lines[0]) > 1000:
        return "no clear line"
    if found.out:
        return "standard output"
    if found.torch or start + found.seconds > _IDLE:
        return f"slow: {start + found.seconds:.1f} s{', torch' * found.torch}"
    return ""


def starting(*given: str) -> float:
    """Seconds of processors that a process takes for a call, the least of some."""
    spent = []
    for _ in range(_STARTS):
        before = os.times()
        subprocess.run([sys.executable, "-m", "tightrope", *given], capture_output=True, check=True)
        after = os.times()
        spent.append(after[2] + after[3] - before[2] - before[3])
    return min(spent)


def run(arguments: Sequence[str]) -> int:
    """Run all cases and return the exit status."""
    console = Console()
    parser = argparse.ArgumentParser(prog="python -m benchmarks commands", description=__doc__)
    parser.add_argument("--num", type=int, default=40, help="bad inputs per command")
    parser.add_argument("--only", default="", help="commands whose names contain this")
    parser.add_argument("--quick", action="store_true", help="two or three each, no plans or traces, no help")
    parser.add_argument("--json", type=Path, default=Path("results/commands.json"))
    parser.add_argument("--strict", action="store_true", help="exit with 1 if an answer is wrong")
    asked = parser.parse_args(arguments)
    if asked.quick:
        asked.num = 2
    start, total, bad = starting("--version"), 0, 0
    slowest, rows = 0.0, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder, small=asked.quick)
        make_bad(folder)
        for command, one in commands():
            if asked.only not in command:
                continue
            count = 0
            every = cases(command, one, 1 << 20)
            for given in every[:: max(1, len(every) // asked.num)] if asked.quick else every[: asked.num]:
                found = answer(given, folder)
                why = wrong(found, start)
                slowest = max(slowest, found.seconds)
                total, count = total + 1, count + bool(why)
                rows.append({"given": given, "code": found.code, "said": found.err, "wrong": why,
                             "seconds": start + found.seconds, "torch": found.torch})  # fmt: skip
                if why:
                    words = " ".join(map(ascii, given))
                    text = f"{why}: {words[:200]} -> {found.err[-300:]!r}"
                    console.print(text, markup=False, soft_wrap=True)
            bad += count
            console.print(f"{command}: {count} wrong", highlight=False)
    names = [command for command, _ in commands() if asked.only in command and not asked.quick]
    helped = {command: starting(*command.split(), "--help") for command in names}
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_bytes(msgspec.json.encode({"start": start, "help": helped, "answers": rows}) + b"\n")
    late = [name for name, seconds in helped.items() if seconds > _HELP]
    said = f"{bad} wrong of {total}; slowest {start + slowest:.2f} s of processors, start {start:.2f} s"
    slow = f", too slow: {', '.join(late)}" * bool(late)
    console.print(f"{said}; --help {max(helped.values(), default=0):.2f} s at most{slow}", highlight=False)
    return int(asked.strict and bool(bad or late))
