"""Good files of every kind, and damaged ones."""

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import torch

import tightrope
from tightrope.core import Trace

SCRIPT: Final = """
import torch


class Net(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, width), torch.nn.Linear(width, 8)

    def forward(self, x):
        return self.two(self.one(x).relu()).square().mean()


def build():
    torch.manual_seed(0)
    return Net(), (torch.ones(2, 8),)


def other():
    return Net(24), (torch.ones(4, 8),)


def text():
    return "model"


def fails():
    raise ValueError("the user's own error")


def mismatch():
    return Net(), (torch.ones(2, 9),)


def words():
    return Net(), ("x",)


def takes(argument):
    return Net(), (torch.ones(2, 8),)


number = 3
"""
CSV: Final = "id,lower,upper,size\n0,0,4,64\n1,2,6,128\n2,4,8,64\n"
MACHINE: Final = 'name = "tiny"\ntiers = [{ name = "ram", bytes = 1073741824 }]\n'
_ODD: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 1, 2**31, 2**62, 2**63, 10**30, 1.5, -0.5, 1e308, "", "x", "\x1b[2J", "é🎈", [], {},
    [[]], {"a": 1}, ["compute", 0], [0, 0, 0, 0, 0, 0, 0, 0, 0],
)  # fmt: skip


class Net(torch.nn.Module):
    """A small model that is known to be good."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, width), torch.nn.Linear(width, 8)
        self.drop = torch.nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.two(self.drop(self.one(x)).relu())
        return found


@dataclass(frozen=True)
class World:
    """A folder with good files by kind, made once."""

    folder: Path
    files: dict[str, str]

    def __getitem__(self, kind: str) -> str:
        return self.files[kind]

    def net(self, width: int = 8) -> Net:
        """Make the good model, always the same."""
        torch.manual_seed(0)
        return Net(width)


def _trace_file(trace: Trace) -> bytes:
    """Write a trace as tightrope-trace does; without it, as anything that begins like one."""
    if not find_spec("tightrope_trace"):
        return b"TRTRACE1"
    from tightrope_trace import dump

    return dump(trace)


def make_world(folder: Path) -> World:
    """Write the good files."""
    from tightrope.core.codec import dump_graph
    from tightrope.record import forecast

    names = {
        "graph": "step.graph.json", "plan": "step.plan.json", "trace": "run.trace", "step": "linear.step",
        "machine": "tiny.toml", "script": "train.py", "csv": "buffers.csv", "profile": "profile.json",
        "other plan": "other.plan.json", "other graph": "other.graph.json", "zipped": "run.trace.gz",
        "binary": "binary.bin",
    }  # fmt: skip
    world = World(folder, {kind: str(folder / name) for kind, name in names.items()})
    Path(world["script"]).write_text(SCRIPT)
    Path(world["csv"]).write_text(CSV)
    Path(world["machine"]).write_text(MACHINE)
    Path(world["binary"]).write_bytes(Random(0).randbytes(5000))
    model, x = world.net(), torch.ones(2, 8)
    compiled = tightrope.compile(model, budget="64MiB", progress=False)
    compiled(x).sum().backward()
    tightrope.save(compiled, world["step"], (x,))
    for kind, width in (("", 8), ("other ", 24)):
        graph = tightrope.capture(world.net(width), x)
        Path(world[f"{kind}graph"]).write_bytes(dump_graph(graph))
        plan = tightrope.plan(graph, budget="100%")
        plan.save(world[f"{kind}plan"])
        if not kind:
            trace = forecast(graph, plan)
            Path(world["trace"]).write_bytes(_trace_file(trace))
            Path(world["profile"]).write_bytes(_profile_of(trace))
    Path(world["zipped"]).write_bytes(gzip.compress(Path(world["trace"]).read_bytes()))
    return world


def _profile_of(trace: Trace) -> bytes:
    """Write the ops of a trace as a profiler does."""
    rows = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": event.name,
            "ts": event.start / 1000,
            "dur": event.duration / 1000,
        }
        for event in trace.events
    ]
    return msgspec.json.encode({"traceEvents": rows})


def odd_path(rng: Random, world: World) -> tuple[str, str, bool]:
    """Draw a path that is no file to read; also say whether taking it would be wrong."""
    folder = world.folder
    pipe, loop = folder / "pipe", folder / "loop"
    if not pipe.exists():
        os.mkfifo(pipe)
    if not loop.is_symlink():
        loop.symlink_to(loop)
    paths = {
        "none": str(folder / "none.json"), "no folder": str(folder / "none" / "x.json"),
        "folder": str(folder), "pipe": str(pipe), "loop": str(loop), "zeros": "/dev/zero",
        "nothing": "/dev/null", "empty": "",
        "nul": "a\0b", "long": "y" * 5000, "surrogate": "\ud800", "unicode": "名前🎈.json",
        "escape": "\x1b[2Jx", "below a file": world["plan"] + "/x", "home": "~/none", "flag": "--help.json",
        "memory": "/proc/self/mem",
        "url": "https://example.org/x.json", "colon": ":", "function": "none.py:build",
    }  # fmt: skip
    name = rng.choice(list(paths))
    return name, paths[name], True


def damaged(rng: Random, world: World, kind: str) -> tuple[str, str, bool]:
    """Write a damaged copy of a good file; return how, its path, and whether taking it would be wrong."""
    good = Path(world[kind]).read_bytes()
    ways: dict[str, Callable[[], tuple[bytes, bool]]] = {
        "empty": lambda: (b"", True),
        "cut": lambda: (good[: rng.randrange(1, len(good) - 1)], False),
        "flipped": lambda: (_flipped(rng, good), False),
        "zipped": lambda: (gzip.compress(good), False),
        "cut zip": lambda: (gzip.compress(good)[:-9], True),
        "UTF-16": lambda: (good.decode("latin-1").encode("utf-16"), True),
        "mark": lambda: (b"\xef\xbb\xbf" + good, False),
        "deep": lambda: (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", True),
        "doubled": lambda: (good + good, False),
        "nul": lambda: (good[:20] + b"\0" * 50 + good[20:], False),
        "long line": lambda: (b"x" * 3_000_000, True),
        "NaN": lambda: (b'{"schema": NaN}', True),
        "list": lambda: (b"[]", True),
        "pickle": lambda: (b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94.", True),
    }
    if kind in ("plan", "graph", "trace", "profile"):
        ways |= {way: lambda: (_spoiled(rng, good), False) for way in ("field", "another field", "a third")}
    way = rng.choice(list(ways))
    data, must = ways[way]()
    path = world.folder / f"damaged-{rng.randrange(10**9)}{Path(world[kind]).suffix}"
    path.write_bytes(data)
    return way, str(path), must


def _flipped(rng: Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _spoiled(rng: Random, data: bytes) -> bytes:
    """Set, drop or repeat a value somewhere in a JSON file; other files are flipped."""
    try:
        tree = json.loads(data)
    except ValueError:
        return _flipped(rng, data)
    where, key = tree, rng.choice(list(tree))
    while isinstance(where[key], dict | list) and where[key] and rng.random() < 0.75:
        where = where[key]
        key = rng.choice(list(where)) if isinstance(where, dict) else rng.randrange(len(where))
    action = rng.choice(("set", "set", "drop", "twice"))
    if action == "drop":
        del where[key]
    elif action == "twice" and isinstance(where, list):
        where.insert(key, where[key])
    else:
        where[key] = rng.choice(_ODD)
    return json.dumps(tree).encode()
