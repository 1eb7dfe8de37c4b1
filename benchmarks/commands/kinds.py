"""Bad texts for every kind of argument, and which kind each parameter is of."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_FILES: Final[dict[str, bytes]] = {
    "empty": b"",
    "binary": bytes(range(256)) * 8,
    "deep.json": b"[" * 100_000,
    "deep-objects.json": b'{"schema":' * 50_000,
    "later.json": b'{"schema": 99}\n',
    "types.json": b'{"schema": "x", "ops": 7, "kinds": [], "version": []}\n',
    "nan.json": b'{"schema": NaN}\n',
    "list.json": b"[]\n",
    "utf16.csv": "a,b\n1,2\n".encode("utf-16"),
    "words.csv": b"a,b\nx,y\n",
    "nan.csv": b"id,lower,upper,size\na,nan,nan,-5\n",
    "kinds.toml": b'[[kinds]]\nname="p"\nshare=nan\nbytes=-5\n',
    "page.html": b"<!doctype html><title>404</title>\n",
    "zip": b"PK\x03\x04" + b"\x00" * 30,
}
_PATHS: Final = (
    "missing.json",
    "名前🎈.json",
    "loop",
    ".",
    "pipe",
    "x" * 300,
    "notes.txt/below",
    "/dev/null",
    "",
)
_TARGETS: Final = (
    "missing.py:build", "train.py", "train.py:missing", "train.py:", "train.py:build()",
    "syntax.py:build", "absent.py:build", "raises.py:build", "exits.py:build", "number.py:build",
    "empty.py:build", "deep.py:build", "notes.txt:build", ".:build", "名前.py:build", "train.py:é x", ":", "",
)  # fmt: skip
_BYTES: Final = ("8Q", "-1", "0", "abc", "", "nan", "inf", "8GiB 8GiB", "1e9", "٣", "90%%", "[8]")
_BUDGETS: Final = ("80", *_BYTES)
_WHOLE: Final = ("x", "1.5", "-1", "", "nan", "9" * 40, "0x10", "1,2")
_FLOATS: Final = ("x", "nan", "inf", "-1", "", "1,5", "1e400")
_WORDS: Final = ("best", "", "é🎈", "a b", "\x1b[2J")
_MACHINES: Final = ("no-such-machine", "missing.toml", ".", "empty", "binary", "types.toml", "nan.toml", "")
_OUTPUTS: Final = (".", "no/such/out", "loop", "x" * 300, "notes.txt/below", "")
_FOLDERS: Final = ("notes.txt", "no/such/out", "loop", "x" * 300, "notes.txt/below", "")
_MORE_FILES: Final[dict[str, bytes]] = {
    "types.toml": b'name = 7\ntiers = "x"\n',
    "nan.toml": b'name = "a"\n[[tiers]]\nname = "ram"\nbytes = 64\nread = nan\n',
}
_SYNTAX: Final = ("--bogus", "-Z", "--json=3", "--é=1", "extra\tword", "--no-such=1", "---", "-")
_MORE_SYNTAX: Final = (
    "--help=3", "-h", "--version", "--json=", "--no-json", "--Json", "--jso", "-j", "--=1", "-=", "--1", "-1",
    "--verbose", "--quiet", "-o=", "--json --json", "a b", "é🎈", "\x1b[2J", "../..", "*", "?", "$(id)", "%s",
    "{}", "None", "[1]", "x" * 5000, "--" + "x" * 5000, "\n", "--json\n", "\u202e",
)  # fmt: skip

BAD: Final[dict[str, tuple[str, ...]]] = {
    "file": (*_PATHS[:5], *_FILES, *_PATHS[5:]),
    "target": _TARGETS,
    "graph": (*_TARGETS[:7], *_PATHS[:5], *_FILES, *_TARGETS[7:]),
    "budget": _BUDGETS,
    "bytes": _BYTES,
    "whole": _WHOLE,
    "float": _FLOATS,
    "word": _WORDS,
    "machine": _MACHINES,
    "output": _OUTPUTS,
    "folder": _FOLDERS,
    "site": ("missing", "notes.txt", ".", "x" * 300, "loop", "empty", "名前", ""),
    "module": ("no_such_module_at_all", "a b", "", "..", "é🎈"),
    "numbers": ("x", "1,,2", "-1", "0", "1.5", "", "nan", "9" * 40),
    "address": ("x", "h:0", "h:99999", ":5000", "h:-1", "h:p", ""),
    "party": ("x", "0/2", "3/2", "1/1", "1", "1/x", "٣/٤"),
    "free": (),
    "flag": (),
}
KINDS: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("plan", "forecast", "against", "also", "file", "profile", "table", "run", "test", "forest"), "file"
    ),
    **dict.fromkeys(("files", "paths", "data", "lock", "update", "key_file", "cluster", "replaces"), "file"),
    **dict.fromkeys(("tables", "costs"), "file"),
    **dict.fromkeys(("target", "model"), "target"),
    **dict.fromkeys(
        ("save", "size", "bytes_limit", "capacity", "arena", "page_rate", "device_bytes"), "bytes"
    ),
    **dict.fromkeys(("ram", "rom", "flash", "stack", "wire_limit"), "bytes"),
    **dict.fromkeys(
        ("output", "page", "pin", "svg", "drawing", "save_graph", "save_plan", "perfetto"), "output"
    ),
    **dict.fromkeys(("snapshot", "torchtitan"), "output"),
    **dict.fromkeys(("planner", "order", "net", "optimizer", "mode", "rule", "predict", "policy"), "word"),
    **dict.fromkeys(("rules", "scenario", "objective", "core", "block", "filter", "split", "loss"), "word"),
    **dict.fromkeys(
        ("method", "without", "protection", "largest", "weight", "study", "precision", "accept", "first"),
        "word",
    ),
    **dict.fromkeys(("batch", "seq", "ranges"), "numbers"),
    **dict.fromkeys(("seconds", "noise_sd", "prior_sd", "tolerance", "confidence", "pause"), "float"),
    **dict.fromkeys(("hours", "hours_limit", "joules_limit", "able_limit", "error_limit"), "float"),
    **dict.fromkeys(("sigma", "compress", "horizon", "at_least", "joules", "window", "cutoff"), "float"),
    **dict.fromkeys(("ms", "mhz", "rate", "epsilon", "alpha", "hold_out", "stream_error"), "float"),
    **dict.fromkeys(("seed", "steps", "top", "ranks", "pipeline", "micro_batches", "devices"), "whole"),
    **dict.fromkeys(("samples", "cohort", "concurrency", "machines", "since", "device", "moves"), "whole"),
    **dict.fromkeys(("fft", "bands", "num_trees", "depth", "leaves", "bins", "key_bits", "order"), "whole"),
    **dict.fromkeys(("instructions", "min_rows", "stop", "tensor", "context", "budget_runs"), "whole"),
    **dict.fromkeys(("tokens", "dim", "hidden", "experts", "k", "rows", "images", "features"), "whole"),
    **dict.fromkeys(("layers", "bits", "nodes", "expert"), "whole"),
    "budget": "budget",
    "machine": "machine",
    "cache": "folder",
    "site": "site",
    "join": "address",
    "party": "party",
    "load": "module",
    "graph": "file",
    "step": "graph",
    "label": "free",
    "allow": "free",
}
"""By the name of the parameter; flags are left out."""
PARTICULAR: Final[dict[tuple[str, str], str]] = {
    ("plan", "graph"): "graph",
    ("plan", "order"): "word",
    ("run", "budget"): "bytes",
    ("export", "source"): "graph",
    ("export", "to"): "word",
    ("curve", "graph"): "graph",
    ("estimate", "machines"): "flag",
    ("streams", "machine"): "word",
    ("jobs", "capacity"): "numbers",
    ("graphs plan", "model"): "word",
    ("place-tasks", "policy"): "file",
    ("parity", "data"): "folder",
    ("parity", "against"): "word",
    ("parity", "batch"): "whole",
    ("quality", "region"): "output",
    ("quality", "smallest"): "word",
    ("quality", "save"): "output",
    ("quality", "micro"): "machine",
    ("quality", "output"): "folder",
    ("micro compile", "output"): "folder",
    ("micro dsp", "output"): "folder",
    ("micro tune", "output"): "folder",
    ("micro profile", "folder"): "file",
}
FINE: Final = {
    ("verify", "lock", ""), ("plan", "cache", "no/such/out"), ("trees", "weight", ""),
    ("select", "study", ""), ("place-tasks", "without", ""), ("tables plan", "without", ""),
    ("parity", "accept", ""), ("quality", "smallest", ""), ("quality", "micro", ""), ("quality", "ram", ""),
    ("quality", "flash", ""),
}  # fmt: skip


def make_bad(folder: Path) -> None:
    """Write the bad files."""
    for name, data in {**_FILES, **_MORE_FILES}.items():
        (folder / name).write_bytes(data)
    os.symlink("loop", folder / "loop")
    os.mkfifo(folder / "pipe")


def kind_of(command: str, parameter: Any) -> str:
    """Name the kind of a parameter of the command line.

    Raises:
        KeyError: nobody has said of which kind it is.
    """
    name = str(parameter.name)
    if (command, name) in PARTICULAR:
        return PARTICULAR[command, name]
    if getattr(parameter, "is_flag", False):
        return "flag"
    return KINDS[name]


def syntax(command: Any, right: list[str]) -> Iterator[list[str]]:
    """Calls that are no calls of a command."""
    for word in _SYNTAX:
        yield [*right, word]
    yield ["extra" for _ in range(9)]
    options = [one for one in command.params if one.param_type_name == "option"]
    required = [one for one in command.params if one.required]
    if required:
        yield []
    for one in options:
        if not getattr(one, "is_flag", False):
            yield [*right, one.opts[-1]]
    for one in options:
        yield [*right, one.opts[-1][:-1] + "é"]
        yield [*right, one.opts[-1].upper() + "=1"]
        if getattr(one, "is_flag", False):
            yield [*right, one.opts[-1] + "=maybe"]
    for word in _MORE_SYNTAX:
        yield [*right, word]
