"""The commands, each with its arguments as they are right."""

import io
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from random import Random
from typing import Final

from benchmarks.wrong.files import World
from benchmarks.wrong.values import FAMILIES, Drawn

_TARGETS: Final = (
    "other", "text", "fails", "mismatch", "words", "takes", "number", "none", "", "build()", "a b", "__doc__",
)  # fmt: skip
_NUMBERS: Final = (
    "-1", "nan", "inf", "1e99", "0x10", "", "x", "1.5", "٣", "9" * 40, "True", "1,,2", "-inf", "1e-400",
    "--json",
)  # fmt: skip
_WORDS: Final = (
    "", "best", "ADAMW", "é🎈", "a b", "\x1b[2J", "x" * 5000, "../..", "none,none", "\ud800", "*", "a\0b",
)  # fmt: skip


@dataclass(frozen=True)
class Option:
    """One argument of a command.

    Attributes:
        right: text, ``@kind`` = the good file of this kind, ``>name`` = a new file; empty = left out.
        family: ``text``, ``number``, ``target``, or one of `FAMILIES`.
        must: taking what is drawn from ``text`` and ``number`` is wrong.
    """

    right: str
    family: str
    must: bool = True


_MACHINE: Final = Option("", "machine file")
_SECONDS: Final = Option("0.2", "number", must=False)
_OF_DEMO: Final[Mapping[str, Mapping[str, Option]]] = {
    "demo": {
        "--net": Option("none", "text"), "--budget": Option("70%", "budget"),
        "--steps": Option("1", "number"),
    },
}  # fmt: skip
_OF_TRACE: Final[Mapping[str, Mapping[str, Option]]] = {
    "trace": {
        "": Option("@trace", "trace file"), "--graph": Option("", "graph file"),
        "--model": Option("", "target"), "--machine": _MACHINE, "--save": Option("", "budget"),
        "--against": Option("@trace", "trace file"), "--top": Option("", "number", must=False),
        "-o": Option("", "output"), "--perfetto": Option("", "output"), "--snapshot": Option("", "output"),
    },
    "record": {
        "": Option("@script:build", "target"), "-o": Option(">out.trace", "output"),
        "--budget": Option("", "budget"), "--plan": Option("", "plan file"),
        "--graph": Option("", "graph file"), "--save-plan": Option("", "output"),
        "--save-graph": Option("", "output"),
    },
}  # fmt: skip
"""Commands of a plug-in, which may not be installed."""

COMMANDS: Final[Mapping[str, Mapping[str, Option]]] = {
    "estimate": {
        "": Option("@script:build", "target"), "--machine": _MACHINE, "--budget": Option("", "budget"),
        "--optimizer": Option("", "text"), "--batch": Option("", "number", must=False),
    },
    "plan": {
        "": Option("@graph", "graph file"), "--budget": Option("100%", "budget"),
        "--planner": Option("greedy", "text"), "--order": Option("given", "text"), "--seconds": _SECONDS,
        "--seed": Option("", "number", must=False), "--machine": _MACHINE, "--cache": Option("", "output"),
        "-o": Option(">out.plan.json", "output"), "--save-graph": Option("", "output"),
    },
    "explain": {
        "": Option("@plan", "plan file"), "--graph": Option("@graph", "graph file"),
        "--top": Option("", "number", must=False), "--save": Option("", "budget"), "--machine": _MACHINE,
    },
    "judge": {
        "": Option("@plan", "plan file"), "--graph": Option("@graph", "graph file"), "--machine": _MACHINE,
    },
    "curve": {"": Option("@graph", "graph file"), "--seconds": _SECONDS, "--machine": _MACHINE},
    "place": {
        "": Option("@csv", "csv file"), "--capacity": Option("1MiB", "budget"), "--seconds": _SECONDS,
        "--seed": Option("", "number", must=False), "--device": Option("", "number", must=False),
        "-o": Option("", "output"), "--svg": Option("", "output"),
    },
    "report": {
        "": Option("@plan", "plan file"), "-o": Option(">out.html", "output"),
        "--graph": Option("@graph", "graph file"), "--forecast": Option("", "trace file"),
        "--against": Option("", "trace file"), "--also": Option("", "plan file"), "--machine": _MACHINE,
        "--seconds": _SECONDS,
    },
    "run": {
        "": Option("@step", "step file"), "--steps": Option("1", "number", must=False),
        "--budget": Option("", "budget"),
    },
    **(_OF_DEMO if find_spec("tightrope_demo") else {}),
    **(_OF_TRACE if find_spec("tightrope_trace") else {}),
}  # fmt: skip
"""By name; the empty option is the argument by position."""


def draw_text(rng: Random, world: World, option: Option, *, positional: bool) -> Drawn:
    """Draw a wrong text for an option."""
    if option.family == "number":
        return Drawn(rng.choice(_NUMBERS), "number", option.must)
    if option.family == "text":
        return Drawn(rng.choice(_WORDS), "text", option.must)
    if option.family == "target":
        if rng.random() < 0.3:
            return FAMILIES["script file"](rng, world, ())
        name = rng.choice(_TARGETS)
        return Drawn(f"{world['script']}:{name}", f"target: {name}", must=name != "other")
    drawn = FAMILIES[option.family](rng, world, ())
    if not isinstance(drawn.value, str):  # a command takes texts alone
        drawn = Drawn(rng.choice(_WORDS), f"text for {option.family}", must=False)
    return drawn


def arguments(world: World, command: str, wrong: Mapping[str, str]) -> list[str]:
    """Spell a command with wrong texts in place of right ones; what is right and empty is left out."""
    found = [command]
    for name, option in COMMANDS[command].items():
        text = option.right
        if text.startswith("@"):
            kind, _, function = text[1:].partition(":")
            text = world[kind] + (f":{function}" if function else "")
        elif text.startswith(">"):
            text = str(world.folder / text[1:])
        text = wrong.get(name, text)
        if text or name in wrong:
            found += [name, text] if name else [text]
    return found


def run_command(given: list[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit code and what it wrote, standard error first."""
    from tightrope.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(given)
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    sys.stdout.flush()
    texts = [stream.buffer.getvalue().decode("utf-8") for stream in (err, out)]
    return code, "\n".join(texts)
